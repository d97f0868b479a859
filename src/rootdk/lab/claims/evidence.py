"""One number of evidence: what was found, how sure it is, what the claim makes of it, and whether the two agree."""

import math
from dataclasses import dataclass, fields
from typing import Any

from rootdk._views import expect_fields
from rootdk.errors import ArgumentError

# A ledger makes some forty comparisons with chance in them, and their errors are estimated from 32 groups. At 4
# standard errors one seed in eighty would raise a false alarm, at 5 one in a thousand. Training runs have 3 to 5 seeds,
# and an error that is estimated from so few is unsure itself: there 5 of them are one chance in twenty to a hundred.
CLEAR = 5.0

DECIDES, LIMITS, SHOWN = "decides", "limits", "shown"
_ROLES = (DECIDES, LIMITS, SHOWN)
_RELATIONS = ("=", "<", ">", "")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A number and what the claim makes of it.

    name        what the number is
    value       what was found
    error       its standard error; None is exact: computed, or the largest of what was seen, and no estimate
    relation    "=", "<" or ">" and `target`: what the claim says of it; "" if it says nothing
    slack       how far apart two equal numbers may be: half of the last printed digit, or a bound on rounding
    role        "decides": without it the claim is false. "limits": where this disagrees, the claim holds under a
                condition only. "shown": for the reader
    otherwise   what its disagreement means, in words
    choice      why the target is where it is, if the claim leaves that open ("extremely small", "nearly all"): then
                the number is ours, and another one may be put in its place

    >>> Evidence("e", 2.71828, "=", 2.718, slack=5e-4).agrees
    True
    >>> Evidence("share", 0.52, ">", 0.5, error=0.01).agrees      # not clearly above
    False
    """

    name: str
    value: float
    relation: str = ""
    target: float = 0.0
    error: float | None = None
    slack: float = 0.0
    role: str = DECIDES
    otherwise: str = ""
    choice: str = ""

    def __post_init__(self) -> None:
        if self.relation not in _RELATIONS:
            raise ArgumentError(f"relation: must be one of '=', '<', '>' and '', got {self.relation!r}")
        if self.role not in _ROLES:
            raise ArgumentError(f"role: must be one of {', '.join(map(repr, _ROLES))}, got {self.role!r}")
        if not self.relation and self.role != SHOWN:
            raise ArgumentError(f"relation: must be given for evidence that {self.role}, got none for {self.name!r}")

    @property
    def agrees(self) -> bool:
        """Whether the number is as the claim says: equal up to slack and chance, or beyond the target in spite of both.

        NaN never agrees.
        """
        unsure = CLEAR * (self.error or 0.0)
        if self.relation == "=":
            return abs(self.value - self.target) <= self.slack + unsure
        if self.relation == "<":
            return self.value + unsure < self.target
        if self.relation == ">":
            return self.value - unsure > self.target
        return True

    @property
    def objection(self) -> str:
        """What is to be said where it disagrees."""
        return self.otherwise or f"{self.name} is {number(self.value)}, not {self.relation} {number(self.target)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, ready for JSON, which has no NaN and no infinity: these become words."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(x) if isinstance(x, float) and not math.isfinite(x) else x for name, x in plain.items()} | {
            "agrees": self.agrees
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Evidence":
        """The evidence that `to_dict` was called on."""
        expect_fields(data, [field.name for field in fields(cls)], "evidence")
        plain = {field.name: data[field.name] for field in fields(cls)}
        for name in ("value", "target", "slack"):
            plain[name] = float(plain[name])
        plain["error"] = None if plain["error"] is None else float(plain["error"])
        return cls(**plain)


def number(x: float) -> str:
    """Four digits, and all that stand before the point of numbers up to a million.

    >>> number(0.123456), number(4096.0), number(5.1847055e21)
    ('0.1235', '4096', '5.185e+21')
    """
    whole = math.isfinite(x) and (abs(x) >= 1e4 or x == int(x)) and abs(x) < 1e6
    return f"{x:.0f}" if whole else f"{x:.4g}"
