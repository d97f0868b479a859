"""Fair timing of several contestants on a noisy machine with few cores.

Contestants take turns, call by call, so that a slow second of the machine hits all of them. Two things would still
favour one over another, and both come from thread pools:

- Workers go on spinning after a call, in the hope of more work: torch's OpenMP for some 8 ms, onnxruntime for 50 ms
  and more, OpenBLAS for 100 ms and more. Whoever is timed next then shares the cores with them. So before each turn we
  wait until this process uses no CPU time.
- After such a pause the contestant's own workers are asleep, and waking them costs the same few 10 us whatever the
  work is. So a short contestant gets one untimed call first, and is timed as if called in a loop, which is how
  attention is used. For a long call the waking does not show, and the extra call is saved.
"""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

from rootdk.bench.ratios import Timing, timing

Call = Callable[[], Any]

# CPU time of other threads is counted in ticks of up to 10 ms; a window must hold at least one.
SETTLE_WINDOW = 0.010
SETTLE_LIMIT = 0.5
LONG_CALL = 0.020


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


def interleave(contestants: Mapping[str, Call], budget: float, fewest: int = 5, most: int = 40) -> dict[str, Timing]:
    """Time all contestants in turns, the same number of calls for each, in about `budget` seconds."""
    names = list(contestants)
    usual = {}
    for name in names:
        contestants[name]()
        usual[name] = timed(contestants[name])
    cost = sum(2 * SETTLE_WINDOW + seconds * (1 if seconds >= LONG_CALL else 2) for seconds in usual.values())
    rounds = max(fewest, min(most, int(budget / cost)))
    seconds_of: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds):
            # Another one starts each round, and every second round runs backwards: nobody always follows the same
            # neighbour.
            first = turn % len(names)
            order = names[first:] + names[:first]
            for name in order if turn % 2 == 0 else reversed(order):
                settle()
                if usual[name] < LONG_CALL:
                    contestants[name]()
                seconds_of[name].append(timed(contestants[name]))
    finally:
        if collecting:
            gc.enable()
    return {name: timing(seconds) for name, seconds in seconds_of.items()}
