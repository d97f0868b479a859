"""Claim 13: whether dividing by d_k costs digits."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rootdk._arguments import resolve
from rootdk._backends import reference
from rootdk.api import attention_vjp
from rootdk.theory import format_effect
from rootdk.theory.formats import FORMATS as KINDS

from .draw import Floats, generator, over_groups
from .evidence import LIMITS, SHOWN, Evidence
from .ledger import LATER, Setting, claim

FORMATS = ("float32", "bfloat16", "float16")
# Products this small stay on one thread of BLAS, whose threads wait long for each other on a busy machine.
_GROUPS, _ROWS, _KEYS, _D_V = 16, 8, 64, 32
_UNSTABLE = "one bit more lost than with 1/sqrt(d_k) is the least that may be called unstable"


@claim(
    13,
    title="1/d_k may be unstable",
    statement="Dividing by d_k may be numerically unstable, because values become small.",
    source=LATER,
    method="attention and its gradient to q in each format against the float64 reference on the same inputs: relative "
    "error under 1/d_k over that under 1/sqrt(d_k); unstable is more than twice. Gradients for d_out of size 1 and "
    "1/1024. Beside it, by theory, the same ratio for a score that is itself stored in the format.",
)
def small_values(
    setting: Setting,
    rule: str | float = "dk",
    formats: Sequence[str] = FORMATS,
    d_ks: Sequence[int] = (512,),
    upstream: Sequence[float] = (1.0, 2.0**-10),
    twice: float = 2.0,
) -> Iterator[Evidence]:
    """rule is the one suspected, held against 1/sqrt(d_k); upstream are sizes of the gradient that arrives."""
    known = [name for name in formats if _type(name) is not None]
    found: dict[str, tuple[float, float]] = {}
    tiny: dict[str, float] = {}
    for name in known:
        for d_k in d_ks:
            suspected, usual = (relative_errors(setting, name, d_k, scale, upstream) for scale in (rule, "sqrt"))
            for what, (off, below) in suspected.items():
                found[f"{name}, d_k = {d_k}: {what}"] = over_groups(off / usual[what][0])
                tiny[f"{name}, d_k = {d_k}: {what}"] = below
    worst = max(found, key=lambda text: found[text][0])
    clear = {text: Evidence(text, ratio, ">", twice, error).agrees for text, (ratio, error) in found.items()}
    fine, unstable = ({t: r for t, (r, _) in found.items() if clear[t] == bad} for bad in (False, True))
    lost = max(fine.values(), default=0.0)
    kept = f"the relative error is at most {lost:.2f} times that of 1/sqrt(d_k), for small scores have small errors"
    nowhere = f"in {', '.join(known)} {kept}"
    only = f"only in {_where(unstable, tiny)}; elsewhere {kept}"
    # That something may be unstable is true if the worst is; that anything is not is its condition.
    ratio, error = found[worst]
    yield Evidence("largest ratio of all", ratio, ">", twice, error, otherwise=nowhere, choice=_UNSTABLE)
    for text, (ratio, error) in found.items():
        yield Evidence(text, ratio, ">", twice, error, role=LIMITS, otherwise=only, choice=_UNSTABLE)
    for name in formats:
        small, unit = (float(format_effect(sigma, name).score_error) for sigma in (max(d_ks) ** -0.5, 1.0))
        yield Evidence(f"{name}, d_k = {max(d_ks)}: stored score", small / unit, role=SHOWN)
    if len(known) < len(formats):
        yield Evidence("formats measured (bfloat16 needs ml_dtypes)", len(known), "=", len(formats), role=SHOWN)


def _where(unstable: dict[str, float], tiny: dict[str, float]) -> str:
    return ", ".join(
        f"{text} ({ratio:.0f} times the error; {tiny[text]:.0%} of the numbers are below the smallest normal one)"
        for text, ratio in unstable.items()
    )


def relative_errors(
    setting: Setting, name: str, d_k: int, scale: Any, upstream: Sequence[float]
) -> dict[str, tuple[Floats, float]]:
    """|error| / |result| of the output and of d_query, one number per group; NaN and infinity count as infinite.

    Beside each the share of its numbers that are below the smallest normal number of the format.
    """
    rng, kind = generator(setting, 13, d_k), _type(name)
    sizes = ((_ROWS, d_k), (_KEYS, d_k), (_KEYS, _D_V), (_ROWS, _D_V))
    query, key, value, direction = (rng.standard_normal((_GROUPS, *size)).astype(kind) for size in sizes)
    out, pull_back = attention_vjp(query, key, value, scale=scale)
    problem = resolve(query, key, value, scale, False, None, None, None, None, None, None, None, 0.0, None)[1]
    smallest = 2.0 ** KINDS[name].least_exponent
    errors = {"output": _off(out, reference.forward(problem).reshape(out.shape), smallest)}
    for size in upstream:
        d_out = (direction.astype(np.float64) * size).astype(kind)
        true = reference.backward(problem, d_out[None])[0].reshape(query.shape)
        errors[f"d_query, d_out {size:.1g}"] = _off(pull_back(d_out)[0], true, smallest)
    return errors


def _off(found: Floats, true: Floats, smallest: float) -> tuple[Floats, float]:
    error = np.linalg.norm(found.astype(np.float64) - true, axis=(-1, -2)) / np.linalg.norm(true, axis=(-1, -2))
    return np.where(np.isfinite(error), error, np.inf), float((np.abs(true) < smallest).mean())


def _type(name: str) -> Any:
    """The NumPy type, or None: bfloat16 comes from ml_dtypes, which rootdk does not ask for."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return None
    return np.dtype(bfloat16)


CLAIMS = (small_values,)
