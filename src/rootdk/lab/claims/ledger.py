"""A claim with its check, and the list of all claims.

A claim of another module joins by `LEDGER.add(...)`; it takes the place of one that has no check yet:

    @claim(16, statement=..., source=..., method=...)
    def learning_slows(setting, runs=...):
        return [Evidence(...), ...]

    LEDGER.add(learning_slows)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rootdk.errors import ArgumentError, ArgumentTypeError

from .evidence import Evidence
from .record import Record

PAPER = "Vaswani et al. 2017"
LATER = "a later explanation"


@dataclass(frozen=True, slots=True)
class Setting:
    """How much is drawn, and from which seed. `rows` are query rows per measured setting, in groups of 64.

    1024 rows make a quick look, 20,000 a thorough one. With fewer than 16 groups standard errors would be guesses.
    """

    rows: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (("rows", 1024, 1_000_000), ("seed", 0, 2**63 - 1)):
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int):
                raise ArgumentTypeError(f"{name}: must be an int, got {given!r}")
            if not least <= given <= most:
                raise ArgumentError(f"{name}: must be from {least} to {most}, got {given}")


Check = Callable[..., Iterable[Evidence]]


@dataclass(frozen=True, slots=True)
class Claim:
    """What is said, where, and the code that checks it.

    gather is called as gather(setting, **inputs). Everything that it takes the claim by (printed figures, rules,
    formulas, laws) is an input with a default, so that another input can lead to another verdict. None: not yet.
    title is the statement in so few words that two fit a line.
    """

    id: int
    statement: str
    source: str
    method: str
    gather: Check | None = None
    title: str = ""

    def check(self, setting: Setting | None = None, **inputs: Any) -> Record:
        """Run the check: the evidence, and with it the verdict."""
        evidence = () if self.gather is None else tuple(self.gather(setting or Setting(), **inputs))
        return Record(self.id, self.statement, self.source, self.method, evidence)


def claim(number: int, *, statement: str, source: str, method: str, title: str = "") -> Callable[[Check], Claim]:
    """Make a Claim of the function below, which gathers its evidence."""

    def of(gather: Check) -> Claim:
        return Claim(number, statement, source, method, gather, title)

    return of


class Ledger:
    """Claims by number.

    >>> ledger = Ledger()
    >>> ledger.add(Claim(1, "The scores have variance 1.", "nowhere", "comes later"))
    >>> ledger[1].check().verdict
    'not checked'
    >>> one = claim(1, statement="The scores have variance 1.", source="nowhere", method="by definition")
    >>> ledger.add(one(lambda setting: [Evidence("variance", 1.0, "=", 1.0)]))
    >>> ledger[1].check().verdict
    'holds'
    """

    def __init__(self) -> None:
        self._claims: dict[int, Claim] = {}

    def add(self, *claims: Claim) -> None:
        """Take up claims. A number that is taken by a claim with a check is refused."""
        for one in claims:
            known = self._claims.get(one.id)
            if known is not None and known.gather is not None:
                raise ArgumentError(f"claims: must have numbers that are free, got {one.id} a second time")
            self._claims[one.id] = one

    @property
    def ids(self) -> list[int]:
        """All numbers, in order."""
        return sorted(self._claims)

    def __iter__(self) -> Iterator[Claim]:
        return (self._claims[number] for number in self.ids)

    def __len__(self) -> int:
        return len(self._claims)

    def __getitem__(self, number: int) -> Claim:
        if number not in self._claims:
            raise ArgumentError(f"id: must be one of {spans(self.ids)}, got {number!r}")
        return self._claims[number]

    def check(self, ids: Sequence[int] | None = None, setting: Setting | None = None) -> Iterator[Record]:
        """The records of these claims, or of all, one after the other as they are checked."""
        chosen = [self[number] for number in dict.fromkeys(self.ids if ids is None else ids)]
        return (one.check(setting) for one in chosen)


def spans(ids: Sequence[int]) -> str:
    """Numbers in order, runs of them as one.

    >>> spans([1, 2, 3, 7])
    '1-3, 7'
    """
    runs: list[list[int]] = []
    for number in ids:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "no numbers yet"
