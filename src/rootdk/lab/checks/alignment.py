"""Claim 33: whether training makes q and k know of each other, by trained models that packages bring.

alignment.json beside this file has them: `python -m benchmarks.calibration.alignment` measures them again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .comparison import LIMITS, SHOWN, Comparison
from .ledger import LEDGER
from .sampler import Sampling, generator, over_groups


@cache
def trained_models() -> Mapping[str, Any]:
    """By name: d_k, tokens, and of every head, trained and newly made, the numbers that the benchmark explains."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("alignment.json").read_text("utf-8"))
    return found


@LEDGER.claim(
    33,
    title="training aligns q and k",
    statement="Training makes q and k know of each other: their products no longer cancel, q.k gets a mean, and its "
    "size outgrows that of independent q and k.",
    source="Yang et al. 2022, Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer, "
    "on 1/d attention (in our words; not checked at the source), https://arxiv.org/abs/2203.03466",
    method="q and k of the same token in trained models that packages bring, and in the same models newly made. tr C, "
    "the mean of q.k that they owe to each other, over the root of tr(S_q S_k), the deviation of the score of "
    "independent q and k: means over heads. And E (q.k)^2 as measured, over that of independent q and k with the same "
    "means and covariances, and over the formula with C: medians over heads, errors by drawing heads anew.",
)
def training_aligns(
    sampling: Sampling, models: Mapping[str, Any] | None = None, kind: str = "trained", deviations: float = 0.5
) -> Iterator[Comparison]:
    """kind is "trained" or "new"; deviations is from where on a mean counts."""
    models = models or trained_models()
    counts = "half a deviation: of newly made models the mean over heads is 0"
    sizes = {name: _median(sampling, model[kind]["without"]) for name, model in models.items()}
    listed = ", ".join(f"{size:.2f} in {name}" for name, (size, _) in sizes.items())
    condition = (
        f"as far as the mean goes: E (q.k)^2 is not larger by it, but {listed} times that of independent q and k "
        "(median over heads), because the means of q and k point away from each other and what a token shares with "
        "itself makes up for that. A row is made of other tokens, too; and that q.k grows like d_k, models of one "
        "width each cannot show"
    )
    for name, model in models.items():
        mean, error = over_groups(model[kind]["mean"])
        text = f"{name}, d_k = {model['d_k']}: mean / deviation"
        yield Comparison(text, mean, ">", deviations, error, choice=counts)
        new, error = over_groups(model["new"]["mean"])
        yield Comparison(f"{name}, newly made: mean / deviation", new, standard_error=error, role=SHOWN)
        above = np.array(model[kind]["mean"]) > max(map(abs, model["new"]["mean"]))
        yield Comparison(f"{name}: heads above every new one", float(above.mean()), role=SHOWN)
        apart, error = over_groups(model[kind]["means"])
        yield Comparison(f"{name}: m_q.m_k / deviation", apart, standard_error=error, role=SHOWN)
        size, error = sizes[name]
        text = f"{name}: E(q.k)^2 over that of independent q and k"
        yield Comparison(text, size, ">", 1.0, error, role=LIMITS, otherwise=condition, choice=_LARGER)
        size, error = _median(sampling, model[kind]["with_c"])
        yield Comparison(f"{name}: E(q.k)^2 over the formula with C", size, standard_error=error, role=SHOWN)


_LARGER = "to be larger at all is the least that outgrowing asks"


def _median(sampling: Sampling, heads: Sequence[float]) -> tuple[float, float]:
    """The median over heads, and how it scatters when as many heads are drawn anew."""
    rng, values = generator(sampling.seed, 33), np.array(heads)
    drawn = np.median(rng.choice(values, (400, len(values))), axis=1)
    return float(np.median(values)), float(drawn.std(ddof=1))
