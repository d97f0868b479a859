"""What measuring adds to attention: a few per cent, which is less than what a shared machine does to a single call.

So the two take turns without a pause, four calls at a time: attention, measure, measure, attention, and the other way
round the next time. What drifts through the four adds the same to both sides, and each four give a ratio of their own;
the median of those is judged. The race goes on until that median is known to half a per cent, or time is up. Beside it
stands the ratio in the quietest tenth of the fours, those that took least time in all. Not the fastest calls of each
side: those were made in different moments, and with long calls their ratio is luck.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import rootdk
from rootdk.bench.ratios import timing
from rootdk.bench.setting import Setting, Step
from rootdk.bench.shapes import Shape, make_inputs
from rootdk.bench.timing import WARM_UP, Call, timed

# Half the width of the 95 % interval around the median at which a race ends, and how much longer than its budget it may
# take to get there.
PRECISION = 0.005
PATIENCE = 8
FEWEST = 7


def steps(setting: Setting, shapes: Sequence[Shape]) -> Iterator[Step]:
    """One race of two per shape."""
    for shape in shapes:
        yield Step("pairs", f"{shape.name}, measure", partial(race, shape, setting.seconds(2.5)))


def race(shape: Shape, budget: float) -> dict[str, Any]:
    """attention and measure on the same arrays. race.forward holds both against float64."""
    inputs = make_inputs(shape)
    arrays = (inputs.query, inputs.key, inputs.value)
    attention, measure = in_fours(
        lambda: rootdk.attention(*arrays, causal=shape.causal),
        lambda: rootdk.measure(*arrays, causal=shape.causal),
        budget,
    )
    return {
        "name": shape.name,
        "shape": asdict(shape),
        "seconds": {"rootdk": asdict(timing(attention)), "measure": asdict(timing(measure))},
        "measure_over_attention": ratios(attention, measure),
        "left_out": {},
    }


def in_fours(
    plain: Call, other: Call, budget: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[list[float], list[float]]:
    """Seconds of both, two calls each in every four; entries 2i and 2i + 1 are of the same four."""
    stop = clock() + WARM_UP
    while True:
        plain(), other()
        if clock() >= stop:
            break
    seconds: tuple[list[float], list[float]] = ([], [])
    calls, began = (plain, other), clock()
    collecting = gc.isenabled()
    gc.disable()
    try:
        while not _enough(seconds, clock() - began, budget):
            first = len(seconds[0]) // 2 % 2
            for which in (first, 1 - first, 1 - first, first):
                seconds[which].append(timed(calls[which]))
    finally:
        if collecting:
            gc.enable()
    return seconds


def _enough(seconds: tuple[list[float], list[float]], spent: float, budget: float) -> bool:
    number = len(seconds[0]) // 2
    if number < FEWEST or spent < budget:
        return False
    low, high = interval(_of_fours(*seconds))
    return spent >= PATIENCE * budget or (high - low) / 2 <= PRECISION


def ratios(attention: Sequence[float], measure: Sequence[float]) -> dict[str, float]:
    """measure / attention: in the quietest tenth of the fours, and the median over all with its 95 % interval.

    >>> ratios([1.0, 1.0, 2.0, 2.0, 4.0, 4.0], [1.5, 1.5, 2.0, 2.0, 8.0, 8.0])
    {'best': 1.5, 'median': 1.5, 'low': 1.0, 'high': 2.0}
    """
    of_fours = _of_fours(attention, measure)
    low, high = interval(of_fours)
    return {"best": _in_quiet(attention, measure), "median": statistics.median(of_fours), "low": low, "high": high}


def interval(numbers: Sequence[float]) -> tuple[float, float]:
    """Where the median of what the numbers were drawn from lies, at 95 %: by ranks, whatever they are spread like.

    How many of n draws fall below the median is binomial, n/2 on average with deviation sqrt(n)/2.

    >>> interval([float(number) for number in range(101)])
    (40.0, 60.0)
    """
    ordered, reach = sorted(numbers), 0.98 * math.sqrt(len(numbers))
    middle = (len(ordered) - 1) / 2
    return ordered[max(0, math.floor(middle - reach))], ordered[min(len(ordered) - 1, math.ceil(middle + reach))]


def _of_fours(attention: Sequence[float], measure: Sequence[float]) -> list[float]:
    return [measured / plain for plain, measured in _sides(attention, measure)]


def _in_quiet(attention: Sequence[float], measure: Sequence[float]) -> float:
    """Chosen by what all calls of a four took together, which favours neither side."""
    fours = sorted(_sides(attention, measure), key=sum)
    quiet = fours[: math.ceil(len(fours) / 10)]
    return sum(measured for _, measured in quiet) / sum(plain for plain, _ in quiet)


def _sides(attention: Sequence[float], measure: Sequence[float]) -> list[tuple[float, float]]:
    """What the two calls of either side took, four by four."""
    return [(sum(attention[i : i + 2]), sum(measure[i : i + 2])) for i in range(0, len(attention), 2)]
