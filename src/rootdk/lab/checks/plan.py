"""Which experiments at which size: quick to see that it works, default for a person who waits, full for the record."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rootdk.errors import ArgumentError

from .formats import FormatsSpec
from .gradient import GradientSpec
from .length import LengthSpec
from .premises import PremisesSpec
from .rules import RulesSpec
from .scores import ScoresSpec
from .sharpness import SharpnessSpec
from .variance import VarianceSpec

SIZES = ("quick", "default", "full")


def plan(
    size: str = "default",
    *,
    d_k: Sequence[int] = (64, 512),
    keys: int = 1024,
    rules: Sequence[str] = ("none", "sqrt", "dk"),
    seed: int = 0,
) -> list[Any]:
    """The specs of all experiments, in the order of the report.

    d_k, keys and rules set the comparison of rules; what the others ask does not depend on them.

    >>> [type(spec).__name__ for spec in plan("quick")][:2]
    ['VarianceSpec', 'ScoresSpec']
    """
    if size not in SIZES:
        raise ArgumentError(f"size: must be one of {', '.join(map(repr, SIZES))}, got {size!r}")
    # Fewer groups where one is large, so that the time stays in bounds; the standard errors tell the price.
    groups = max(16, min(64, 64_000_000 // (keys * sum(d_k))))
    rule_spec = RulesSpec(
        d_k=tuple(dict.fromkeys(d_k)), keys=keys, rules=tuple(dict.fromkeys(rules)), groups=groups, seed=seed
    )
    specs = {
        "default": [
            VarianceSpec(seed=seed),
            ScoresSpec(seed=seed),
            SharpnessSpec(seed=seed),
            GradientSpec(seed=seed),
            rule_spec,
            LengthSpec(seed=seed),
            FormatsSpec(seed=seed),
            PremisesSpec(seed=seed),
        ],
        "quick": [
            VarianceSpec(d_k=(4, 64, 256), rows=4000, seed=seed),
            ScoresSpec(groups=30, seed=seed),
            SharpnessSpec(rows=1000, sigma=(0.125, 1.0, 8.0), computed=(2.0, 4.0), seed=seed),
            GradientSpec(jacobians=500, d_k=(16, 64), groups=32, seed=seed),
            replace(rule_spec, curve=(16, 64, 256), groups=max(16, groups // 2), rows=16),
            LengthSpec(measured=(16, 256, 4096), computed=(10**6, 10**9), seed=seed),
            FormatsSpec(rows=20_000, seed=seed),
            PremisesSpec(groups=200, seed=seed),
        ],
        "full": [
            VarianceSpec(d_k=(1, 4, 16, 64, 256, 1024, 4096), laws=(*VarianceSpec().laws, "student_t"), seed=seed),
            ScoresSpec(d_k=(4, 16, 64, 512), groups=1000, seed=seed),
            SharpnessSpec(sigma=(0.125, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0), seed=seed),
            GradientSpec(jacobians=20_000, d_k=(16, 64, 256, 512), keys=512, groups=128, rows=160, seed=seed),
            replace(rule_spec, curve=(4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048), groups=2 * groups, rows=160),
            LengthSpec(measured=(16, 64, 256, 1024, 4096, 16_384, 100_000), groups=64, seed=seed),
            FormatsSpec(rows=2_000_000, seed=seed),
            PremisesSpec(correlation=(0.02, 0.1, 0.5), groups=5000, seed=seed),
        ],
    }
    return specs[size]
