"""`rootdk` without a command: the study and the claims at one size, a summary of one screen, and a report."""

import json
import platform
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
import numpy as np

from rootdk import rendering
from rootdk.errors import RootdkError
from rootdk.lab.checks import (
    CONDITIONAL,
    EXPERIMENTS,
    FAILS,
    HOLDS,
    LEDGER,
    OPEN,
    Cache,
    Comparison,
    Result,
    Sampling,
    name_of,
    plan,
    run,
)
from rootdk.lab.checks.comparison import CLEAR
from rootdk.lab.checks.ledger import spans
from rootdk.lab.report import check_plotly, render
from rootdk.lab.training import shipped
from rootdk.theory import relative_gradient
from rootdk.version import __version__

from . import options
from .progress import Bars

Progress = Callable[[str, float], None]

# Seconds of one core at the default size: how far the bar moves for each.
_COST = {**{name: experiment.seconds for name, experiment in EXPERIMENTS.items()}, "claims": 3.0}
_CLAIM_ROWS = {"quick": 1024, "default": 2048, "full": 20_000}

WIDTH = 80
# Heading, quantity of the experiment "rules", and whether it is a share from 0 to 1.
_COLUMNS = (
    ("variance", "score variance", False),
    ("H / ln n", "H / ln n", True),
    ("p > .99", "rows with p > .99", True),
    ("trace of J", "trace of J", True),
)


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


def answer(job: Job, path: Path | None, *, asked_for: bool, cached: bool, as_json: bool) -> None:
    """Run the job; path is where the report goes, or None.

    Without plotly a report that was asked for by name is an error at once. One that comes by default is an error at
    the end: the summary is still worth printing, and the exit code still says that something is missing.
    """
    _ = job.specs  # an impossible combination is an error before anything runs
    missing = _missing_plotly() if path is not None else None
    if missing and asked_for:
        raise missing
    if path is not None and not missing:
        options.check_writable(path, "--out")
    notes: list[str] = []
    page = ""
    with Bars() as bars:
        findings = work(job, Cache(note=notes.append) if cached else None, _together(bars))
        if path is not None and not missing:
            page = render(findings.results, findings.claims, _about(findings), _cards(job), shipped())
    for note in dict.fromkeys(notes):
        click.echo(note, err=True)
    if as_json:
        click.echo(json.dumps(_to_dict(findings), indent=2, allow_nan=False))
    else:
        click.echo("\n".join(summary(findings)))
    if missing:
        raise missing
    if path is not None:
        options.write(path, page, "--out")
        click.echo(f"Report: {path}", err=as_json)


def _missing_plotly() -> RootdkError | None:
    try:
        check_plotly()
    except RootdkError as error:
        return error
    return None


def _about(findings: Findings) -> dict[str, str]:
    job = findings.job
    return {
        "version": __version__,
        "size": job.size,
        "seed": str(job.seed),
        "keys": str(job.keys),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "seconds": f"{findings.seconds:.1f}",
    }


def _cards(job: Job) -> Sequence[tuple[str, str]]:
    return [(f"{d_k**-0.5:.4g}", f"the scale 1/√d_k for d_k = {d_k}") for d_k in job.d_k]


def _to_dict(findings: Findings) -> dict[str, Any]:
    """Everything, ready for JSON."""
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
        claims = pool.submit(_checked_claims, job, progress)
        running = {name_of(spec): pool.submit(run, spec, cache=cache, progress=progress) for spec in order}
        results = tuple(running[name_of(spec)].result() for spec in specs)
        checked = tuple(claims.result())
    except BaseException as error:
        # Whatever went wrong, what has not begun does not begin. After Ctrl-C what has begun is not waited for either.
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()
    return Findings(job, results, checked, time.perf_counter() - start)


def _checked_claims(job: Job, progress: Progress) -> list[dict[str, Any]]:
    checked = []
    progress("claims", 0.0)
    for claim in LEDGER.check(sampling=Sampling(rows=_CLAIM_ROWS[job.size], seed=job.seed)):
        checked.append(claim.to_dict())
        progress("claims", len(checked) / len(LEDGER))
    return checked


def _together(bars: Bars) -> Progress:
    """One bar for all that runs side by side; what it is at is written beside it."""
    shares: dict[str, float] = {}

    def show(name: str, share: float) -> None:
        shares[name] = share
        now = list(shares.items())  # the other thread may add a name meanwhile
        active = [one for one, part in now if part < 1.0]
        done = sum(_COST[one] * part for one, part in now)
        bars(", ".join(active[:2]) or "finishing", done / sum(_COST.values()))

    return show


