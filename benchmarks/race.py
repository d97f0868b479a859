"""A race: answers are checked, then contestants take turns, on a noisy machine with few cores.

Contestants take turns, call by call, so that a slow second of the machine hits all of them. Two things would still
favour one over another, and both come from thread pools:

- Workers go on spinning after a call, in the hope of more work: torch's OpenMP for some 8 ms, onnxruntime for 50 ms
  and more, OpenBLAS for 100 ms and more. Whoever is timed next then shares the cores with them. So before each turn we
  wait until this process uses no CPU time.
- After such a pause the contestant's own workers are asleep, and a virtual machine may need some 10 ms of load before
  the host runs its cores side by side again. So a turn with a call shorter than 15 ms starts with untimed calls until
  15 ms have passed; calls that all take longer than that warm up by themselves. Each contestant is then timed as if
  called in a loop, which is how attention is used.

Contestants that are to be compared with each other to a few per cent (attention and measure) share one turn, under the
same rule: all of them warm up together, then each is timed once, the other one first in every second round. What
measuring adds is less than what a shared machine does to a single call; for that there are ABBA blocks, below.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.problems import WrongAnswerError

Call = Callable[[], Any]
# Seconds of the best call, which is the one least disturbed, and of the median, which is what a user meets; the number
# of calls.
Timing = dict[str, float]

# CPU time of other threads is counted in ticks of up to 10 ms; a window must hold at least one.
SETTLE_WINDOW = 0.010
SETTLE_LIMIT = 0.5
WARM_UP = 0.015


class UnsupportedError(Exception):
    """A contestant cannot do what was asked; the message says why, and is shown."""


def only_right(
    calls: Mapping[str, Call], check: Callable[[str, Any], Any], note: Callable[[str], Any] = str
) -> tuple[dict[str, Call], dict[str, str]]:
    """Call each once and hand its name and result to `check`: those that pass, and why the others are left out.

    `note` gets each name before its call. A foreign library fails in its own ways and must not end the run.
    """
    right, left_out = {}, {}
    for name, call in calls.items():
        note(name)
        try:
            check(name, call())
            right[name] = call
        except Exception as error:  # noqa: BLE001 - see above
            left_out[name] = reason(error)
    return right, left_out


def reason(error: Exception) -> str:
    """Why a contestant does not take part in one race."""
    if isinstance(error, UnsupportedError | WrongAnswerError):
        return str(error)
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"


def interleave(contestants: Mapping[str, Call], budget: float, **how: Any) -> dict[str, Timing]:
    """Time all contestants in turns, one call each in every round, in about `budget` seconds; see `rounds`."""
    return {name: timing(seconds) for name, seconds in rounds(contestants, budget, **how).items()}


def timing(seconds: Sequence[float]) -> Timing:
    """Sum up the calls of one contestant.

    >>> timing([3.0, 1.0, 8.0])
    {'best': 1.0, 'median': 3.0, 'calls': 3}
    """
    return {"best": min(seconds), "median": statistics.median(seconds), "calls": len(seconds)}


def rounds(
    contestants: Mapping[str, Call],
    budget: float,
    fewest: int = 5,
    most: int = 60,
    together: tuple[str, ...] = (),
    pause: float = 0.0,
) -> dict[str, list[float]]:
    """Every single time: entry r of each list is of round r.

    Those in `together` share one turn. With `pause`, every timed call comes so many seconds after the one before it.
    """
    if not contestants:  # all of them were wrong
        return {}
    usual = {}
    for name, call in contestants.items():
        call()
        usual[name] = timed(call)
    shared = tuple(name for name in together if name in contestants)
    turns = [shared] * bool(shared) + [(name,) for name in contestants if name not in shared]
    cost = pause * len(contestants) + sum(
        2 * SETTLE_WINDOW + _seconds_of_turn([usual[name] for name in turn]) for turn in turns
    )
    number = max(fewest, min(most, int(budget / cost)))
    seconds_of: dict[str, list[float]] = {name: [] for name in contestants}
    with _no_collection():
        for round_ in range(number):
            # Another one starts each round, and every second round runs backwards: nobody always follows the same
            # neighbour.
            first = round_ % len(turns)
            order = turns[first:] + turns[:first]
            for turn in order if round_ % 2 == 0 else reversed(order):
                settle()
                names = turn if round_ % 2 == 0 else turn[::-1]
                if not _warms_itself([usual[name] for name in names]):
                    _warm_up([contestants[name] for name in names])
                for name in names:
                    if pause:
                        time.sleep(pause)
                    seconds_of[name].append(timed(contestants[name]))
    return seconds_of


def settle() -> None:
    """Return when no thread of this process has worked for one window, or after half a second."""
    deadline = time.perf_counter() + SETTLE_LIMIT
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(SETTLE_WINDOW)
        if time.process_time() - before < 0.1 * SETTLE_WINDOW:
            return


def timed(call: Call) -> float:
    """Seconds of one call. Its result is dropped after the clock has stopped."""
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    del result
    return seconds


@contextmanager
def _no_collection() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _warms_itself(usual: Sequence[float]) -> bool:
    return min(usual) >= WARM_UP


def _seconds_of_turn(usual: Sequence[float]) -> float:
    """About how long a turn takes after the wait: its timed calls, and the warm-up in whole rounds of them."""
    once = sum(usual)
    return once if _warms_itself(usual) else once + max(WARM_UP, once)


def _warm_up(calls: Iterable[Call], clock: Callable[[], float] = time.perf_counter) -> None:
    stop = clock() + WARM_UP
    while True:
        for call in calls:
            call()
        if clock() >= stop:
            return


# ABBA blocks: two contestants whose times differ by less than a shared machine disturbs a single call. They take turns
# without a pause, four calls at a time: A, B, B, A, and B, A, A, B the next time. What drifts through a block adds the
# same to both sides, and each block gives a ratio of its own; the median of those is judged. The race goes on until
# that median is known to PRECISION, half the width of its 95 % interval, but not longer than PATIENCE budgets. Beside
# it stands the ratio in the quietest tenth of the blocks, those that took least time in all. Not the fastest calls of
# each side: those were made in different moments, and with long calls their ratio is luck.
PRECISION = 0.005
PATIENCE = 8
FEWEST_BLOCKS = 7


def abba(
    a: Call, b: Call, budget: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[list[float], list[float]]:
    """Seconds of both, two calls each in every block; entries 2i and 2i + 1 are of the same block."""
    _warm_up((a, b), clock)
    seconds: tuple[list[float], list[float]] = ([], [])
    calls, began = (a, b), clock()
    with _no_collection():
        while not _enough(seconds, clock() - began, budget):
            first = len(seconds[0]) // 2 % 2
            for which in (first, 1 - first, 1 - first, first):
                seconds[which].append(timed(calls[which]))
    return seconds


def _enough(seconds: tuple[list[float], list[float]], spent: float, budget: float) -> bool:
    if len(seconds[0]) < 2 * FEWEST_BLOCKS or spent < budget:
        return False
    low, high = median_interval([b / a for a, b in _blocks(*seconds)])
    return spent >= PATIENCE * budget or (high - low) / 2 <= PRECISION


def block_ratios(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """b / a: in the quietest tenth of the blocks, and the median over all with its 95 % interval.

    Quiet is what all calls of a block took together, which favours neither side.

    >>> block_ratios([1.0, 1.0, 2.0, 2.0, 4.0, 4.0], [1.5, 1.5, 2.0, 2.0, 8.0, 8.0])
    {'best': 1.5, 'median': 1.5, 'low': 1.0, 'high': 2.0}
    """
    blocks = sorted(_blocks(a, b), key=sum)
    quiet = blocks[: math.ceil(len(blocks) / 10)]
    ratios = [of_b / of_a for of_a, of_b in blocks]
    low, high = median_interval(ratios)
    best = sum(of_b for _, of_b in quiet) / sum(of_a for of_a, _ in quiet)
    return {"best": best, "median": statistics.median(ratios), "low": low, "high": high}


def _blocks(a: Sequence[float], b: Sequence[float]) -> list[tuple[float, float]]:
    """What the two calls of either side took, block by block."""
    return [(sum(a[i : i + 2]), sum(b[i : i + 2])) for i in range(0, len(a), 2)]


def median_interval(numbers: Sequence[float]) -> tuple[float, float]:
    """Where the median of what the numbers were drawn from lies, at 95 %: by ranks, whatever they are spread like.

    How many of n draws fall below the median is binomial, n/2 on average with deviation sqrt(n)/2.

    >>> median_interval([float(number) for number in range(101)])
    (40.0, 60.0)
    """
    ordered, reach = sorted(numbers), 0.98 * math.sqrt(len(numbers))
    middle = (len(ordered) - 1) / 2
    return ordered[max(0, math.floor(middle - reach))], ordered[min(len(ordered) - 1, math.ceil(middle + reach))]


# The yardstick: the rate of one large matrix product in the same turns. Attention is two products and a softmax. Large
# enough that every BLAS is at its full rate, small enough to take its turn between the others.
SGEMM_SIZE = 1536
SGEMM = "sgemm "


def beside_sgemm(calls: dict[str, Call], left_out: dict[str, str], budget: float, *, torch: bool) -> dict[str, Any]:
    """Time the calls, with sgemm among them; the part of a row that is the same for every such race.

    NumPy's product, and torch's when torch takes part: each brings its own library, and the faster one counts.
    """
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SGEMM_SIZE, SGEMM_SIZE), dtype=np.float32) for _ in range(2))
    products: dict[str, Call] = {f"{SGEMM}numpy": lambda: a @ b}
    if torch:
        import torch as torch_

        torch_a, torch_b = torch_.from_numpy(a), torch_.from_numpy(b)
        products[f"{SGEMM}torch"] = lambda: torch_.mm(torch_a, torch_b)
    timings = interleave(calls | products, budget, together=("rootdk", "measure"))
    return {"sgemm": sgemm_rate(timings), "seconds": {name: timings[name] for name in calls}, "left_out": left_out}


def sgemm_rate(timings: Mapping[str, Timing]) -> dict[str, float]:
    """Rate of the fastest product in operations per second, by its best call and by its median."""
    products = [product for name, product in timings.items() if name.startswith(SGEMM)]
    return {statistic: 2 * SGEMM_SIZE**3 / min(t[statistic] for t in products) for statistic in ("best", "median")}
