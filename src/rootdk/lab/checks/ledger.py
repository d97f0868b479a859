"""Claims, each with its check, and the ledger of all of them. A verdict is computed from evidence and stored nowhere.

nothing that decides or limits               not checked
something that decides disagrees             does not hold; or not reproduced here, if the claim is about other models
else something that decides is unsure        undecided
else something that limits does not agree    holds under a condition
else                                         holds

Noise makes numbers undecided, and undecided numbers agree with nothing: it can lead to "undecided", never to "holds".
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rootdk.errors import ArgumentError
from rootdk.rendering import expect_fields, expect_kind

from .comparison import AGREES, DECIDES, DISAGREES, LIMITS, SHOWN, Comparison
from .comparison import UNDECIDED as UNSURE
from .sampler import Sampling

# A source names title, place and link of what it quotes, or says that nobody is quoted.
PAPER = "Vaswani et al. 2017, Attention Is All You Need, https://arxiv.org/abs/1706.03762"
COMMON = "many explanations of attention (common, unattributed)"

HOLDS, CONDITIONAL, FAILS = "holds", "holds under a condition", "does not hold"
NOT_REPRODUCED, UNDECIDED, OPEN = "not reproduced here", "undecided", "not checked"
VERDICTS = (HOLDS, CONDITIONAL, FAILS, NOT_REPRODUCED, UNDECIDED, OPEN)
_KIND = "rootdk.lab.checks.CheckedClaim"
_TEXTS = ("statement", "source", "method", "elsewhere")


@dataclass(frozen=True, slots=True)
class CheckedClaim:
    """The result of checking one claim. `elsewhere` says what it is about, if that is not run here.

    >>> evidence = (Comparison("q.k", 1.0, "=", 1.0), Comparison("entropy lost", 0.19, "<", 0.05, role="limits"))
    >>> checked = CheckedClaim(9, "...", "...", "...", evidence)
    >>> checked.verdict, checked.condition
    ('holds under a condition', 'entropy lost is 0.19, not < 0.05')
    """

    id: int
    statement: str
    source: str
    method: str
    evidence: tuple[Comparison, ...]
    elsewhere: str = ""

    @property
    def verdict(self) -> str:
        """One of VERDICTS."""
        states = {(comparison.role, comparison.state) for comparison in self.evidence if comparison.role != SHOWN}
        if not states:
            return OPEN
        if (DECIDES, DISAGREES) in states:
            return NOT_REPRODUCED if self.elsewhere else FAILS
        if (DECIDES, UNSURE) in states:
            return UNDECIDED
        return HOLDS if all(state == AGREES for _, state in states) else CONDITIONAL

    @property
    def condition(self) -> str:
        """In words: under which condition it holds, or what speaks against it. Empty where it simply holds."""
        role = LIMITS if self.verdict == CONDITIONAL else DECIDES
        words = [
            comparison.objection for comparison in self.evidence if comparison.role == role and not comparison.agrees
        ]
        text = "; ".join(dict.fromkeys(words))
        return f"{text}. It is said of {self.elsewhere}" if self.verdict == NOT_REPRODUCED else text

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON. The verdict is written for the reader; `from_dict` computes it again."""
        return {
            "kind": _KIND,
            "id": self.id,
            **{name: getattr(self, name) for name in _TEXTS if getattr(self, name)},
            "verdict": self.verdict,
            "condition": self.condition,
            "evidence": [comparison.to_dict() for comparison in self.evidence],
        }

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CheckedClaim":
        """The claim that `to_dict` was called on. A verdict that the evidence does not give is an error."""
        expect_kind(data, _KIND)
        expect_fields(data, ("id", "statement", "source", "method", "verdict", "evidence"))
        evidence = tuple(Comparison.from_dict(entry, "evidence") for entry in data["evidence"])
        checked = cls(id=int(data["id"]), evidence=evidence, **{name: str(data.get(name, "")) for name in _TEXTS})
        if data["verdict"] != checked.verdict:
            raise ArgumentError(f"verdict: must be {checked.verdict!r} by the evidence, got {data['verdict']!r}")
        return checked


Check = Callable[..., Iterable[Comparison]]


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement, its source, and the code that checks it.

    gather is called as gather(sampling, **inputs); None if there is no check yet. All that it uses of the claim
    (printed figures, rules, formulas, laws) is an input with a default, so that another input can lead to another
    verdict. title is the statement in so few words that two fit on a line. elsewhere is for a finding that cannot be
    repeated on a small machine, such as training runs of large models, and says what it is about: evidence against it
    is then "not reproduced here".

    >>> from rootdk.lab.checks import LEDGER
    >>> LEDGER[12].title
    '1/d_k makes weights alike'
    """

    id: int
    statement: str
    source: str
    method: str
    gather: Check | None = None
    title: str = ""
    elsewhere: str = ""

    def check(self, sampling: Sampling | None = None, **inputs: Any) -> CheckedClaim:
        """Run the check: the evidence, and with it the verdict."""
        evidence = () if self.gather is None else tuple(self.gather(sampling or Sampling(), **inputs))
        return CheckedClaim(self.id, self.statement, self.source, self.method, evidence, self.elsewhere)


class Ledger:
    """Claims by number.

    >>> ledger = Ledger()
    >>> ledger.add(Claim(1, "The scores have variance 1.", "nowhere", "comes later"))
    >>> ledger[1].check().verdict
    'not checked'
    >>> @ledger.claim(1, statement="The scores have variance 1.", source="nowhere", method="by definition")
    ... def variance(sampling):
    ...     yield Comparison("variance", 1.0, "=", 1.0)
    >>> ledger[1].check().verdict
    'holds'
    """

    def __init__(self) -> None:
        self._claims: dict[int, Claim] = {}

    def claim(
        self, number: int, *, statement: str, source: str, method: str, title: str = "", elsewhere: str = ""
    ) -> Callable[[Check], Claim]:
        """Make a claim of the decorated function, which gathers its evidence, and add it."""

        def take_up(gather: Check) -> Claim:
            claim = Claim(number, statement, source, method, gather, title, elsewhere)
            self.add(claim)
            return claim

        return take_up

    def add(self, *claims: Claim) -> None:
        """Add claims. A number that a claim with a check already has is refused."""
        for new in claims:
            known = self._claims.get(new.id)
            if known is not None and known.gather is not None:
                raise ArgumentError(f"claims: must have numbers that are free, got {new.id} a second time")
            self._claims[new.id] = new

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

    def check(self, ids: Sequence[int] | None = None, sampling: Sampling | None = None) -> Iterator[CheckedClaim]:
        """Check these claims, or all, one after the other."""
        chosen = [self[number] for number in dict.fromkeys(self.ids if ids is None else ids)]
        return (claim.check(sampling) for claim in chosen)


LEDGER = Ledger()


def spans(ids: Sequence[int]) -> str:
    """Numbers in order, with consecutive ones as a range.

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
