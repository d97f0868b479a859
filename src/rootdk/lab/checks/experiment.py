"""What an experiment is: spec -> run -> result, with its sizes, its words and its pictures, all in one file."""

import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rootdk import version
from rootdk.errors import ArgumentError, ArgumentTypeError, RootdkError
from rootdk.files import cache_folder, read_json, write_atomically
from rootdk.lab.drawing import Picture
from rootdk.scaling import fingerprint, rule
from rootdk.theory._arguments import count, numbers

from .comparison import Comparison, Grid, Result, Series

Progress = Callable[[float], None]
NamedProgress = Callable[[str, float], None]
SIZES = ("quick", "default", "full")


@dataclass(frozen=True, slots=True)
class Experiment:
    """One question, and the run that answers it.

    name, place    what it is called, and its place in the report: experiments are sorted by it
    spec           the class of its specs; the default spec is that of the default size
    run            run(spec, progress) yields what it finds: comparisons, series and grids; it calls progress with the
                   share that is done
    seconds        about how long the default size takes on one core
    heading, text, formula   what the report says around its figures; numbers come from results
    pictures       pictures(result): what the report shows
    quick, full    fields of the spec that differ from the default at these sizes
    asked          asked(size, d_k, keys, rules): fields that follow from what the user asked for

    >>> EXPERIMENTS["rules"].heading
    'The scale rules side by side'
    """

    name: str
    place: int
    spec: Any
    run: Callable[[Any, Progress], Iterable[Comparison | Series | Grid]]
    seconds: float
    heading: str
    text: str
    pictures: Callable[[Result], Sequence[Picture]]
    formula: str = ""
    quick: Mapping[str, Any] = field(default_factory=dict)
    full: Mapping[str, Any] = field(default_factory=dict)
    asked: Callable[[str, Sequence[int], int, Sequence[str]], Mapping[str, Any]] = lambda *_asked: {}


EXPERIMENTS: dict[str, Experiment] = {}


def register(experiment: Experiment) -> Experiment:
    """Add it to EXPERIMENTS, in its place.

    >>> register(EXPERIMENTS["rules"])
    Traceback (most recent call last):
    rootdk.errors.ArgumentError: name: must be free, got 'rules' a second time
    """
    if experiment.name in EXPERIMENTS:
        raise ArgumentError(f"name: must be free, got {experiment.name!r} a second time")
    ordered = sorted([*EXPERIMENTS.values(), experiment], key=lambda each: each.place)
    EXPERIMENTS.clear()
    EXPERIMENTS.update({each.name: each for each in ordered})
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

    d_k, keys and rules set the comparison of rules; the other experiments do not depend on them.

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


