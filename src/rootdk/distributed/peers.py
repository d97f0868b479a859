"""Peers: this process among the ranks of a group, and messages to single ranks of it.

Everything goes from rank to rank, the small exchanges before and after a pass too. A collective would say only that
somebody is missing; a message says who. And a wait for a message has a deadline of its own, where a collective that
nobody answers occupies a thread of the group until the deadline of the group.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from numbers import Real
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentError, ArgumentTypeError, RankError, RootdkError
from .faults import lost

# Beside whatever else the caller sends through the group.
WORDS, BLOCK, GRADIENT, DONE = (0x700D000 + i for i in range(4))
# Bytes of a note in `meet`; every rank must expect the same number.
_NOTE = 4096
# How often ranks have met, by the name of the group.
_meetings: Counter[str] = Counter()


class Message(NamedTuple):
    """A tensor under way. It must not be touched before the wait for it is over, and is kept alive until then."""

    work: Any
    peer: int
    tensor: Tensor


class Peers:
    """The ranks of one group as one call sees them.

    group     a process group of torch.distributed; None is the default group
    timeout   seconds that any one wait may last; None is the timeout of the group
    """

    def __init__(self, group: Any = None, timeout: Any = None, device: Any = "cpu") -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ArgumentError(
                "group: torch.distributed must be initialised, got no process group "
                "(call torch.distributed.init_process_group first)"
            )
        self.group = dist.group.WORLD if group is None else group
        if not isinstance(self.group, dist.ProcessGroup):
            raise ArgumentTypeError(f"group: must be a process group of torch.distributed, got {group!r}")
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise ArgumentError("group: this process must be a member of it, got a group without it")
        self.seconds = _seconds(timeout)
        self.device = device

    @property
    def others(self) -> list[int]:
        """All ranks but this one, the next one first."""
        return [(self.rank + i) % self.size for i in range(1, self.size)]

    def post(self, *operations: tuple[Any, Tensor, int, int]) -> list[Message]:
        """Start to send and to receive: (dist.isend or dist.irecv, tensor, rank in the group, tag) each."""
        made = [dist.P2POp(do, tensor, group=self.group, group_peer=to, tag=tag) for do, tensor, to, tag in operations]
        # gloo starts them one by one in any case; apart, an error says whose connection it is about.
        batches = [[one] for one in made] if dist.get_backend(self.group) == "gloo" else [made]
        messages: list[Message] = []
        for batch in batches:
            try:
                works = dist.batch_isend_irecv(batch)
            except RuntimeError as error:
                raise self._lost(batch[0].group_peer, error) from error
            # A backend may make one out of all.
            messages += [
                Message(works[min(i, len(works) - 1)], one.group_peer, one.tensor) for i, one in enumerate(batch)
            ]
        return messages

    def wait(self, messages: Iterable[Message]) -> None:
        """Until all of them have arrived or gone; an error that names the rank if one does not."""
        until = None if self.seconds is None else time.monotonic() + self.seconds
        for message in messages:
            try:
                if until is None:
                    message.work.wait()
                else:
                    message.work.wait(timedelta(seconds=max(until - time.monotonic(), 0.001)))
            except RuntimeError as error:
                raise self._lost(message.peer, error) from error

    def meet(self, note: dict[str, Any]) -> list[dict[str, Any]]:
        """Exchange a short note with every rank: the notes of all, by rank, `number` added to each."""
        _meetings[self.group.group_name] += 1
        note = note | {"number": _meetings[self.group.group_name]}
        if self.size == 1:
            return [note]
        text = json.dumps(note).encode()
        if len(text) > _NOTE:  # pragma: no cover -- notes hold digests and cut texts
            raise AssertionError(f"a note of {len(text)} bytes")
        heard = self._exchange(text, WORDS)
        heard[self.rank] = text
        return [json.loads(heard[rank]) for rank in range(self.size)]

    def part(self) -> None:
        """Until every rank has come this far: nobody uses a result while another has none."""
        if self.size > 1:
            self._exchange(b"done", DONE)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What stops this rank inside the block stops all others, with the reason."""
        try:
            yield
        except RankError:
            raise
        except BaseException as error:
            reason = f"rank {self.rank} stopped with {type(error).__name__}: {str(error)[:500]}"
            lost(self.group, self.rank, self.others, reason, self.rank, secondary=False)
            raise

    def _exchange(self, text: bytes, tag: int) -> dict[int, bytes]:
        ours = _padded(text, self.device)
        theirs = {peer: torch.empty_like(ours) for peer in self.others}
        operations = [(dist.isend, ours, peer, tag) for peer in self.others]
        operations += [(dist.irecv, theirs[peer], peer, tag) for peer in self.others]
        self.wait(reversed(self.post(*operations)))  # what comes in first: that names who is missing
        return {peer: bytes(tensor.cpu().numpy()).rstrip() for peer, tensor in theirs.items()}

    def _lost(self, peer: int, error: RuntimeError) -> RootdkError:
        silent = "Timed out" in str(error) or "timed out" in str(error)
        seconds = "the group's timeout" if self.seconds is None else f"{self.seconds:g} s"
        reason = (
            f"rank {peer} did not answer rank {self.rank} within {seconds}"
            if silent
            else f"rank {peer} has closed its connection to rank {self.rank}: it died, or it was stopped"
        )
        return lost(self.group, self.rank, self.others, reason, peer, secondary=not silent)


def _padded(text: bytes, device: Any) -> Tensor:
    room = 8 if len(text) <= 8 else _NOTE
    return torch.frombuffer(bytearray(text.ljust(room)), dtype=torch.uint8).to(device)


def _seconds(timeout: Any) -> float | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise ArgumentTypeError(f"timeout: must be a number of seconds, a timedelta or None, got {timeout!r}")
    seconds = float(seconds)
    if not (seconds >= 0.001 and math.isfinite(seconds)):
        raise ArgumentError(f"timeout: must be at least 0.001 seconds, got {timeout!r}")
    return seconds
