"""The proof: the square of the sum has d x d terms, and their averages are 1 on the diagonal and 0 elsewhere."""

from collections.abc import Mapping

import numpy as np

from rootdk.lab.drawing import HUES, POWERS, level, line, plot, points, square_map
from rootdk.lab.explorer.chapter import Array, Chapter, Control, Figure, Values, View, number, written
from rootdk.lab.explorer.shared import SEED
from rootdk.lab.formulas import SQUARE
from rootdk.theory import square_term_counts, square_terms

_MOST = 16384


def compute(values: Values) -> View:
    """The terms q_i k_i q_j k_j averaged over the samples, and how the averages settle as samples are added."""
    d, samples = values["d"], values["samples"]
    products = _products(d, samples, values["seed"])
    table = products.T @ products / samples
    squares, sums = (products**2).sum(axis=1), products.sum(axis=1) ** 2
    # Samples are independent, terms of one sample are not: the error of each mean is taken over samples.
    parts = {"ones": squares / d, "zeros": (sums - squares) / (d * (d - 1)), "total": sums}
    labels = {
        "ones": f"average over the {d} terms on the diagonal",
        "zeros": f"average over the other {d * (d - 1)}",
        "total": "sum of all averages",
    }
    diagonal = np.trace(table)
    averages = {"ones": diagonal / d, "zeros": (table.sum() - diagonal) / (d * (d - 1)), "total": table.sum()}
    numbers = []
    for name, average in averages.items():
        error = parts[name].std(ddof=1) / samples**0.5
        numbers.append(number(name, labels[name], average, "measured"))
        numbers.append(number(f"{name}_error", "its standard error", error, "measured", 2))
    numbers.append(number("total_theory", "sum of all averages: the variance", square_terms(d).sum(), "theory"))
    numbers.append(number("terms", "terms", square_term_counts(d)["terms"], "theory"))
    return View((_grid(table, samples), _settling(parts, d, samples)), tuple(numbers), _python(values))


def _products(d: int, samples: int, seed: int) -> Array:
    """q_i k_i, one sample a row. Drawn one after the other, so that more samples keep the earlier ones."""
    pairs = np.random.default_rng(seed).standard_normal((samples, 2, d))
    return np.asarray(pairs[:, 0] * pairs[:, 1])


def _grid(table: Array, samples: int) -> Figure:
    d = len(table)
    cells = {"texttemplate": "%{z:.2f}"} if d <= 8 else {}
    figure = square_map(table, (-1, 1), "j", "i", "i %{y}, j %{x}: %{z:.3f}", **cells)
    off = table[~np.eye(d, dtype=bool)]
    text = (
        f"Grid of {d} by {d} averages over {samples} samples. Diagonal from {written(np.diag(table).min(), 3)} to "
        f"{written(np.diag(table).max(), 3)}; the others from {written(off.min(), 3)} to {written(off.max(), 3)}."
    )
    return Figure("grid", "Averages of qᵢkᵢqⱼkⱼ", figure, text)


def _settling(parts: Mapping[str, Array], d: int, samples: int) -> Figure:
    """Running means at counts that grow by powers, each with the band of two standard errors."""
    counts = np.unique(np.geomspace(2, samples, 48).astype(int))
    shown = {"diagonal": parts["ones"], "others": parts["zeros"], "sum / d": parts["total"] / d}
    data = []
    for (label, part), colour in zip(shown.items(), HUES, strict=False):
        mean = np.cumsum(part)[counts - 1] / counts
        square = np.cumsum(part * part)[counts - 1] / counts
        error = np.sqrt(np.maximum(square - mean * mean, 0.0) / (counts - 1))
        data.append(line(counts, mean, label, colour))
        if label != "sum / d":
            data.append(points(counts[-1:], mean[-1:], label, colour, error[-1:], showlegend=False))
    axes = {"xaxis": POWERS | {"range": [0.2, np.log10(_MOST) + 0.1]}, "yaxis": {"range": [-0.5, 2.5]}}
    figure = plot(data, "samples", "average so far", shapes=[level(1.0), level(0.0)], **axes)
    ends = ", ".join(f"{label} {written(part.mean(), 3)}" for label, part in shown.items())
    return Figure("settling", "Averages as samples are added", figure, f"After {samples} samples: {ends}.")


def _python(values: Values) -> str:
    d, samples = values["d"], values["samples"]
    return f"""\
import numpy as np
from rootdk.theory import square_terms

pairs = np.random.default_rng({values["seed"]}).standard_normal(({samples}, 2, {d}))
products = pairs[:, 0] * pairs[:, 1]
table = products.T @ products / {samples}
squares = (products**2).sum(axis=1)
others = products.sum(axis=1) ** 2 - squares
print("ones", np.trace(table) / {d})
print("ones_error", (squares / {d}).std(ddof=1) / {samples} ** 0.5)
print("zeros", (table.sum() - np.trace(table)) / {d * (d - 1)})
print("zeros_error", (others / {d * (d - 1)}).std(ddof=1) / {samples} ** 0.5)
print("total", table.sum())
print("total_error", (products.sum(axis=1) ** 2).std(ddof=1) / {samples} ** 0.5)
print("total_theory", square_terms({d}).sum())
print("terms", square_terms({d}).size)
"""


CHAPTER = Chapter(
    id="proof",
    title="The proof",
    formula=SQUARE,
    to_try="Press play, or drag the number of samples. Then change d.",
    to_see="The averages on the diagonal approach 1 and all others approach 0. So the d × d averages add up to d.",
    said="The dot product is a sum of d terms of variance 1, so its variance is d.",
    true="This is exact, for every distribution and every d. The d squares have the average 1. The d(d - 1) cross "
    "terms have the average 0, because the components are independent with mean 0.",
    controls=(
        Control("d", "d", "int", 6, 2, 16, 1, help="Components of q and k."),
        Control("samples", "samples", "int", 400, 8, _MOST, 1, log=True, play=True, help="Random pairs of q and k."),
        SEED,
    ),
    compute=compute,
)
