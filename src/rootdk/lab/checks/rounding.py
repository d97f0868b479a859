"""Scores in number formats: the experiment "formats", and claim 13. A small score loses no digits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rootdk.attention import attention_vjp
from rootdk.backends import problem_of, reference
from rootdk.lab.drawing import POWERS, Picture, grouped_by, plot, predicted_and_measured
from rootdk.theory import format_effect
from rootdk.theory.formats import FORMATS as KINDS

from .comparison import LIMITS, SHOWN, Comparison, Parameters, Result, estimated
from .experiment import Experiment, Progress, Spec, a_count, a_seed, names, positives, register
from .ledger import COMMON, LEDGER
from .sampler import Floats, Sampling, compare_ratio, compare_share, generator, over_groups

FORMATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class FormatsSpec(Spec):
    """rows scores of law N(0, sigma^2). sigma is sqrt(d_k), 1 and 1/sqrt(d_k) under the three usual rules."""

    sigma: tuple[float, ...] = positives((0.044, 0.125, 1.0, 8.0, 22.6, 30_000.0))
    formats: tuple[str, ...] = names(FORMATS, FORMATS)
    rows: int = a_count(200_000, 2, 10**8)
    seed: int = a_seed()


def run(spec: FormatsSpec, progress: Progress) -> Iterator[Comparison]:
    """Rounding error of a score and of its weight e^z, relative to the score's spread, and the share that overflows."""
    x = generator(spec.seed, 8).standard_normal(spec.rows)
    for number, sigma in enumerate(spec.sigma):
        z = x * sigma
        for name in spec.formats:
            predicted = format_effect(sigma, name)
            setting: Parameters = {"sigma": sigma, "format": name}
            stored = rounded(z, name)
            finite = np.isfinite(stored)
            error = stored[finite] - z[finite]
            unit = np.full(error.shape, sigma**2)
            yield compare_ratio("relative error", setting, predicted.score_error / sigma, error**2, unit)
            if predicted.weight_error < 0.1:  # above it the formula assumes a normal error, but the error is uniform
                squares, ones = np.expm1(error) ** 2, np.ones(error.shape)
                yield compare_ratio("error of a weight", setting, predicted.weight_error, squares, ones)
            yield compare_share("overflow", setting, predicted.overflow, ~finite)
        progress((number + 1) / len(spec.sigma))


def _pictures(result: Result) -> list[Picture]:
    traces = predicted_and_measured(grouped_by(result.select("relative error"), "format"), "sigma")
    axes = {"xaxis": POWERS, "yaxis": POWERS}
    figure = plot(traces, "standard deviation of the scores", "rounding error / σ", **axes)
    caption = (
        "Flat lines: a score ten or a hundred times smaller keeps the same digits, until float16 runs out of range."
    )
    return [Picture("formats", "Rounding error relative to the scores", caption, figure)]


register(
    Experiment(
        name="formats",
        place=7,
        spec=FormatsSpec,
        run=run,
        seconds=0.1,
        heading="Number formats",
        text="Some say that dividing by d_k makes scores too small to be stored well. But a small floating-point "
        "number has as many digits as a large one, down to the smallest numbers of the format. So the relative error "
        "does not change.",
        pictures=_pictures,
        quick={"rows": 20_000},
        full={"rows": 2_000_000},
    )
)


def rounded(z: Floats, name: str) -> Floats:
    """Each number as the format stores it, rounded to nearest, as float64.

    >>> rounded(np.array([1.00390625, 1.01, 70000.0]), "bfloat16").tolist()
    [1.0, 1.0078125, 70144.0]
    """
    if name != "bfloat16":
        with np.errstate(over="ignore"):  # to infinity, as the format has it
            return np.asarray(z.astype(name), np.float64)
    # The upper half of a float32. Adding half a unit, less one where the last kept bit is 0, rounds ties to even.
    bits = z.astype(np.float32).view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.asarray(bits.view(np.float32), np.float64)


# Products this small stay on one thread of BLAS, whose threads wait long for each other on a busy machine.
_GROUPS, _ROWS, _KEYS, _D_V = 16, 8, 64, 32
_UNSTABLE = "one bit more lost than with 1/sqrt(d_k) is the least that may be called unstable"