def summary(findings: Findings) -> Iterator[str]:
    """The whole summary, line by line."""
    job = findings.job
    yield f"Why 1/sqrt(d_k), and is it true?  {job.keys} keys, seed {job.seed}, {findings.seconds:.1f} s"
    yield ""
    yield from _table(findings)
    yield ""
    yield from _agreement(findings)
    yield from _claim_lines(findings)
    yield ""
    yield from _scale(findings)


def _table(findings: Findings) -> Iterator[str]:
    rules = findings.of("rules")
    width = max(4, *(len(rule) for rule in findings.job.rules))
    yield f"{'':5} {'':{width}}" + "".join(f"  {heading:>12}" for heading, _, _ in _COLUMNS)
    yield f"{'d_k':>5} {'rule':{width}}" + "".join(f"  {'theory':>6} {'seen':>5}" for _ in _COLUMNS)
    for d_k in findings.job.d_k:
        for rule in findings.job.rules:
            cells = [_cell(rules.select(quantity, d_k=d_k, rule=rule)[0], share) for _, quantity, share in _COLUMNS]
            yield f"{d_k:>5} {rule:{width}}" + "".join(f"  {cell}" for cell in cells)


def _cell(one: Comparison, share: bool) -> str:
    """Both numbers; a theory of next to nothing is 0."""
    predicted = 0.0 if share and one.predicted < 1e-9 else one.predicted
    return f"{rendering.brief(predicted, share):>6} {rendering.brief(one.measured, share):>5}"


def _agreement(findings: Findings) -> Iterator[str]:
    compared = sum(one.compared for one in findings.results)
    result = max(findings.results, key=lambda one: abs(one.worst.disagreement or 0.0))
    off = abs(result.worst.disagreement or 0.0)
    text = f"Theory against measurement, {compared} numbers: at most {off:.1f} standard errors apart."
    if off > CLEAR:
        text += f" That is {result.worst.quantity} of {result.experiment}, and more than {CLEAR:g} is a "
        text += "contradiction: look into it."
    yield from textwrap.wrap(text, WIDTH)


def _claim_lines(findings: Findings) -> Iterator[str]:
    """Numbers of the claims that hold or were not checked, the others by their titles."""
    groups: dict[str, list[int]] = {}
    for one in findings.claims:
        groups.setdefault(str(one["verdict"]), []).append(int(str(one["id"])))
    plain = [
        f"{len(ids)} {words}: {spans(ids)}"
        for verdict, words in ((HOLDS, "hold"), (OPEN, "need training"))
        if (ids := groups.get(verdict))
    ]
    if ids := groups.get(FAILS):
        titles = ", ".join(f"{number} ({LEDGER[number].title})" for number in ids)
        plain.append(f"{len(ids)} {'does' if len(ids) == 1 else 'do'} not hold: {titles}")
    if plain:
        yield from textwrap.wrap(f"Of {len(findings.claims)} claims {'; '.join(plain)}.", WIDTH)
    if ids := groups.get(CONDITIONAL):
        words = "holds" if len(ids) == 1 else "hold"
        yield f"{len(ids)} {words} under a condition (how: rootdk claims):"
        yield from _in_two_columns([f"{number:>4}  {LEDGER[number].title}" for number in ids])


def _in_two_columns(cells: Sequence[str]) -> Iterator[str]:
    """Read down and then across, as a list is."""
    half = (len(cells) + 1) // 2
    width = max(map(len, cells)) + 2
    for first, second in zip_longest(cells[:half], cells[half:], fillvalue=""):
        yield f"{first:<{width}}{second}".rstrip()


def _scale(findings: Findings) -> Iterator[str]:
    """The scale that keeps logits at variance 1, and what it does to the gradient."""
    job = findings.job
    flows = relative_gradient(job.keys, np.array(job.d_k), np.array(job.d_k) ** -0.5)
    scales = ", ".join(f"{d_k**-0.5:.4g} at d_k = {d_k}" for d_k in job.d_k)
    flow = ", ".join(f"{one:.2f}" for one in flows)
    yield from textwrap.wrap(f"Your scale: {scales}; |do/dq|/|o|: {flow}.", WIDTH)
