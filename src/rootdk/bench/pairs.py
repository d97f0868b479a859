"""What measuring adds to attention, in pairs: the two calls right after one another, the other one first each time.

A ratio of two medians still carries whatever happened between the two middle calls. The two calls of a pair meet the
same machine, so each pair gives a ratio of its own, and the median of those ratios is what is judged, beside best over
best. Nobody else takes part here, so that a few seconds hold many pairs.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import rootdk
from rootdk.bench.ratios import timing
from rootdk.bench.setting import Setting, Step
from rootdk.bench.shapes import Shape, make_inputs
from rootdk.bench.timing import rounds


def steps(setting: Setting, shapes: Sequence[Shape]) -> Iterator[Step]:
    """One race of two per shape."""
    for shape in shapes:
        yield Step("pairs", f"{shape.name}, measure", partial(race, shape, setting.seconds(2.5)))


def race(shape: Shape, budget: float) -> dict[str, Any]:
    """attention and measure on the same arrays. race.forward holds both against float64."""
    inputs = make_inputs(shape)
    arrays = (inputs.query, inputs.key, inputs.value)
    calls = {
        "rootdk": lambda: rootdk.attention(*arrays, causal=shape.causal),
        "measure": lambda: rootdk.measure(*arrays, causal=shape.causal),
    }
    seconds_of = rounds(calls, budget, fewest=7, most=101, together=("rootdk", "measure"))
    return {
        "name": shape.name,
        "shape": asdict(shape),
        "seconds": {name: asdict(timing(seconds)) for name, seconds in seconds_of.items()},
        "measure_over_attention": ratios(seconds_of["rootdk"], seconds_of["measure"]),
        "left_out": {},
    }


def ratios(attention: Sequence[float], measure: Sequence[float]) -> dict[str, float]:
    """Best over best, and the median over pairs of (measure / attention).

    >>> ratios([1.0, 2.0, 4.0], [1.5, 2.0, 8.0])
    {'best': 1.5, 'median': 1.5}
    """
    return {
        "best": min(measure) / min(attention),
        "median": statistics.median(ours / plain for plain, ours in zip(attention, measure, strict=True)),
    }
