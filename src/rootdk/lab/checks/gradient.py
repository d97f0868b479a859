"""Gradients through the real operator: the Jacobian of softmax, and what of a change of q arrives in the output."""

from dataclasses import asdict, dataclass

import numpy as np

from rootdk.api import attention_vjp
from rootdk.theory import relative_gradient, softmax_jacobian, softmax_moments

from . import checks
from .result import Comparison, Grid, Result, Setting
from .sampling import Floats, Tell, compare, compare_ratio, factor_of


@dataclass(frozen=True, slots=True)
class GradientSpec:
    """Whole Jacobians, and the flow to the query.

    For each sigma the Jacobians of `jacobians` rows of `logits` Gaussian logits; for each d_k and rule groups x rows
    queries over `keys` keys, with values of width d_k.
    """

    sigma: tuple[float, ...] = (0.125, 1.0, 8.0)
    logits: int = 16
    jacobians: int = 2000
    d_k: tuple[int, ...] = (16, 64, 256)
    rules: tuple[str, ...] = ("none", "sqrt", "dk")
    keys: int = 256
    groups: int = 64
    rows: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma)
        checks.counts("logits", (self.logits,), 2, 512)
        checks.counts("jacobians", (self.jacobians,), 2, 10**6)
        checks.counts("d_k", self.d_k, 1, 8192)
        checks.rules(self.rules)
        checks.counts("keys", (self.keys,), 2, 65_536)
        checks.counts("groups", (self.groups,), 2, 10**5)
        checks.counts("rows", (self.rows,), 1, 10**5)
        checks.seed(self.seed)


def run(spec: GradientSpec, tell: Tell) -> Result:
    """Trace and norm of J from its entries; |do/dq|/|o| from random pull-backs."""
    found, grids = _jacobians(spec)
    tell(0.2)
    for number, d_k in enumerate(spec.d_k):
        found += _flow(spec, d_k)
        tell(0.2 + 0.8 * sum(spec.d_k[: number + 1]) / sum(spec.d_k))
    return Result("gradient", asdict(spec), tuple(found), (), tuple(grids))


def jacobian_of_softmax(logits: Floats) -> Floats:
    """dp/dz of rows of logits, by the operator itself: (rows, n) -> (rows, n, n).

    The keys are the unit vectors, so a query is its own logits; the values are the unit vectors, so the output is the
    weights. Pulling back unit vector i then gives row i of the Jacobian.

    >>> jacobian_of_softmax(np.zeros((1, 2)))
    array([[[ 0.25, -0.25],
            [-0.25,  0.25]]])
    """
    rows, n = logits.shape
    unit = np.broadcast_to(np.eye(n), (rows, n, n))
    # Every query n times, one for each unit vector to pull back.
    query = np.repeat(logits[:, None, :], n, axis=1)
    _, pull_back = attention_vjp(query, unit.copy(), unit.copy(), scale=1.0)
    return np.asarray(pull_back(unit.copy())[0])


def _jacobians(spec: GradientSpec) -> tuple[list[Comparison], list[Grid]]:
    rng = np.random.default_rng([spec.seed, 5])
    x = rng.standard_normal((spec.jacobians, spec.logits))
    found, grids = [], []
    told = softmax_moments(spec.logits, np.array(spec.sigma))
    for number, sigma in enumerate(spec.sigma):
        setting = {"sigma": sigma, "keys": spec.logits}
        matrix = jacobian_of_softmax(x * sigma)
        traces, squares = np.trace(matrix, axis1=1, axis2=2), (matrix**2).sum(axis=(1, 2))
        found.append(compare("trace of J", setting, told.jacobian_trace[number], traces))
        found.append(compare("|J|^2", setting, told.jacobian_norm_squared[number], squares))
        # One row to look at, largest weight first, beside diag(p) - p p'.
        order = np.argsort(-x[0])
        shifted = np.exp(sigma * (x[0][order] - x[0].max()))
        formula = softmax_jacobian(shifted / shifted.sum())
        for kind, shown in (("measured", matrix[0][np.ix_(order, order)]), ("theory", formula)):
            grids.append(Grid("jacobian", kind, setting, tuple(map(tuple, shown.tolist()))))
    return found, grids


def _flow(spec: GradientSpec, d_k: int) -> list[Comparison]:
    """E |(do/dq)' u|^2 = |do/dq|_F^2 for a standard normal u, so one pull-back per row is enough."""
    rng = np.random.default_rng([spec.seed, 6, d_k])
    shape = {"query": spec.rows, "key": spec.keys, "value": spec.keys, "pulled": spec.rows}
    squares: dict[str, tuple[list[float], list[float]]] = {rule: ([], []) for rule in spec.rules}
    for _ in range(spec.groups):
        drawn = {name: rng.standard_normal((1, rows, d_k), dtype=np.float32) for name, rows in shape.items()}
        for rule, (gradients, outputs) in squares.items():
            scale = factor_of(rule, d_k, spec.keys)
            out, pull_back = attention_vjp(drawn["query"], drawn["key"], drawn["value"], scale=scale)
            gradients.append(float((pull_back(drawn["pulled"])[0].astype(np.float64) ** 2).sum(axis=-1).mean()))
            outputs.append(float((out.astype(np.float64) ** 2).sum(axis=-1).mean()))
    found = []
    for rule, (gradients, outputs) in squares.items():
        told = relative_gradient(spec.keys, d_k, factor_of(rule, d_k, spec.keys))
        setting: Setting = {"d_k": d_k, "rule": rule, "keys": spec.keys}
        found.append(compare_ratio("|do/dq| / |o|", setting, told, gradients, outputs))
    return found
