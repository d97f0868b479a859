"""The main job: the study and the claims, at one size, with a bar that moves."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rootdk.lab.checks import EXPERIMENTS, LEDGER, Cache, Result, Sampling, name_of, plan, run

# Seconds of one core at the default size: how far the bar moves for each.
_COST = {**{name: experiment.seconds for name, experiment in EXPERIMENTS.items()}, "claims": 3.0}
_CLAIM_ROWS = {"quick": 1024, "default": 2048, "full": 20_000}
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What was asked for."""

    size: str
    d_k: tuple[int, ...]
    keys: int
    rules: tuple[str, ...]
    seed: int

    @property
    def specs(self) -> list[Any]:
        """The experiments, checked."""
        return plan(self.size, d_k=self.d_k, keys=self.keys, rules=self.rules, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Findings:
    """What came of it. claims are dictionaries, as `rootdk claims --json` prints them."""

    job: Job
    results: tuple[Result, ...]
    claims: tuple[dict[str, Any], ...]
    seconds: float

    def of(self, experiment: str) -> Result:
        """The result of one experiment."""
        return next(one for one in self.results if one.experiment == experiment)


def work(job: Job, cache: Cache | None, progress: Progress) -> Findings:
    """Two at a time: while one experiment draws numbers on one core, another computes on the other.

    Seeds belong to the experiments, so the numbers do not depend on who runs beside whom.
    """
    start = time.perf_counter()
    specs = job.specs
    # The longest first, so that the last to finish is a short one.
    order = sorted(specs, key=lambda spec: -_COST[name_of(spec)])
    pool = ThreadPoolExecutor(2)
    try:
        claims = pool.submit(_claims, job, progress)
        running = {name_of(spec): pool.submit(run, spec, cache=cache, progress=progress) for spec in order}
        results = tuple(running[name_of(spec)].result() for spec in specs)
        checked = tuple(claims.result())
    except BaseException as error:
        # Whatever went wrong, what has not begun does not begin. After Ctrl-C what has begun is not waited for either.
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()
    return Findings(job, results, checked, time.perf_counter() - start)


def _claims(job: Job, progress: Progress) -> list[dict[str, Any]]:
    checked = []
    progress("claims", 0.0)
    for claim in LEDGER.check(sampling=Sampling(rows=_CLAIM_ROWS[job.size], seed=job.seed)):
        checked.append(claim.to_dict())
        progress("claims", len(checked) / len(LEDGER))
    return checked


@contextmanager
def bar() -> Iterator[Progress]:
    """One bar for all, on standard error and only on a terminal; what it is at is written beside it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    shares: dict[str, float] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("starting", total=sum(_COST.values()))

        def tell(name: str, share: float) -> None:
            shares[name] = share
            active = [one for one, done in shares.items() if done < 1.0]
            done = sum(_COST[one] * part for one, part in list(shares.items()))
            shown.update(task, completed=done, description=", ".join(active[:2]) or "finishing")

        yield tell


def to_dict(findings: Findings) -> dict[str, Any]:
    """Everything, ready for JSON."""
    from rootdk.version import __version__

    job = findings.job
    return {
        "rootdk": __version__,
        "size": job.size,
        "d_k": list(job.d_k),
        "keys": job.keys,
        "rules": list(job.rules),
        "seed": job.seed,
        "seconds": round(findings.seconds, 3),
        "results": [one.to_dict() for one in findings.results],
        "claims": list(findings.claims),
    }


def worst(results: Sequence[Result]) -> Result:
    """The result with the largest disagreement."""
    return max(results, key=lambda one: abs(one.worst.disagreement or 0.0))
