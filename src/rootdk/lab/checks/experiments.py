"""The experiments by name: spec, function, and the question that each answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rootdk.errors import ArgumentError, ArgumentTypeError

from . import formats, gradient, length, premises, rules, scores, sharpness, variance
from .result import Result
from .sampling import Tell


@dataclass(frozen=True, slots=True)
class Experiment:
    """One way to ask; `function(spec, tell)` runs it and calls tell with the share that is done."""

    spec: Any
    function: Callable[[Any, Tell], Result]
    question: str


EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        "variance": Experiment(variance.VarianceSpec, variance.run, "Is the variance of a score d_k?"),
        "scores": Experiment(scores.ScoresSpec, scores.run, "What law does a score follow?"),
        "sharpness": Experiment(sharpness.SharpnessSpec, sharpness.run, "How sharp is a softmax of wide logits?"),
        "gradient": Experiment(gradient.GradientSpec, gradient.run, "What of the gradient gets through?"),
        "rules": Experiment(rules.RulesSpec, rules.run, "What does each scale rule do?"),
        "length": Experiment(length.LengthSpec, length.run, "What happens in longer rows?"),
        "formats": Experiment(formats.FormatsSpec, formats.run, "What does rounding do to small scores?"),
        "premises": Experiment(premises.PremisesSpec, premises.run, "What if the premise is wrong?"),
    }
)


def name_of(spec: Any) -> str:
    """The experiment that a spec belongs to.

    >>> name_of(length.LengthSpec())
    'length'
    """
    for name, experiment in EXPERIMENTS.items():
        if type(spec) is experiment.spec:
            return name
    raise ArgumentTypeError(f"spec: must be the spec of an experiment, got {type(spec).__name__}")


def spec_from_dict(name: str, fields: Mapping[str, Any]) -> Any:
    """The spec that `dataclasses.asdict` was called on, also after JSON has made lists of its tuples.

    >>> spec_from_dict("length", {"measured": [16, 32]}).measured
    (16, 32)
    """
    if name not in EXPERIMENTS:
        raise ArgumentError(f"name: must be one of {', '.join(map(repr, EXPERIMENTS))}, got {name!r}")
    if not isinstance(fields, Mapping):
        raise ArgumentTypeError(f"fields: must be a mapping, got {type(fields).__name__}")
    kind = EXPERIMENTS[name].spec
    unknown = set(fields) - set(kind.__dataclass_fields__)
    if unknown:
        raise ArgumentError(f"fields: must be fields of {kind.__name__}, got {', '.join(sorted(map(repr, unknown)))}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})
