"""The kernel of a wheel against the one compiled here: python wheels/race.py WHEEL [SECONDS PER SHAPE].

Another compiler made the wheel's. Each of the two lives in a process of its own, so that nothing of one is taken for the
other; the processes take turns call by call (first one, then the other, and back), over the shape matrix of the benchmark,
forward. Both answers must be right before they are timed. The target: the wheel takes at most 1.02 times as long, as
geometric mean of the best calls and of the medians.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 0.015  # seconds of load until the cores of a virtual machine run side by side
MOST = 1.02
CHILD = "import sys; sys.path[:] = {path!r}; import runpy; runpy.run_path({file!r})['contestant']()"


def contestant() -> None:
    """What each process does: a line with a number prepares that shape, an empty line is a turn."""
    import rootdk
    from benchmarks.problems import make_inputs
    from benchmarks.sections.attention import MATRIX
    from rootdk.backends import kernel

    print(
        json.dumps({"file": rootdk.__file__, "compiler": kernel().compiler(), "target": kernel().target()}), flush=True
    )
    inputs: Any = None
    for line in sys.stdin:
        if line.strip():
            inputs = make_inputs(MATRIX[int(line)])
            inputs.check(rootdk.attention(*inputs.arrays, causal=inputs.shape.causal))
            print("0", flush=True)
            continue
        begun = time.perf_counter()
        while True:
            before = time.perf_counter()
            rootdk.attention(*inputs.arrays, causal=inputs.shape.causal)
            after = time.perf_counter()
            if after - begun > WARM_UP:
                break
        print(after - before, flush=True)


class Contestant:
    """A process, seen from outside."""

    def __init__(self, path: list[str], *options: str) -> None:
        code = CHILD.format(path=path, file=__file__)
        command = [sys.executable, *options, "-c", code]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
        self.facts = json.loads(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline() or sys.exit("rootdk: wheels/race.py: a contestant has ended")

    def turn(self, line: str = "") -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return float(self._answer())


def main() -> None:
    if not sys.argv[1:] or not Path(sys.argv[1]).is_file():
        sys.exit("rootdk: wheels/race.py: give the file of a wheel for this system and Python")
    budget = float(sys.argv[2]) if len(sys.argv) > 2 else 8.0
    sys.path.insert(0, str(ROOT))
    from benchmarks.sections.attention import MATRIX

    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(sys.argv[1]).extractall(folder)
        # Without site, which would put the package that lies in src/ before the wheel's.
        both = [Contestant(sys.path), Contestant([folder, *sys.path], "-S")]
        for who, one in zip(("here ", "wheel"), both, strict=True):
            print(who, json.dumps(one.facts))
        if not both[1].facts["file"].startswith(folder):
            sys.exit("rootdk: wheels/race.py: the wheel's own package was not loaded")
        ratios: dict[str, list[float]] = {"best": [], "median": []}
        for number, shape in enumerate(MATRIX):
            for one in both:
                one.turn(str(number))
            seconds: list[list[float]] = [[], []]
            until, order = time.monotonic() + budget, (0, 1)
            while time.monotonic() < until or len(seconds[0]) < 6:
                for which in (*order, *reversed(order)):
                    seconds[which].append(both[which].turn())
            best = min(seconds[1]) / min(seconds[0])
            median = statistics.median(seconds[1]) / statistics.median(seconds[0])
            ratios["best"].append(best)
            ratios["median"].append(median)
            print(f"{shape.name:28} best {best:.3f}  median {median:.3f}  ({len(seconds[0])} calls each)", flush=True)
        for one in both:
            one.process.kill()
            one.process.wait()
    means = {name: math.exp(statistics.fmean(map(math.log, values))) for name, values in ratios.items()}
    print(f"time of the wheel's build over that of the build here, geometric mean of {len(MATRIX)} shapes: "
          f"best {means['best']:.3f}, median {means['median']:.3f}")  # fmt: skip
    if max(means.values()) > MOST:
        sys.exit(f"rootdk: more than {MOST}")


if __name__ == "__main__":
    main()
