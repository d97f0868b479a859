"""What a run of the bench is: the sections, how many threads, who takes part, how much time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rootdk.bench.peers.peer import Peer

SECTIONS = (
    "forward", "measure", "backward", "half", "decode", "options", "tiny", "beside", "watch", "ring", "explorer",
    "import", "memory",
)  # fmt: skip


class Step(NamedTuple):
    """One piece of work: under which key of the report its result goes, what the progress bar says, the work itself."""

    key: str
    label: str
    run: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """What every section is told."""

    sections: frozenset[str]
    peers: Sequence[Peer]
    threads: int
    quick: bool

    @property
    def torch(self) -> bool:
        """Whether torch takes part."""
        return any(peer.name == "torch" for peer in self.peers)

    def seconds(self, full: float, quick: float = 0.3) -> float:
        """How long one race may take."""
        return quick if self.quick else full
