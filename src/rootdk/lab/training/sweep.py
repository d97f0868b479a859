"""Many runs: those that are kept are taken, the others go to an engine, and each is kept as soon as it is done."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, cast

from rootdk.errors import RootdkError

from .engine import Engine, Event, Failed, Finished, Task, title
from .run import ADDITIVE, Run, RunSpec
from .store import Store, StoreError

_MOST_NAMED = 10
# Sequences in a batch and places in each: what rootdk.lab.training.tasks draws, which only torch could be asked.
_BATCHES = {"recall": (32, 48), "text": (16, 64), "digits": (32, 16)}
_LOOKS = 60  # looking at a model from time to time takes about as long as so many steps


class SweepError(RootdkError):
    """Some runs failed; the others are kept. `failures` holds a Failed for each."""

    def __init__(self, failures: Sequence[Failed], finished: int) -> None:
        self.failures = tuple(failures)
        named = [f"{title(one.spec)}: {one.reason}" for one in failures[:_MOST_NAMED]]
        more = [f"and {len(failures) - _MOST_NAMED} more"] if len(failures) > _MOST_NAMED else []
        runs = "run" if len(failures) == 1 else "runs"
        super().__init__(
            f"{len(failures)} {runs} failed; the {finished} that are finished are kept and will not be run again. "
            + "; ".join([*named, *more])
        )


def sweep(
    specs: Sequence[RunSpec],
    store: Store,
    engine: Engine,
    tell: Callable[[Event], None] = lambda _event: None,
    fresh: bool = False,
) -> tuple[Run, ...]:
    """The runs of these specs, in their order. tell hears of every event, and of kept runs as finished ones first.

    With fresh, those that are kept are forgotten first. An error lists what failed, after everything else is done.
    Interrupted, it keeps what is finished. A store in which another sweep is under way is a StoreError at once.
    """
    with store.locked():
        if fresh:
            for spec in specs:
                store.forget(spec)
        return _sweep(specs, store, engine, tell)


def _sweep(specs: Sequence[RunSpec], store: Store, engine: Engine, tell: Callable[[Event], None]) -> tuple[Run, ...]:
    found: dict[RunSpec, Run] = {}
    for spec in dict.fromkeys(specs):
        kept = store.get(spec)
        if kept is not None:
            found[spec] = kept
            tell(Finished(kept))
    # The longest first, so that the last to finish is a short one.
    rest = sorted((spec for spec in dict.fromkeys(specs) if spec not in found), key=cost, reverse=True)
    failures: list[Failed] = []
    # A generator of an engine ends its processes when it is closed, whatever the reason.
    with closing(cast("Any", engine([Task(spec, store.state(spec).absolute()) for spec in rest]))) as events:
        for event in events:
            if isinstance(event, Finished):
                store.put(event.run)
                found[event.run.spec] = event.run
            elif isinstance(event, Failed):
                failures.append(event)
                if event.no_space:
                    raise StoreError(
                        f"runs: cannot write to {store.place}: {event.reason}; the runs that are finished are kept"
                    )
            tell(event)
    if failures:
        raise SweepError(failures, len(found))
    return tuple(found[spec] for spec in specs)


def cost(spec: RunSpec) -> float:
    """About how many milliseconds a run takes on one core, rough: for the order of runs and the share that is done.

    >>> cost(RunSpec(d_k=512)) > cost(RunSpec(d_k=8))
    True
    """
    batch, places = _BATCHES[spec.task]
    # Additive attention makes d_k numbers for every pair of places, a dot product only for every place.
    wide = batch * places * (places if spec.rule == ADDITIVE else 1) * spec.heads * spec.d_k
    per_step = spec.layers * (3.0 + 5e-5 * batch * places * spec.width + 1.7e-5 * wide)
    return (spec.steps + _LOOKS) * per_step
