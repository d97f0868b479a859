"""Fair timing of several contestants on a noisy machine with few cores.

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
same rule: all of them warm up together, then each is timed once, the other one first in every second round.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rootdk.bench.ratios import Timing, timing

Call = Callable[[], Any]

# CPU time of other threads is counted in ticks of up to 10 ms; a window must hold at least one.
SETTLE_WINDOW = 0.010
SETTLE_LIMIT = 0.5
WARM_UP = 0.015


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


def interleave(
    contestants: Mapping[str, Call],
    budget: float,
    fewest: int = 5,
    most: int = 60,
    together: tuple[str, ...] = (),
    pause: float = 0.0,
) -> dict[str, Timing]:
    """Time all contestants in turns, one call each in every round, in about `budget` seconds.

    Those in `together` share one turn. With `pause`, every timed call comes so many seconds after the one before it.
    """
    seconds_of = rounds(contestants, budget, fewest, most, together, pause)
    return {name: timing(seconds) for name, seconds in seconds_of.items()}


def rounds(
    contestants: Mapping[str, Call],
    budget: float,
    fewest: int = 5,
    most: int = 60,
    together: tuple[str, ...] = (),
    pause: float = 0.0,
) -> dict[str, list[float]]:
    """The same, with every single time: entry r of each list is of round r."""
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
    collecting = gc.isenabled()
    gc.disable()
    try:
        for round_ in range(number):
            # Another one starts each round, and every second round runs backwards: nobody always follows the same
            # neighbour.
            first = round_ % len(turns)
            order = turns[first:] + turns[:first]
            for turn in order if round_ % 2 == 0 else reversed(order):
                settle()
                names = turn if round_ % 2 == 0 else turn[::-1]
                _warm_up([contestants[name] for name in names], [usual[name] for name in names])
                for name in names:
                    if pause:
                        time.sleep(pause)
                    seconds_of[name].append(timed(contestants[name]))
    finally:
        if collecting:
            gc.enable()
    return seconds_of


def _warms_itself(usual: Sequence[float]) -> bool:
    return min(usual) >= WARM_UP


def _seconds_of_turn(usual: Sequence[float]) -> float:
    """About how long a turn takes after the wait: its timed calls, and the warm-up in whole rounds of them."""
    once = sum(usual)
    return once if _warms_itself(usual) else once + max(WARM_UP, once)


def _warm_up(calls: Sequence[Call], usual: Sequence[float]) -> None:
    if _warms_itself(usual):
        return
    stop = time.perf_counter() + WARM_UP
    while True:
        for call in calls:
            call()
        if time.perf_counter() >= stop:
            return
