"""`rootdk` without a command: the study and the claims at one size, a summary of one screen, and a report."""

import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np

from rootdk import rendering
from rootdk.errors import RootdkError
from rootdk.lab import checks
from rootdk.lab.answer import answer_of
from rootdk.lab.checks.comparison import CLEAR
from rootdk.lab.checks.ledger import spans
from rootdk.lab.first_look import rule_label, typed
from rootdk.lab.report import check_plotly, render
from rootdk.lab.training import shipped
from rootdk.theory import relative_gradient
from rootdk.version import __version__

from . import options
from .lifetime import Bars
from .look import filled, in_two_lines

Progress = Callable[[str, float], None]

# Seconds of one core at the default size: how far the bar moves for each.
_COST = {name: experiment.seconds for name, experiment in checks.EXPERIMENTS.items()} | {"claims": 3.0}
_CLAIM_ROWS = {"quick": 1024, "default": 2048, "full": 20_000}

# Quantities of the experiment "rules", and whether each is a share from 0 to 1.
_COLUMNS = (("score variance", False), ("entropy share", True), ("rows of one key", True), ("Jacobian trace", True))
_WORDS = "Entropy share: entropy / ln n; 1 is equal weights. Rows of one key: one key has over 99 % of the weight."
_PICTURE = 14  # weights of one row, a letter for each
_HEIGHTS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Job:
    """The job as requested."""

    size: str
    d_k: tuple[int, ...]
    keys: int
    rules: tuple[str, ...]
    seed: int

    @property
    def specs(self) -> list[Any]:
        """The experiments, checked."""
        return checks.plan(self.size, d_k=self.d_k, keys=self.keys, rules=self.rules, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of a job. claims are dictionaries, as `rootdk claims --json` prints them."""

    job: Job
    results: tuple[checks.Result, ...]
    claims: tuple[dict[str, Any], ...]
    seconds: float

    def of(self, experiment: str) -> checks.Result:
        """The result of one experiment."""
        return next(result for result in self.results if result.experiment == experiment)


def answer(job: Job, path: Path | None, *, asked_for: bool, cached: bool, as_json: bool, as_csv: bool) -> None:
    """Run the job; path is where the report goes, or None.

    Without plotly a report that was asked for by name is an error at once. One that comes by default is an error at
    the end: the summary is still worth printing, and the exit code still says that something is missing.
    """
    _ = job.specs  # an impossible combination is an error before anything runs
    missing = None
    if path is not None:
        try:
            check_plotly()
            options.check_writable(path, "--out")
        except RootdkError as error:
            if asked_for:
                raise
            missing = error
    notes: list[str] = []
    page = ""
    with Bars() as bars:
        findings = work(job, checks.Cache(note=notes.append) if cached else None, _together(bars))
        if path is not None and not missing:
            cards = [(f"{d_k**-0.5:.4g}", f"the scale 1/√d_k for d_k = {d_k}") for d_k in job.d_k]
            page = render(findings.results, findings.claims, _about(findings), cards, shipped())
    for note in dict.fromkeys(notes):
        click.echo(note, err=True)
    compared = (
        {"experiment": result.experiment, **comparison.to_dict()}
        for result in findings.results
        for comparison in result.comparisons
    )
    options.show(as_json, as_csv, _to_dict(findings), compared, lambda width: summary(findings, width))
    if missing:
        raise missing
    if path is not None:
        options.write(path, page, "--out")
        click.echo(f"Report: {path}", err=as_json or as_csv)


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
        "results": [result.to_dict() for result in findings.results],
        "claims": list(findings.claims),
    }


def work(job: Job, cache: checks.Cache | None, progress: Progress) -> Findings:
    """Two at a time: while one experiment draws numbers on one core, another computes on the other.

    Seeds belong to the experiments, so the numbers do not depend on which of them run together.
    """
    start = time.perf_counter()
    specs = job.specs
    # The longest first, so that the last to finish is a short one.
    order = sorted(specs, key=lambda spec: -_COST[checks.name_of(spec)])
    pool = ThreadPoolExecutor(2)
    try:
        claims = pool.submit(_checked_claims, job, progress)
        running = {spec: pool.submit(checks.run, spec, cache=cache, progress=progress) for spec in order}
        results = tuple(running[spec].result() for spec in specs)
        checked = tuple(claims.result())
    except BaseException as error:
        # After any error, no further experiment starts. After Ctrl-C, running ones are not waited for either.
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()
    return Findings(job, results, checked, time.perf_counter() - start)


def _checked_claims(job: Job, progress: Progress) -> list[dict[str, Any]]:
    checked = []
    progress("claims", 0.0)
    for claim in checks.LEDGER.check(sampling=checks.Sampling(rows=_CLAIM_ROWS[job.size], seed=job.seed)):
        checked.append(claim.to_dict())
        progress("claims", len(checked) / len(checks.LEDGER))
    return checked


def _together(bars: Bars) -> Progress:
    """One bar for all experiments that run together; what each does is written beside it."""
    shares: dict[str, float] = {}

    def show(name: str, share: float) -> None:
        shares[name] = share
        now = list(shares.items())  # the other thread may add a name meanwhile
        active = [running for running, part in now if part < 1.0]
        done = sum(_COST[running] * part for running, part in now)
        bars(", ".join(active[:2]) or "finishing", done / sum(_COST.values()))

    return show


def summary(findings: Findings, width: int = 80) -> Iterator[str]:
    """The whole summary, line by line: the answer first."""
    job = findings.job
    gap = [""] if width >= 80 else []  # a narrow terminal needs these lines: all must fit into 24, with the prompt
    yield from filled(typed(answer_of(findings.of("rules"))), width)
    yield from gap
    yield from _table(findings, width)
    yield from filled(f"{_WORDS} {job.keys} keys, seed {job.seed}, {findings.seconds:.1f} s.", width)
    yield from gap
    for text in (_agreement(findings), _claims(findings), _scale(findings, gradient=width >= 80)):
        yield from filled(text, width)


def _table(findings: Findings, width: int) -> Iterator[str]:
    """Theory beside measurement, with the weights of one row drawn, as far as the terminal has room for it.

    If there is no room, the last pair is left out first, then the picture, then theory; no number is ever cut.
    """
    rules, job = findings.of("rules"), findings.job
    labels = {name: rule_label(name) for name in job.rules}
    names = max(map(len, labels.values()))
    left = 5 + names
    layouts = [(picture, pairs) for picture, pairs in ((True, 4), (True, 3), (False, 4), (False, 3))
               if left + picture * (1 + _PICTURE) + 16 * pairs <= width]  # fmt: skip
    picture, pairs = layouts[0] if layouts else (False, 0)
    columns = _COLUMNS[: pairs or None]
    blank, head = " " * left, f"{'d_k':>4} {'scale':<{names}}"
    if pairs:
        drawn = [f" {word:<{_PICTURE}}" if picture else "" for word in ("weights", "of one row")]
        yield blank + drawn[0] + "".join(f" {quantity:>15}" for quantity, _ in columns)
        yield head + drawn[1] + f" {'theory':>6} {'measured':>8}" * pairs
    else:
        tops, lows = zip(*(in_two_lines(quantity) for quantity, _ in columns), strict=True)
        yield blank + "".join(f" {words:>8}" for words in tops)
        yield head + "".join(f" {words:>8}" for words in lows)
    rows = {(series.setting["d_k"], series.setting["rule"]): series.y for series in rules.series}
    for d_k, rule in product(job.d_k, job.rules):
        line = f"{d_k:>4} {labels[rule]:<{names}}"
        if picture:
            line += f" {_bars(rows.get((d_k, rule), ())):<{_PICTURE}}"
        for quantity, share in columns:
            line += f" {_cell(rules.select(quantity, d_k=d_k, rule=rule)[0], share, pairs > 0)}"
        yield line


def _cell(comparison: checks.Comparison, share: bool, theory: bool) -> str:
    """The measured number, after that of theory; a theory of almost 0 is shown as 0."""
    measured = f"{rendering.brief(comparison.measured, share):>8}"
    predicted = 0.0 if share and comparison.predicted < 1e-9 else comparison.predicted
    return f"{rendering.brief(predicted, share):>6} {measured}" if theory else measured


def _bars(weights: Sequence[float]) -> str:
    """The weights as heights, where the terminal can show them."""
    shown = _HEIGHTS if _can_print(_HEIGHTS) else " .:-=+*#@"
    # A weight below one percent is not drawn.
    return "".join(shown[0 if weight < 0.01 else max(1, round(8 * weight))] for weight in weights[:_PICTURE]).rstrip()


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _agreement(findings: Findings) -> str:
    compared = sum(result.compared for result in findings.results)
    result = max(findings.results, key=lambda result: abs(result.worst.disagreement or 0.0))
    off = abs(result.worst.disagreement or 0.0)
    numbers = f"{compared} numbers, at most {off:.1f} standard errors apart."
    if off <= CLEAR:
        return f"Theory and measurement agree: {numbers}"
    return (
        f"Theory and measurement contradict each other: {numbers} The largest is {result.worst.quantity} of "
        f"{result.experiment}; more than {CLEAR:g} is not chance."
    )


def _claims(findings: Findings) -> str:
    """How many claims have which verdict, and which claims these are."""
    groups: dict[str, list[int]] = {}
    for claim in findings.claims:
        groups.setdefault(str(claim["verdict"]), []).append(int(claim["id"]))
    words = {
        checks.HOLDS: "hold",
        checks.CONDITIONAL: "hold under a condition",
        checks.FAILS: "do not hold",
        checks.OPEN: "need training",
    }
    known = [verdict for verdict in checks.VERDICTS if verdict in groups]
    parts = [f"{len(groups[verdict])} {words.get(verdict, verdict)}: {spans(groups[verdict])}" for verdict in known]
    return f"Of {len(findings.claims)} claims {'; '.join(parts)}. Why: rootdk claims" if parts else ""


def _scale(findings: Findings, gradient: bool) -> str:
    """The scale that keeps the score variance at 1; what it does to the gradient, where 24 lines have room for it."""
    job = findings.job
    scales = ", ".join(f"{d_k**-0.5:.4g} at d_k = {d_k}" for d_k in job.d_k)
    if not gradient:
        return f"1/sqrt(d_k) is {scales}."
    flows = relative_gradient(job.keys, np.array(job.d_k), np.array(job.d_k) ** -0.5)
    gradients = ", ".join(f"{flow:.2f}" for flow in flows)
    return f"1/sqrt(d_k) is {scales}. With it |do/dq| / |o|, how strongly the output follows q, is {gradients}."
