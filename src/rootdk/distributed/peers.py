"""Peers: this process among the ranks of a group. They agree before work starts, send messages, and stop together.

All messages go from rank to rank, also in the small exchanges before and after a pass: an error names the rank that is
missing, and a wait has a deadline of its own. A collective has neither.

Before work starts every rank sends what it was asked to do, and all of them refuse if these notes differ. Ranks with
different shapes or options would wait for messages that nobody sends or, worse, receive blocks of another size: then
gloo ends the process without a message. So the check comes first, costs one small message between any two ranks, and
gives the same error everywhere.

When a rank is lost every other rank stops, and all of them give the same reason. It is written to the store of the
group, once: the first rank that notices writes what happened, and the others read it. Only if the store was lost with
the rank that holds it (under torchrun no rank does), each rank reports what it saw itself. Three things make the others
notice in time: a rank that times out or loses a connection wakes all ranks that it is connected to; a rank that is
woken by a closed connection waits a moment for the reason before it gives its own; and a rank that nobody woke looks
for the reason every second.

How gloo shows a fault (2.13): a wait past its deadline raises "Timed out waiting ..." and closes every connection of
the group in that process; if a process dies or closes, "Connection closed by peer" is raised in processes that have a
message under way with it, and in no other. So a group cannot be used after a fault, with or without this module.
"""

import hashlib
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..checks import real
from ..errors import ArgumentError, ArgumentTypeError, RankError, RootdkError
from ..scaling import ScaleRule

# Our own tags, different from those that the caller uses in the group. No message has the tag _NEVER.
WORDS, BLOCK, GRADIENT, DONE = (0x700D000 + i for i in range(4))
_NEVER = 0x700D0FF
# Bytes of a note in `meet`; every rank must expect the same number.
_NOTE = 4096
# How often ranks have met, by the name of the group.
_meetings: Counter[str] = Counter()
# The key of the reason for a loss in the store of the group.
_KEY = "rootdk/lost"
# How long a rank waits for the reason of a closed connection. The rank that closed it writes it at about the same time.
# A rank that waits for a message looks for a reason at the same interval.
_MOMENT = 1.0
# Shapes, and the axis along which they may differ: the number of rows of a shard.
_SHARDED = {"query": -2, "key": -2, "value": -2, "shard": 0}


