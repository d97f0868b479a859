"""What happens when a rank is lost: every other rank stops, and all of them give the same reason.

The reason is written to the store of the group, once: whoever notices first says what happened, and the others read
it. Only where the store died with the rank that holds it (under torchrun none does) each says what it saw itself. Two
things make the others notice in time: a rank that times out or loses a connection wakes all ranks that it is connected
to, and whoever is woken by a closed connection waits a moment for the reason before it makes up its own.

How gloo shows a fault (2.13): a wait past its deadline raises "Timed out waiting ..." and closes every connection of
the group in that process; a process that dies or closes raises "Connection closed by peer" in those who have a message
under way with it, and in nobody else. So a group is of no use after a fault, with or without this module.
"""

import json
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import RankError

_KEY = "rootdk/lost"
# How long a rank waits for the reason of a closed connection. The one who closed it writes it at about the same time.
_MOMENT = 1.0
# A message that nobody sends.
_NEVER = 0x700D0FF


def lost(group: Any, rank: int, others: list[int], reason: str, blamed: int | None, secondary: bool) -> RankError:
    """The error to raise. Tells the other ranks, so that none of them goes on waiting.

    rank        this one
    blamed      which rank is the cause, as far as this one can tell
    secondary   whether this may be the consequence of what another rank noticed before
    """
    mine = {"rank": blamed, "reason": reason}
    try:
        known = _known_reason(group, _MOMENT if secondary else 0.0) or _tell(group, mine)
    except Exception:  # noqa: BLE001 -- whatever a store says that died with the rank that holds it
        # Then nobody can tell a rank that died from one that was stopped by the death of another.
        certain = not secondary or blamed == 0
        known = mine if certain else {"rank": None, "reason": f"{reason}; the store is gone too: it lives on rank 0"}
    wake(group, others)
    return RankError(
        f"{known['reason']}; rank {rank} has stopped, nothing of this call is used, and the group cannot be used again",
        known["rank"],
    )


def wake(group: Any, others: list[int]) -> None:
    """Make every wait of the other ranks for this one fail now and not at its deadline.

    gloo has no call for that (`abort` ends neither a wait here nor one over there). A wait past its deadline does it
    as a side effect, on all connections of the process: so this waits a millisecond for a message that never comes.
    Groups of other backends end by their own watchdogs.
    """
    if dist.get_backend(group) != "gloo":
        return
    for peer in others:
        try:
            dist.irecv(torch.empty(1), group=group, group_src=peer, tag=_NEVER).wait(timedelta(milliseconds=1))
        except RuntimeError as error:
            if "Timed out" in str(error):
                return  # a connection that was closed before closes no others; this one was open


def _known_reason(group: Any, patience: float) -> Any:
    """What another rank has written, if it does within that many seconds."""
    until, store = time.monotonic() + patience, _store(group)
    while not store.check([_KEY]):
        if time.monotonic() >= until:
            return None
        time.sleep(0.02)
    return json.loads(store.get(_KEY))


def _tell(group: Any, mine: dict[str, Any]) -> Any:
    """Write the reason, unless somebody was faster; what is written then is what all ranks say."""
    return json.loads(_store(group).compare_set(_KEY, "", json.dumps(mine)))


def _store(group: Any) -> Any:
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return dist.distributed_c10d._get_process_group_store(group)  # noqa: SLF001 -- the only way before torch 2.8
