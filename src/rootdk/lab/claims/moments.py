"""Claims 3, 4, 17 and 20: mean and variance of a score, enumerated and drawn."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rootdk.scaling import rule
from rootdk.theory import exact_score_moments

from .draw import Sampler, generator, groups, normal, over_groups, reading, sign, student, uniform
from .evidence import LIMITS, SHOWN, Evidence
from .ledger import LATER, PAPER, Setting, claim

Law = Mapping[Any, Any]
Laws = Mapping[str, Law]
Samplers = Mapping[str, Sampler]

# Mean 0 and variance 1, few values: every outcome can be enumerated.
ENUMERABLE: Laws = {
    "signs": {-1: "1/2", 1: "1/2"},
    "lopsided": {"-1/2": "4/5", 2: "1/5"},
    "rare": {-3: "1/18", 0: "8/9", 3: "1/18"},
}
SAMPLED: Samplers = {"normal": normal, "uniform": uniform, "signs": sign, "Student t5": student}


@claim(
    3,
    title="q.k has variance d_k",
    statement="If the components of q and k are independent with mean 0 and variance 1, then q.k has mean 0 and "
    "variance d_k.",
    source=f"{PAPER}, section 3.2.1, footnote 4",
    method="Every outcome enumerated in fractions for laws of a few values, d_k up to 64; random q and k of four laws "
    "up to d_k = 4096.",
)
def score_moments(
    setting: Setting,
    laws: Laws = ENUMERABLE,
    samplers: Samplers = SAMPLED,
    small: Sequence[int] = (1, 2, 3, 8, 64),
    large: Sequence[int] = (16, 4096),
) -> Iterator[Evidence]:
    """laws map values to probabilities; samplers draw components."""
    for name, law in laws.items():
        found = {d_k: exact_score_moments(d_k, law) for d_k in small if d_k <= 8 or len(law) == 2}
        far = max(abs(one["mean"]) for one in found.values())
        off = max(abs(one["variance"] - d_k) for d_k, one in found.items())
        until = f"{name}, d_k up to {max(found)}"
        yield Evidence(f"{until}: |mean|", float(far), "=", 0.0)
        yield Evidence(f"{until}: |variance - d_k|", float(off), "=", 0.0)
    for number, (name, sampler) in enumerate(samplers.items()):
        for d_k in large:
            rng = generator(setting, 3, number, d_k)
            # In each group 8 queries meet 8 keys: 64 scores for 16 vectors drawn.
            scores = np.matmul(*_vectors(rng, sampler, 2 * groups(setting), d_k))
            mean, mean_error = over_groups(scores / math.sqrt(d_k))
            variance, error = over_groups(scores.astype(np.float64) ** 2 / d_k)
            yield Evidence(f"{name}, d_k = {d_k}: mean / sqrt(d_k)", mean, "=", 0.0, mean_error)
            yield Evidence(f"{name}, d_k = {d_k}: variance / d_k", variance, "=", 1.0, error)


def _vectors(rng: np.random.Generator, sampler: Sampler, count: int, d_k: int) -> tuple[Any, Any]:
    return sampler(rng, (count, 8, d_k)), np.swapaxes(sampler(rng, (count, 8, d_k)), -1, -2)


@claim(
    4,
    title="q_i k_i has variance 1",
    statement="Each product q_i k_i has mean 0 and variance 1.",
    source=f"{PAPER}, section 3.2.1, footnote 4; {LATER}",
    method="As for claim 3, with a single component.",
)
def product_moments(setting: Setting, laws: Laws = ENUMERABLE, samplers: Samplers = SAMPLED) -> Iterator[Evidence]:
    """laws map values to probabilities; samplers draw components."""
    for name, law in laws.items():
        moments = exact_score_moments(1, law)
        yield Evidence(f"{name}: mean", float(moments["mean"]), "=", 0.0)
        yield Evidence(f"{name}: variance", float(moments["variance"]), "=", 1.0)
    for number, (name, sampler) in enumerate(samplers.items()):
        rng, shape = generator(setting, 4, number), (groups(setting), 8192)
        products = sampler(rng, shape).astype(np.float64) * sampler(rng, shape)
        mean, mean_error = over_groups(products)
        variance, error = over_groups(products**2)
        yield Evidence(f"{name}: mean", mean, "=", 0.0, mean_error)
        yield Evidence(f"{name}: variance", variance, "=", 1.0, error)


@claim(
    17,
    title="q, k start at variance 1",
    statement="Weights start with mean 0 and variance 1, and so q and k do too.",
    source=LATER,
    method="Random weights times random inputs of unit variance; new weights for every group. Once with weights of "
    "variance 1/d_model (scaled by fan-in), once with weights of variance 1.",
)
def initial_weights(
    setting: Setting,
    d_model: int = 256,
    d_k: int = 64,
    fan_in: Callable[[int], float] = lambda d_model: 1 / d_model,
) -> Iterator[Evidence]:
    """fan_in gives the variance of a weight of a layer with that many inputs."""
    component, score = _projected(setting, d_model, d_k, fan_in(d_model))
    yield Evidence("fan-in weights: variance of q_i", component[0], "=", 1.0, component[1])
    yield Evidence("fan-in weights: Var(q.k) / d_k", score[0], "=", 1.0, score[1])
    component, score = _projected(setting, d_model, d_k, 1.0)
    yield Evidence(
        "unit weights: variance of q_i",
        component[0],
        "=",
        1.0,
        component[1],
        role=LIMITS,
        otherwise="if inputs have variance 1 and weights variance 1/d_model, as fan-in scaling makes them; with "
        f"weights of variance 1, q_i has variance {component[0]:.0f} at d_model = {d_model}",
    )
    ratio, error = (x / d_model**2 for x in score)
    yield Evidence("unit weights: Var(q.k)/(d_k d_model^2)", ratio, "=", 1.0, error, role=SHOWN)


def _projected(setting: Setting, d_model: int, d_k: int, variance: float) -> tuple[tuple[float, float], ...]:
    """Variance of a component of q, and of q.k over d_k, each with its error."""
    rng, count = generator(setting, 17), groups(setting)
    width = np.float32(math.sqrt(variance))
    query, key = (
        np.matmul(normal(rng, (count, 16, d_model)), normal(rng, (count, d_model, d_k)) * width) for _ in range(2)
    )
    scores = np.matmul(query, np.swapaxes(key, -1, -2)).astype(np.float64)
    return over_groups(query.astype(np.float64) ** 2), over_groups(scores**2 / d_k)


@claim(
    20,
    title="scaled by sqrt(d_k)",
    statement="Scores are scaled by sqrt(d_k).",
    source=f"{LATER}; {PAPER}, section 3.2.1, writes 1/sqrt(d_k)",
    method="The variance of the scores divided by sqrt(d_k), and multiplied by it: by the rule, and measured.",
)
def direction(
    setting: Setting,
    divided: Callable[[int], float] = lambda d_k: rule("sqrt").factor(d_k, None, None),
    multiplied: Callable[[int], float] = math.sqrt,
    d_ks: Sequence[int] = (16, 256),
) -> Iterator[Evidence]:
    """Both give the factor of the scores."""
    far = max(d_ks)
    wide = multiplied(far) ** 2 * far
    said = f"if it means that they are divided: multiplied, they have variance {wide:.0f} at d_k = {far}"
    for d_k in d_ks:
        # Four roundings: the root, the quotient, its square, the product.
        exact = divided(d_k) ** 2 * d_k
        yield Evidence(f"divided, d_k = {d_k}: variance", exact, "=", 1.0, slack=1e-15)
        yield Evidence(f"divided, d_k = {d_k}: measured variance", *_row_variance(setting, d_k, divided(d_k), 1.0))
        found = _row_variance(setting, d_k, multiplied(d_k), 1.0)
        yield Evidence(f"multiplied, d_k = {d_k}: measured variance", *found, role=LIMITS, otherwise=said)
        found = _row_variance(setting, d_k, multiplied(d_k) / d_k, 1.0)
        yield Evidence(f"multiplied, d_k = {d_k}: measured / d_k^2", *found, role=SHOWN)


def _row_variance(setting: Setting, d_k: int, factor: float, target: float) -> tuple[float, str, float, float]:
    """As Evidence takes it. A row of n keys, centred on its own mean, shows (n - 1)/n of the variance."""
    variance, error = over_groups(reading(setting, d_k, 512, factor).variance * (512 / 511))
    return variance, "=", target, error


CLAIMS = (score_moments, product_moments, initial_weights, direction)