class Message(NamedTuple):
    """A tensor that is being sent or received. It must not be touched, and is kept alive, until the wait is over."""

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
        posts = [dist.P2POp(do, tensor, group=self.group, group_peer=to, tag=tag) for do, tensor, to, tag in operations]
        # gloo starts them one by one in any case; if that is done here, an error shows whose connection it is about.
        batches = [[post] for post in posts] if dist.get_backend(self.group) == "gloo" else [posts]
        messages: list[Message] = []
        for batch in batches:
            try:
                works = dist.batch_isend_irecv(batch)
            except RuntimeError as error:
                raise self._lost(batch[0].group_peer, error) from error
            # A backend may combine all of them into one.
            messages += [
                Message(works[min(i, len(works) - 1)], post.group_peer, post.tensor) for i, post in enumerate(batch)
            ]
        return messages

    def wait(self, messages: Iterable[Message]) -> None:
        """Wait until all of them have arrived or were sent; an error that names the rank if one is not."""
        messages = list(messages)
        if not messages:
            return
        # Backends of devices wait on a stream of the calling thread.
        is_gloo = dist.get_backend(self.group) == "gloo"
        failure = self._watched_failure(messages) if is_gloo else self._first_failure(messages)
        if failure is not None:
            peer, error = failure
            raise self._lost(peer, error) from error

    def _first_failure(self, messages: Iterable[Message]) -> tuple[int, RuntimeError] | None:
        until = None if self.seconds is None else time.monotonic() + self.seconds
        for message in messages:
            try:
                if until is None:
                    message.work.wait()
                else:
                    message.work.wait(timedelta(seconds=max(until - time.monotonic(), 0.001)))
            except RuntimeError as error:
                return message.peer, error
        return None

    def _watched_failure(self, messages: list[Message]) -> tuple[int, RuntimeError] | None:
        """The same in a thread, beside which this one looks whether another rank has reported a loss.

        When a connection closes, gloo forgets messages that it has begun to write or to read: a wait for one ends at
        its deadline only, and nothing else ends it. The thread then sleeps until that deadline.
        """
        outcome: futures.Future[tuple[int, RuntimeError] | None] = futures.Future()

        def wait() -> None:
            try:
                outcome.set_result(self._first_failure(messages))
            except BaseException as error:  # noqa: BLE001 -- raised again where the outcome is asked for
                outcome.set_exception(error)

        threading.Thread(target=wait, daemon=True).start()
        while True:
            try:
                return outcome.result(_MOMENT)
            except futures.TimeoutError:
                if self._loss_is_reported():
                    raise self._stop("another rank was lost", messages[0].peer, secondary=True) from None

    def _loss_is_reported(self) -> bool:
        try:
            return bool(self._store().check([_KEY]))
        except RuntimeError:  # a store that died with its rank reports nothing
            return False

    def meet(self, note: dict[str, Any]) -> list[dict[str, Any]]:
        """Exchange a short note with every rank: the notes of all, by rank, `number` added to each."""
        _meetings[self.group.group_name] += 1
        note = note | {"number": _meetings[self.group.group_name]}
        if self.size == 1:
            return [note]
        text = json.dumps(note).encode()
        if len(text) > _NOTE:  # pragma: no cover -- notes hold digests and cut texts
            raise AssertionError(f"a note of {len(text)} bytes")
        texts = self._exchange_text(text, WORDS)
        texts[self.rank] = text
        return [json.loads(texts[rank]) for rank in range(self.size)]

    def part(self) -> None:
        """Wait until every rank has come this far, so that no rank uses a result while another has none."""
        if self.size > 1:
            self._exchange_text(b"done", DONE)

    @contextmanager
    def together(self) -> Iterator[None]:
        """An error that stops this rank inside the block stops all others, with the reason."""
        try:
            yield
        except RankError:
            raise
        except BaseException as error:
            reason = f"rank {self.rank} stopped with {type(error).__name__}: {str(error)[:500]}"
            self._stop(reason, self.rank, secondary=False)
            raise

    def exchange(self, ours: Tensor, theirs: dict[int, Tensor], tag: int) -> None:
        """Send a tensor to every other rank, and receive one from each."""
        operations = [(dist.isend, ours, peer, tag) for peer in self.others]
        operations += [(dist.irecv, theirs[peer], peer, tag) for peer in self.others]
        self.wait(reversed(self.post(*operations)))  # receive first: that error names the missing rank

    def _exchange_text(self, text: bytes, tag: int) -> dict[int, bytes]:
        padded = text.ljust(8 if len(text) <= 8 else _NOTE)
        ours = torch.frombuffer(bytearray(padded), dtype=torch.uint8).to(self.device)
        theirs = {peer: torch.empty_like(ours) for peer in self.others}
        self.exchange(ours, theirs, tag)
        return {peer: bytes(tensor.cpu().numpy()).rstrip() for peer, tensor in theirs.items()}

    def _lost(self, peer: int, error: RuntimeError) -> RootdkError:
        silent = "Timed out" in str(error) or "timed out" in str(error)
        seconds = "the group's timeout" if self.seconds is None else f"{self.seconds:g} s"
        reason = (
            f"rank {peer} did not answer rank {self.rank} within {seconds}"
            if silent
            else f"rank {peer} has closed its connection to rank {self.rank}: it died, or it was stopped"
        )
        return self._stop(reason, peer, secondary=not silent)

    def _stop(self, reason: str, blamed: int, secondary: bool) -> RankError:
        """The error to raise. The other ranks are notified, so that none of them goes on waiting.

        blamed      which rank is the cause, as far as this one can tell
        secondary   whether this may be the consequence of what another rank noticed before
        """
        cause: dict[str, Any] = {"rank": blamed, "reason": reason}
        try:
            cause = self._common_cause(cause, _MOMENT if secondary else 0.0)
        except Exception:  # noqa: BLE001 -- whatever a store says that died with the rank that holds it
            # Then a rank that died looks the same as one that was stopped by the death of another.
            if secondary and blamed != 0:
                cause = {"rank": None, "reason": f"{reason}; the store is gone too: it lives on rank 0"}
        self._wake_others()
        stopped = f"rank {self.rank} has stopped, nothing of this call is used, and the group cannot be used again"
        return RankError(f"{cause['reason']}; {stopped}", cause["rank"])

    def _common_cause(self, cause: dict[str, Any], patience: float) -> Any:
        """The reason that another rank writes in this time, else our own if no other is faster: all report the same."""
        store = self._store()
        until = time.monotonic() + patience
        while not store.check([_KEY]):
            if time.monotonic() >= until:
                return json.loads(store.compare_set(_KEY, "", json.dumps(cause)))
            time.sleep(0.02)
        return json.loads(store.get(_KEY))

    def _store(self) -> Any:
        if hasattr(self.group, "get_group_store"):
            return self.group.get_group_store()
        return dist.distributed_c10d._get_process_group_store(self.group)  # noqa: SLF001 -- the only way before torch 2.8

    def _wake_others(self) -> None:
        """Make every wait of the other ranks for this one fail now and not at its deadline.

        gloo has no call for that (`abort` ends neither a wait here nor one over there). A wait past its deadline does
        it as a side effect, on all connections of the process: so this waits a millisecond for a message that never
        comes. Groups of other backends end by their own watchdogs.
        """
        if dist.get_backend(self.group) != "gloo":
            return
        for peer in self.others:
            try:
                never = dist.irecv(torch.empty(1), group=self.group, group_src=peer, tag=_NEVER)
                never.wait(timedelta(milliseconds=1))
            except RuntimeError as error:
                if "Timed out" in str(error):
                    return  # a connection that was closed before closes no others; this one was open


