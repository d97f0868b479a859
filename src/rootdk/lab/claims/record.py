"""What came of checking one claim. The verdict is computed from the evidence and stored nowhere.

no evidence that decides or limits       not checked
some deciding evidence disagrees         does not hold
else some limiting evidence disagrees    holds under a condition
else                                     holds
"""

import json
from dataclasses import dataclass
from typing import Any

from rootdk._views import expect_fields, expect_kind
from rootdk.errors import ArgumentError

from .evidence import DECIDES, SHOWN, Evidence

HOLDS, CONDITIONAL, FAILS, OPEN = "holds", "holds under a condition", "does not hold", "not checked"
VERDICTS = (HOLDS, CONDITIONAL, FAILS, OPEN)
_KIND = "rootdk.lab.claims.Record"
_TEXTS = ("statement", "source", "method")


@dataclass(frozen=True, slots=True)
class Record:
    """One claim, checked.

    >>> seen = (Evidence("q.k", 1.0, "=", 1.0), Evidence("entropy lost", 0.19, "<", 0.05, role="limits"))
    >>> record = Record(9, "...", "...", "...", seen)
    >>> record.verdict, record.condition
    ('holds under a condition', 'entropy lost is 0.19, not < 0.05')
    """

    id: int
    statement: str
    source: str
    method: str
    evidence: tuple[Evidence, ...]

    @property
    def verdict(self) -> str:
        """One of VERDICTS."""
        against = {one.role for one in self.evidence if not one.agrees} - {SHOWN}
        if all(one.role == SHOWN for one in self.evidence):
            return OPEN
        if not against:
            return HOLDS
        return FAILS if DECIDES in against else CONDITIONAL

    @property
    def condition(self) -> str:
        """In words: under which condition it holds, or what speaks against it. Empty where it simply holds."""
        roles = {FAILS: (DECIDES,), CONDITIONAL: ("limits",)}.get(self.verdict, ())
        words = [one.objection for one in self.evidence if one.role in roles and not one.agrees]
        return "; ".join(dict.fromkeys(words))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON. The verdict is written for the reader; `from_dict` computes it again."""
        return {
            "kind": _KIND,
            "id": self.id,
            **{name: getattr(self, name) for name in _TEXTS},
            "verdict": self.verdict,
            "condition": self.condition,
            "evidence": [one.to_dict() for one in self.evidence],
        }

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Record":
        """The record that `to_dict` was called on. A verdict that the evidence does not give is an error."""
        expect_kind(data, _KIND)
        expect_fields(data, ("id", *_TEXTS, "verdict", "evidence"))
        evidence = tuple(Evidence.from_dict(one) for one in data["evidence"])
        statement, source, method = (str(data[name]) for name in _TEXTS)
        record = cls(int(data["id"]), statement, source, method, evidence)
        if data["verdict"] != record.verdict:
            raise ArgumentError(f"verdict: must be {record.verdict!r} by the evidence, got {data['verdict']!r}")
        return record