class Cache:
    """Results in a folder, one JSON file each: the same spec run by the same code is not run twice.

    Files that cannot be read or written are skipped, with a `note`. A file is named by a hash of the experiment, the
    spec and every file of the installed package, so that a result of other code is never used. ROOTDK_CACHE names the
    folder; without it the platform's own place is used.

    >>> import tempfile
    >>> cache = Cache(Path(tempfile.mkdtemp()))
    >>> spec = EXPERIMENTS["variance"].spec(d_k=(16,), laws=("sign",), rows=1000)
    >>> cache.get(spec) is None, run(spec, cache=cache) == cache.get(spec)
    (True, True)
    """

    def __init__(self, place: Path | None = None, note: Callable[[str], None] = lambda _text: None) -> None:
        self.place, self.note = place or cache_folder(), note

    def path(self, spec: Any) -> Path:
        """The file that the result of this spec has or would have."""
        # A registered rule is identified by its factors: the same name may stand for another rule later.
        fingerprints = [fingerprint(name) for name in getattr(spec, "rules", ())]
        identity = json.dumps([name_of(spec), asdict(spec), _code(), *filter(None, fingerprints)], sort_keys=True)
        return self.place / f"{name_of(spec)}-{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"

    def get(self, spec: Any) -> Result | None:
        """The kept result, or None if there is none that can be used."""
        path = self.path(spec)
        try:
            result = Result.from_dict(read_json(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            self.note(f"cache: cannot read {path}: {error.strerror or error}; running again")
            return None
        except (ValueError, TypeError, KeyError, AttributeError, RootdkError):
            self.note(f"cache: {path} is damaged; running again")
            return None
        if json.dumps(result.spec) != json.dumps(asdict(spec)):
            self.note(f"cache: {path} belongs to another spec; running again")
            return None
        return result

    def put(self, spec: Any, result: Result) -> None:
        """Keep it; a reader sees the whole file or none."""
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path(spec), json.dumps(result.to_dict(), allow_nan=False))
        except OSError as error:
            self.note(f"cache: cannot write to {self.place}: {error.strerror or error}; the result is not kept")


@functools.cache
def _code() -> str:
    """A hash of the package's files: Python, and the compiled module whose last digits the results carry."""
    home, total = Path(version.__file__).parent, hashlib.sha256()
    for file in sorted(home.rglob("*")):
        if file.suffix in {".py", ".so", ".pyd"}:
            total.update(file.relative_to(home).as_posix().encode() + b"\0" + file.read_bytes())
    return f"{version.__version__}-{total.hexdigest()}"


def run(spec: Any, *, cache: Cache | None = None, progress: NamedProgress = lambda _name, _share: None) -> Result:
    """Run one experiment, or take its result out of the cache.

    progress is called with the experiment's name and the share that is done, from 0 to 1. The same spec gives the same
    numbers; seconds is how long the run took that made them.

    >>> result = run(EXPERIMENTS["variance"].spec(d_k=(16,), laws=("sign",), rows=1000))
    >>> [comparison.quantity for comparison in result.comparisons], result.comparisons[1].predicted
    (['score mean', 'score variance'], 16.0)
    """
    name = name_of(spec)
    progress(name, 0.0)
    result = cache.get(spec) if cache else None
    if result is None:
        start = time.perf_counter()
        findings = list(EXPERIMENTS[name].run(spec, lambda share: progress(name, share)))
        result = Result(
            name,
            asdict(spec),
            tuple(each for each in findings if isinstance(each, Comparison)),
            tuple(each for each in findings if isinstance(each, Series)),
            tuple(each for each in findings if isinstance(each, Grid)),
            round(time.perf_counter() - start, 3),
        )
        if cache:
            cache.put(spec, result)
    progress(name, 1.0)
    return result


def run_all(
    specs: Iterable[Any], *, cache: Cache | None = None, progress: NamedProgress = lambda _name, _share: None
) -> list[Result]:
    """`run` one after the other: the operator uses all cores by itself.

    >>> small = EXPERIMENTS["variance"].spec(d_k=(16,), laws=("sign",), rows=1000)
    >>> [result.experiment for result in run_all([small])]
    ['variance']
    """
    return [run(spec, cache=cache, progress=progress) for spec in specs]


class Spec:
    """What the specs of all experiments share: each field is checked, as it was declared, when a spec is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for declared in self.__dataclass_fields__.values():  # type: ignore[attr-defined]
            declared.metadata["check"](declared.name, getattr(self, declared.name))


def _field(default: Any, check: Callable[[str, Any], object]) -> Any:
    return field(default=default, metadata={"check": check})


def _several(check: Callable[[str, Any], object]) -> Callable[[str, Any], None]:
    """A check of every entry of a tuple that holds at least one."""

    def check_all(name: str, entries: Any) -> None:
        if not isinstance(entries, (tuple, list)):
            raise ArgumentTypeError(f"{name}: must be a tuple, got {entries!r}")
        if not entries:
            raise ArgumentError(f"{name}: must hold at least one entry, got none")
        for entry in entries:
            check(name, entry)

    return check_all


def a_count(default: int, least: int, most: int) -> Any:
    """A field for a whole number."""
    return _field(default, lambda name, value: count(name, value, least, most))


def counts(default: tuple[int, ...], least: int, most: int) -> Any:
    """A field for whole numbers."""
    return _field(default, _several(lambda name, value: count(name, value, least, most)))


def positives(default: tuple[float, ...]) -> Any:
    """A field for finite numbers above 0."""
    return _field(default, _several(lambda name, value: numbers(name, value, above=0.0)))


def names(default: tuple[str, ...], known: Iterable[str]) -> Any:
    """A field for names out of a list."""

    def check(field_name: str, name: Any) -> None:
        if name not in known:
            raise ArgumentError(f"{field_name}: must be some of {', '.join(map(repr, known))}, got {name!r}")

    return _field(default, _several(check))


def rule_names(default: tuple[str, ...]) -> Any:
    """A field for names of scale rules."""
    return _field(default, _several(lambda _field_name, name: rule(name)))


def a_seed() -> Any:
    """A field for the seed of the random numbers."""
    return a_count(0, 0, 2**63 - 1)
