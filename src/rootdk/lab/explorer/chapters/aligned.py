"""When q and k agree: scores of queries and keys that are not independent, and what remains of the argument."""

import math
from functools import lru_cache

import numpy as np

from rootdk.lab.checks.premises import trained_models
from rootdk.lab.drawing import COLOURS, GREY, ONES_AND_THREES, bars, level, line, plot, points
from rootdk.lab.explorer.chapter import Array, Chapter, Control, Figure, Table, Values, View, number, written
from rootdk.lab.explorer.shared import SEED, WIDTH_AXIS, WIDTHS, d_k_knob
from rootdk.lab.formulas import SCALED
from rootdk.theory import score_density, score_mean, score_variance

_PAIRS, _WIDEST = 1024, 1024


def compute(values: Values) -> View:
    """1024 pairs of a query and a key whose components i are correlated; each pair gives one score."""
    d_k, r = values["d_k"], values["correlation"]
    query, noise = (part[:, :d_k] for part in _parts(values["seed"]))
    scores = (query * (r * query + math.sqrt(1 - r * r) * noise)).sum(axis=1)
    mean, variance = _theory(d_k, r)
    size = math.sqrt(mean**2 + variance)
    exponent = math.log(size) / math.log(d_k)
    measured = math.sqrt(float((scores**2).mean()))
    numbers = (
        number("mean", "mean of q·k", float(scores.mean()), "measured"),
        number("mean_theory", "mean of q·k: tr C", mean, "theory"),
        number("variance", "variance of q·k", float(scores.var()), "measured"),
        number("variance_theory", "variance of q·k: tr(S_q S_k) + tr(C C)", variance, "theory"),
        number("size", "size of q·k, root of its mean square", measured, "measured"),
        number("size_theory", "size of q·k, root of its mean square", size, "theory"),
        number("over_root", "the same, divided by √d_k", size / math.sqrt(d_k), "theory"),
        number("over_width", "the same, divided by d_k", size / d_k, "theory"),
        number("exponent", "a of the scale d_k to the power -a that makes it 1", exponent, "theory"),
    )
    return View((_sizes(values, measured), _scores(values, scores)), numbers, _python(values), _table())


def _theory(d_k: int, r: float) -> tuple[float, float]:
    """Mean and variance: d_k problems of one component."""
    return d_k * float(score_mean([[r]])), d_k * float(score_variance([[1.0]], [[1.0]], cross_covariance=[[r]]))


@lru_cache(maxsize=4)
def _parts(seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((_PAIRS, _WIDEST)), rng.standard_normal((_PAIRS, _WIDEST))


def _sizes(values: Values, measured: float) -> Figure:
    d_k, r = values["d_k"], values["correlation"]
    sizes = np.array([math.sqrt(mean**2 + variance) for mean, variance in (_theory(width, r) for width in WIDTHS)])
    widths = np.array(WIDTHS, float)
    data = [
        line(WIDTHS, sizes / np.sqrt(widths), "divided by √d_k", COLOURS["sqrt"]),
        line(WIDTHS, sizes / widths, "divided by d_k", COLOURS["dk"]),
        points([d_k], [measured / math.sqrt(d_k)], "measured", COLOURS["sqrt"], showlegend=False),
        points([d_k], [measured / d_k], "measured", COLOURS["dk"], showlegend=False),
    ]
    figure = plot(data, "d_k", "size of the scaled score", xaxis=WIDTH_AXIS, yaxis=ONES_AND_THREES, shapes=[level(1.0)])
    ends = [written(end, 3) for end in (*(sizes / np.sqrt(widths))[[0, -1]], *(sizes / widths)[[0, -1]])]
    text = (
        f"Root mean square of q·k for d_k from {WIDTHS[0]} to {WIDTHS[-1]}, at correlation {r:g}: divided by √d_k from "
        f"{ends[0]} to {ends[1]}, divided by d_k from {ends[2]} to {ends[3]}."
    )
    return Figure("sizes", "The size of a score over d_k", figure, text)


def _scores(values: Values, scores: Array) -> Figure:
    d_k, root = values["d_k"], math.sqrt(values["d_k"])
    mean, variance = (part / by for part, by in zip(_theory(d_k, values["correlation"]), (root, d_k), strict=True))
    sigma = math.sqrt(variance)
    edges = mean + sigma * np.linspace(-5, 5, 41)
    counts, _ = np.histogram(scores / root, edges)
    width = float(edges[1] - edges[0])
    x = np.linspace(min(-5.0, edges[0]), edges[-1], 201)
    data = [
        line(x, score_density(x, d_k, 1 / root), "q and k that know nothing of each other", GREY, "dot"),
        bars((edges[1:] + edges[:-1]) / 2, counts / scores.size / width, "measured", COLOURS["sqrt"], opacity=0.45,
             width=width),
    ]  # fmt: skip
    figure = plot(data, "q·k / √d_k", "density", bargap=0)
    text = (
        f"Histogram of {scores.size} scores divided by √d_k. Theory: mean {written(mean, 3)}, standard deviation "
        f"{written(sigma, 3)}. Without correlation they are 0 and 1."
    )
    return Figure("scores", "The scores", figure, text)


def _table() -> Table:
    """The same in trained models: the mean of q·k of a token with itself, in deviations."""
    rows = []
    for name, model in trained_models().items():
        trained, new = (written(np.mean(model[kind]["mean"]), 3) for kind in ("trained", "new"))
        rows.append((name, str(model["d_k"]), str(len(model["trained"]["mean"])), trained, new))
    return Table(("trained model", "d_k", "heads", "mean of q·k, in deviations", "the same, newly made"), tuple(rows))


def _python(values: Values) -> str:
    d_k, r = values["d_k"], values["correlation"]
    return f"""\
import numpy as np
from rootdk.theory import score_mean, score_variance

rng = np.random.default_rng({values["seed"]})
q, noise = (rng.standard_normal(({_PAIRS}, {_WIDEST}))[:, :{d_k}] for _ in range(2))
scores = (q * ({r} * q + (1 - {r}**2) ** 0.5 * noise)).sum(axis=1)
mean = {d_k} * score_mean([[{r}]])
variance = {d_k} * score_variance([[1.0]], [[1.0]], cross_covariance=[[{r}]])
size = (mean**2 + variance) ** 0.5
print("mean", scores.mean())
print("mean_theory", mean)
print("variance", scores.var())
print("variance_theory", variance)
print("size", (scores**2).mean() ** 0.5)
print("size_theory", size)
print("over_root", size / {d_k}**0.5)
print("over_width", size / {d_k})
print("exponent", np.log(size) / np.log({d_k}))
"""


CHAPTER = Chapter(
    id="aligned",
    title="When q and k agree",
    formula=SCALED,
    to_try="Drag the correlation up from nothing, and then d_k.",
    to_see="Without correlation the blue line is flat. With any correlation it rises, and the line of 1/d_k becomes "
    "the flat one. The histogram moves away from its place at the start.",
    said="q·k has variance d_k, so attention must divide by √d_k.",
    true="While q and k are independent, as at the start. Training makes the query of a token similar to its own key: "
    "the table has the mean that q·k owes to that, in two trained models. If it were the same at every width, 1/d_k "
    "would keep q·k in its place.",
    controls=(Control("correlation", "correlation of q_i with k_i", "float", 0.3, 0.0, 1.0, 0.01), d_k_knob(64), SEED),
    compute=compute,
)