def _seconds(timeout: Any) -> float | None:
    if timeout is None:
        return None
    number = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    seconds = real("timeout", number, "a number of seconds, a timedelta or None")
    if not (seconds >= 0.001 and math.isfinite(seconds)):
        raise ArgumentError(f"timeout: must be at least 0.001 seconds, got {timeout!r}")
    return seconds


def agree(peers: Peers, note: dict[str, Any], wrong: RootdkError | None = None) -> list[dict[str, Any]]:
    """The notes of all ranks, if they agree; else an error, the same on every rank.

    wrong   the error in this rank's own arguments, if any: the others receive it, and refuse too
    """
    if wrong is not None:
        why = str(wrong)[:1500]
        while len(json.dumps(why)) > _NOTE - 200:  # a character outside ASCII takes up to twelve bytes
            why = why[:-50]
        note = {"refused": type(wrong).__name__, "why": why}
    notes = peers.meet(note)
    for rank, theirs in enumerate(notes):
        if "refused" in theirs:
            kind = ArgumentTypeError if theirs["refused"] == "ArgumentTypeError" else ArgumentError
            raise kind(theirs["why"] if peers.size == 1 else f"{theirs['why']} (on rank {rank})") from wrong
    for name in ("call", "number", *note):
        answers = [_comparable(name, theirs.get(name)) for theirs in notes]
        if any(answer != answers[0] for answer in answers):
            raise ArgumentError(f"{name}: {_EXPECTED.get(name, 'must be the same on every rank')}, got {_who(answers)}")
    return notes


def digest(option: Any) -> Any:
    """An option as a note can carry it: numbers and names as they are, arrays by their shape and a hash.

    >>> digest(True), digest("dk"), digest(0.125)
    (True, 'dk', 0.125)
    >>> digest(np.array([3, 5]))
    'int64 (2,) #a9928084'
    """
    if option is None or isinstance(option, (bool, float)):
        return option
    if isinstance(option, (int, str)):
        return option if len(str(option)) <= 60 else _short(str(option))
    if isinstance(option, ScaleRule):
        # With the rule's values too: two rules may have one name and different parameters.
        return _short(f"the rule {option.name} ({option.factor(64, 1024, np.arange(4)[:, None])!r})")
    if isinstance(option, Tensor):
        option = option.detach().cpu()
        option = option.numpy() if option.dtype.itemsize != 2 else option.float().numpy()
    if isinstance(option, (np.ndarray, np.generic, list, tuple)):
        array = np.asarray(option)
        if array.dtype != object:
            content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:8]
            return f"{array.dtype} {array.shape} #{content}"
    return _short(repr(option))


def _short(text: str) -> str:
    """The beginning of a long text, and a hash of all of it: notes are short."""
    return text if len(text) <= 60 else f"{text[:40]}... #{hashlib.sha256(text.encode()).hexdigest()[:8]}"


_EXPECTED = {
    "call": "every rank must make the same calls in the same order",
    "number": "every rank must have made the same number of calls",
    **dict.fromkeys(_SHARDED, "must have the same shape on every rank, but for its number of rows"),
}


def _comparable(name: str, answer: Any) -> Any:
    """A shape without its number of rows, anything else as it is."""
    axis = _SHARDED.get(name)
    if axis is None or not isinstance(answer, list):
        return answer
    place = axis % len(answer)
    return [*answer[:place], "n", *answer[place + 1 :]]


def _who(answers: list[Any]) -> str:
    """Each answer with the ranks that gave it, the most frequent first.

    >>> _who([True, True, False, True])
    'True on ranks 0, 1, 3 and False on rank 2'
    """
    ranks: dict[str, list[int]] = {}
    for rank, answer in enumerate(answers):
        text = "(" + ", ".join(map(str, answer)) + ")" if isinstance(answer, list) else repr(answer)
        ranks.setdefault(text, []).append(rank)
    ordered = sorted(ranks.items(), key=lambda item: (-len(item[1]), item[1]))
    return " and ".join(f"{text} on rank{'s' * (len(at) > 1)} {', '.join(map(str, at))}" for text, at in ordered)
