"""The experiment "scores": their whole law, nearly Gaussian for large d_k, with a width of sqrt(d_k) until scaled."""

from dataclasses import asdict, dataclass

import numpy as np

from rootdk.lab.drawing import HUES, POWERS, Picture, bars, line, plot
from rootdk.lab.formulas import SCALED
from rootdk.theory import score_density, score_excess_kurtosis, score_tail

from .comparison import Comparison, Parameters, Result, Series
from .experiment import Experiment, Progress, Spec, a_count, a_seed, counts, register
from .sampler import Floats, compare, compare_share, generator, normal

_SIDE = 64  # queries and keys of a group: 4096 scores from 128 vectors
_REACH, _BINS = 7, 113  # in standard deviations: beyond it nothing is counted or drawn


@dataclass(frozen=True, slots=True)
class ScoresSpec(Spec):
    """groups of 64 Gaussian queries and 64 keys, every query with every key."""

    d_k: tuple[int, ...] = counts((4, 64, 512), 3, 10**5)
    groups: int = a_count(100, 2, 10**6)
    seed: int = a_seed()


def run(spec: ScoresSpec, progress: Progress) -> Result:
    """Moments and tails of z = <q, k>/sqrt(d_k), and histograms of z and of <q, k> with their densities."""
    comparisons: list[Comparison] = []
    series: list[Series] = []
    for number, d_k in enumerate(spec.d_k):
        rng = generator(spec.seed, 2, d_k)
        z = np.empty((spec.groups, _SIDE, _SIDE))
        for group in z:
            query, key = normal(rng, (_SIDE, d_k)), normal(rng, (_SIDE, d_k))
            # In blocks of 4 queries: so small a product BLAS computes without threads, which cost more than they bring.
            group[:] = np.matmul(query.reshape(-1, 4, d_k), key.T).reshape(_SIDE, _SIDE)
        root, setting = d_k**0.5, {"d_k": d_k}
        z /= root
        comparisons.append(compare("scaled variance", setting, 1.0, z**2))
        comparisons.append(compare("scaled fourth moment", setting, 3 + score_excess_kurtosis(d_k), z**4))
        comparisons += [
            compare_share(f"share beyond {edge}", setting, score_tail(edge, d_k, 1 / root), np.abs(z) > edge)
            for edge in (1, 2, 3)
        ]
        series += _histograms(z, d_k)
        progress((number + 1) / len(spec.d_k))
    return Result("scores", asdict(spec), tuple(comparisons), tuple(series))


def _histograms(z: Floats, d_k: int) -> list[Series]:
    """Histogram and density, of z and of the unscaled score: the same counts, on another axis."""
    edges = np.linspace(-_REACH, _REACH, _BINS + 1)
    counts, _ = np.histogram(z, edges)
    centres, height = (edges[1:] + edges[:-1]) / 2, counts / z.size / (edges[1] - edges[0])
    curve = np.linspace(-_REACH, _REACH, 225)
    series = []
    for rule, stretch in (("sqrt", 1.0), ("none", d_k**0.5)):
        setting: Parameters = {"d_k": d_k, "rule": rule}
        density = score_density(curve * stretch, d_k, stretch / d_k**0.5)
        series.append(Series("density", "measured", setting, _listed(centres * stretch), _listed(height / stretch)))
        series.append(Series("density", "theory", setting, _listed(curve * stretch), _listed(density)))
    return series


def _listed(values: object) -> tuple[float, ...]:
    return tuple(np.asarray(values, np.float64).tolist())


def _pictures(result: Result) -> list[Picture]:
    wider = "Bars: measured. Lines: the exact density. The larger d_k is, the wider."
    scaled_text = "The same scores after the scale: the same width for every d_k."
    return [
        _histogram(result, "none", "Scores without a scale", wider),
        _histogram(result, "sqrt", "Scores times 1/√d_k", scaled_text),
    ]


def _histogram(result: Result, rule: str, title: str, caption: str) -> Picture:
    traces = []
    chosen = [series for series in result.series if series.setting["rule"] == rule]
    widest = max((series.setting["d_k"] for series in chosen), default=1)
    for number, counted in enumerate(series for series in chosen if series.kind == "measured"):
        name, colour = f"d_k = {counted.setting['d_k']}", HUES[number % len(HUES)]
        (density,) = (other for other in chosen if other.kind == "theory" and other.setting == counted.setting)
        traces.append(
            bars(
                counted.x, counted.y, name, colour, legendgroup=name, opacity=0.4, width=counted.x[1] - counted.x[0],
                hovertemplate="measured %{y:.3g}", showlegend=False,
            )
        )  # fmt: skip
        traces.append(line(density.x, density.y, name, colour, legendgroup=name, hovertemplate="theory %{y:.3g}"))
    reach = 4.5 * float(widest) ** 0.5 if rule == "none" else 4.5
    height = POWERS | {"range": [-5, 0]} if rule == "none" else {"rangemode": "tozero"}
    figure = plot(
        traces, "score", "density", barmode="overlay", bargap=0, xaxis={"range": [-reach, reach]}, yaxis=height
    )
    return Picture(f"scores-{rule}", title, caption, figure)


register(
    Experiment(
        name="scores",
        place=2,
        question="What is the distribution of a score?",
        spec=ScoresSpec,
        run=run,
        seconds=0.2,
        heading="Scores spread out as d_k grows",
        text="For a given query, the scores of a row are exactly Gaussian. Their standard deviation is the length of "
        "the query, which is close to √d_k. Dividing by √d_k gives every d_k the same standard deviation, 1.",
        formula=SCALED,
        pictures=_pictures,
        quick={"groups": 30},
        full={"d_k": (4, 16, 64, 512), "groups": 1000},
    )
)