@LEDGER.claim(
    13,
    title="1/d_k may be unstable",
    statement="Dividing by d_k may be numerically unstable, because values become small.",
    source=COMMON,
    method="attention and its gradient to q in each format against the float64 reference on the same inputs: relative "
    "error under 1/d_k over that under 1/sqrt(d_k); unstable is more than twice. Gradients for d_out of size 1 and "
    "1/1024. Beside it, by theory, the same ratio for a score that is itself stored in the format: its error as a "
    "share of the spread of the scores.",
)
def small_values(
    sampling: Sampling,
    rule: str | float = "dk",
    formats: Sequence[str] = FORMATS,
    d_ks: Sequence[int] = (512,),
    upstream: Sequence[float] = (1.0, 2.0**-10),
    twice: float = 2.0,
) -> Iterator[Comparison]:
    """rule is the one suspected, compared with 1/sqrt(d_k); upstream are sizes of the incoming gradient."""
    known = [name for name in formats if _type(name) is not None]
    ratios: dict[str, tuple[float, float]] = {}
    tiny: dict[str, float] = {}
    for name in known:
        for d_k in d_ks:
            suspected, usual = (relative_errors(sampling, name, d_k, scale, upstream) for scale in (rule, "sqrt"))
            for result, (off, below) in suspected.items():
                ratios[f"{name}, d_k = {d_k}: {result}"] = over_groups(off / usual[result][0])
                tiny[f"{name}, d_k = {d_k}: {result}"] = below
    clear = {text: estimated(text, ratio, ">", twice).agrees for text, ratio in ratios.items()}
    fine, unstable = ({t: r for t, (r, _) in ratios.items() if clear[t] == bad} for bad in (False, True))
    lost = max(fine.values(), default=0.0)
    harmless = f"the relative error is at most {lost:.2f} times that of 1/sqrt(d_k), for small scores have small errors"
    everywhere = f"in {', '.join(known)} {harmless}"
    only = f"only in {_where(unstable, tiny)}; elsewhere {harmless}"
    # "May be unstable" is true if the worst ratio is large; every ratio that is not large limits where it is true.
    worst = max(ratios.values(), key=lambda ratio: ratio[0])
    yield estimated("largest ratio of all", worst, ">", twice, otherwise=everywhere, choice=_UNSTABLE)
    for text, ratio in ratios.items():
        yield estimated(text, ratio, ">", twice, role=LIMITS, otherwise=only, choice=_UNSTABLE)
    for name in formats:
        small, unit = (float(format_effect(sigma, name).score_error) / sigma for sigma in (max(d_ks) ** -0.5, 1.0))
        yield Comparison(f"{name}, d_k = {max(d_ks)}: stored score", small / unit, role=SHOWN)
    if len(known) < len(formats):
        yield Comparison("formats measured (bfloat16 needs ml_dtypes)", len(known), "=", len(formats), role=SHOWN)


def _where(unstable: dict[str, float], tiny: dict[str, float]) -> str:
    return ", ".join(
        f"{text} ({ratio:.0f} times the error; {tiny[text]:.0%} of the numbers are below the smallest normal one)"
        for text, ratio in unstable.items()
    )


def relative_errors(
    sampling: Sampling, name: str, d_k: int, scale: Any, upstream: Sequence[float]
) -> dict[str, tuple[Floats, float]]:
    """|error| / |result| of the output and of d_query, one number per group; NaN and infinity count as infinite.

    Beside each the share of its numbers that are below the smallest normal number of the format.
    """
    rng, kind = generator(sampling.seed, 13, d_k), _type(name)
    sizes = ((_ROWS, d_k), (_KEYS, d_k), (_KEYS, _D_V), (_ROWS, _D_V))
    query, key, value, direction = (rng.standard_normal((_GROUPS, *size)).astype(kind) for size in sizes)
    out, pull_back = attention_vjp(query, key, value, scale=scale)
    problem = problem_of(query, key, value, scale=scale)
    smallest = 2.0 ** KINDS[name].least_exponent
    errors = {"output": _off(out, reference.forward(problem).reshape(out.shape), smallest)}
    for size in upstream:
        d_out = (direction.astype(np.float64) * size).astype(kind)
        true = reference.backward(problem, d_out[None])[0].reshape(query.shape)
        errors[f"d_query, d_out {size:.1g}"] = _off(pull_back(d_out)[0], true, smallest)
    return errors


def _off(computed: Floats, true: Floats, smallest: float) -> tuple[Floats, float]:
    error = np.linalg.norm(computed.astype(np.float64) - true, axis=(-1, -2)) / np.linalg.norm(true, axis=(-1, -2))
    return np.where(np.isfinite(error), error, np.inf), float((np.abs(true) < smallest).mean())


def _type(name: str) -> Any:
    """The NumPy type, or None: bfloat16 comes from ml_dtypes, which rootdk does not require."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return None
    return np.dtype(bfloat16)
