"""What an experiment is: spec -> run -> result, with its sizes, its words and its pictures, all in one file.

A file registers its experiment when it is loaded, and loading `rootdk.lab.checks` loads all files of the folder.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rootdk.errors import ArgumentError, ArgumentTypeError
from rootdk.lab.drawing import Picture
from rootdk.scaling import rule
from rootdk.theory._arguments import count, numbers

from .result import Result

if TYPE_CHECKING:
    from .cache import Cache

Progress = Callable[[float], None]
NamedProgress = Callable[[str, float], None]
SIZES = ("quick", "default", "full")


@dataclass(frozen=True, slots=True)
class Experiment:
    """One way to ask.

    name, place    what it is called, and its place in the report: experiments are sorted by it
    question       what it answers
    spec           the class of its specs; the default spec is that of the default size
    run            run(spec, progress) gives the Result and calls progress with the share that is done
    seconds        about how long the default size takes on one core
    heading, text, formula   what the report says around its figures; numbers come from results
    pictures       pictures(result): what the report shows
    quick, full    fields of the spec that are other than the default at these sizes
    asked          asked(size, d_k, keys, rules): fields that follow from what the user asked for
    """

    name: str
    place: int
    question: str
    spec: Any
    run: Callable[[Any, Progress], Result]
    seconds: float
    heading: str
    text: str
    pictures: Callable[[Result], Sequence[Picture]]
    formula: str = ""
    quick: Mapping[str, Any] = field(default_factory=dict)
    full: Mapping[str, Any] = field(default_factory=dict)
    asked: Callable[[str, Sequence[int], int, Sequence[str]], Mapping[str, Any]] = lambda *_asked: {}


_registered: dict[str, Experiment] = {}
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(_registered)


def register(experiment: Experiment) -> Experiment:
    """Take up an experiment, in its place."""
    if experiment.name in _registered:
        raise ArgumentError(f"name: must be free, got {experiment.name!r} a second time")
    _registered[experiment.name] = experiment
    ordered = sorted(_registered.items(), key=lambda item: item[1].place)
    _registered.clear()
    _registered.update(ordered)
    return experiment


def name_of(spec: Any) -> str:
    """The experiment that a spec belongs to.

    >>> name_of(EXPERIMENTS["length"].spec())
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


def plan(
    size: str = "default",
    *,
    d_k: Sequence[int] = (64, 512),
    keys: int = 1024,
    rules: Sequence[str] = ("none", "sqrt", "dk"),
    seed: int = 0,
) -> list[Any]:
    """The specs of all experiments: quick to see that it works, default for a person who waits, full for the record.

    d_k, keys and rules set the comparison of rules; what the others ask does not depend on them.

    >>> [type(spec).__name__ for spec in plan("quick")][:2]
    ['VarianceSpec', 'ScoresSpec']
    """
    if size not in SIZES:
        raise ArgumentError(f"size: must be one of {', '.join(map(repr, SIZES))}, got {size!r}")
    specs = []
    for experiment in EXPERIMENTS.values():
        changes = {"quick": experiment.quick, "default": {}, "full": experiment.full}[size]
        specs.append(experiment.spec(seed=seed, **experiment.asked(size, d_k, keys, rules), **changes))
    return specs


def run(spec: Any, *, cache: "Cache | None" = None, progress: NamedProgress = lambda _name, _share: None) -> Result:
    """Run one experiment, or take its result out of the cache.

    progress is called with the experiment's name and the share that is done, from 0 to 1. The same spec gives the same
    numbers; seconds is how long the run took that made them.

    >>> result = run(EXPERIMENTS["variance"].spec(d_k=(16,), laws=("sign",), rows=1000))
    >>> [one.quantity for one in result.comparisons], result.comparisons[1].predicted
    (['score mean', 'score variance'], 16.0)
    """
    name = name_of(spec)
    progress(name, 0.0)
    result = cache.get(spec) if cache else None
    if result is None:
        start = time.perf_counter()
        result = EXPERIMENTS[name].run(spec, lambda share: progress(name, share))
        result = replace(result, seconds=round(time.perf_counter() - start, 3))
        if cache:
            cache.put(spec, result)
    progress(name, 1.0)
    return result


def run_all(
    specs: Iterable[Any], *, cache: "Cache | None" = None, progress: NamedProgress = lambda _name, _share: None
) -> list[Result]:
    """`run` one after the other: the operator uses all cores by itself."""
    return [run(spec, cache=cache, progress=progress) for spec in specs]


# What a spec may hold. Each checks its own fields when it is made, so that a bad one never starts.


def check_counts(argument: str, given: Any, least: int, most: int) -> tuple[int, ...]:
    """Whole numbers, at least one of them."""
    return tuple(count(argument, entry, least, most) for entry in _several(argument, given))


def check_positive(argument: str, given: Any) -> tuple[float, ...]:
    """Finite numbers above 0."""
    return tuple(float(numbers(argument, entry, above=0.0)) for entry in _several(argument, given))


def check_names(argument: str, given: Any, known: Any) -> tuple[str, ...]:
    """Names out of a list."""
    for name in _several(argument, given):
        if name not in known:
            raise ArgumentError(f"{argument}: must be some of {', '.join(map(repr, known))}, got {name!r}")
    return tuple(given)


def check_rules(given: Any) -> tuple[str, ...]:
    """Names of scale rules for q and k as they are."""
    for name in _several("rules", given):
        rule(name)
    return tuple(given)


def check_seed(given: Any) -> int:
    """A seed of the random numbers."""
    return count("seed", given, 0, 2**63 - 1)


def _several(argument: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, (tuple, list)):
        raise ArgumentTypeError(f"{argument}: must be a tuple, got {given!r}")
    if not given:
        raise ArgumentError(f"{argument}: must hold at least one entry, got none")
    return tuple(given)
