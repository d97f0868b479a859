"""The package of a wheel against the one here: python wheels/race.py WHEEL [--what PART ...] [--seconds N].

It answers two questions. Is a wheel, which another compiler made, as fast as what is compiled here? Is the present version as
fast as an older one? For the second, `pip wheel --no-deps .` in a checkout of the older version makes the wheel.

Each of the two has a process of its own, so that nothing of one is taken for the other. The processes take turns call by call
(first one, then the other, and back). Every result is compared with the float64 reference before it is timed. Only functions that
all versions have are called. The target: neither takes more than 1.02 times as long as the other, as geometric mean over the shapes of
a part, in the best calls and in the medians.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 0.015  # seconds of load until the cores of a virtual machine run side by side
MOST = 1.02
LOOP = 100  # small calls are timed by the hundred: reading the clock takes a part of a microsecond itself
PARTS = ("forward", "gradient", "measure", "small", "tensors", "import")
CHILD = "import sys; sys.path[:] = {path!r}; import runpy; runpy.run_path({file!r})['contestant']()"
IMPORT = """
import sys; sys.path[:] = {path!r}
import time; begun = time.perf_counter()
import rootdk
print(time.perf_counter() - begun)
"""


def contestant() -> None:
    """What each process does: a line of JSON prepares a call and writes its result, an empty line is a turn."""
    import numpy as np

    import rootdk

    compiled = sys.modules.get("rootdk._kernel") or __import__("rootdk._kernel", fromlist=["target"])
    build = {name: getattr(compiled, name)() for name in ("compiler", "target") if hasattr(compiled, name)}
    print(json.dumps({"file": rootdk.__file__, "version": rootdk.__version__, **build}), flush=True)
    call: Callable[[], Any] = list
    for line in sys.stdin:
        if line.strip():
            request = json.loads(line)
            with np.load(request["inputs"]) as file:
                arrays = dict(file)
            call = prepared(rootdk, request["part"], arrays, request["causal"])
            result = call()
            np.savez(request["result"], *(result if isinstance(result, tuple) else (result,)))
            if request["part"] in ("small", "tensors"):
                call = in_a_loop(call)
            print("0", flush=True)
            continue
        begun = time.perf_counter()
        while True:
            before = time.perf_counter()
            call()
            after = time.perf_counter()
            if after - begun > WARM_UP:
                break
        print(after - before, flush=True)


def prepared(rootdk: Any, part: str, arrays: dict[str, Any], causal: bool) -> Callable[[], Any]:
    """A call of that part, which gives an array or a tuple of them."""
    inputs = [arrays[name] for name in ("query", "key", "value")]
    if part == "gradient":
        return lambda: rootdk.attention_vjp(*inputs, causal=causal)[1](arrays["d_out"])
    if part == "measure":
        return lambda: rootdk.measure(*inputs, causal=causal)[0]
    if part == "tensors":
        import torch

        inputs = [torch.from_numpy(array) for array in inputs]
    return lambda: rootdk.attention(*inputs, causal=causal)


def in_a_loop(call: Callable[[], Any]) -> Callable[[], Any]:
    def loop() -> None:
        for _ in range(LOOP):
            call()

    return loop


class Contestant:
    """A package seen from outside: a process, and how to start others."""

    def __init__(self, path: list[str], *options: str) -> None:
        self.start = [sys.executable, *options, "-c"]
        self.import_code = IMPORT.format(path=path)
        command = [*self.start, CHILD.format(path=path, file=__file__)]
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

    def import_once(self) -> float:
        """Seconds that the import takes in a fresh process."""
        done = subprocess.run([*self.start, self.import_code], check=True, capture_output=True, text=True, cwd="/")
        return float(done.stdout)


def prepare(part: str, shape: Any, contestants: list[Contestant], folder: Path) -> None:
    """The same inputs for both, and both results compared with the reference."""
    import numpy as np

    from benchmarks.problems import make_inputs

    inputs = make_inputs(shape)
    inputs_file = folder / "inputs.npz"
    np.savez(inputs_file, query=inputs.query, key=inputs.key, value=inputs.value, d_out=inputs.d_out)
    for number, package in enumerate(contestants):
        result = folder / f"result-{number}.npz"
        package.turn(
            json.dumps({"part": part, "inputs": str(inputs_file), "causal": shape.causal, "result": str(result)})
        )
        with np.load(result) as file:
            arrays = tuple(file[name] for name in file.files)
        inputs.check_gradients(arrays) if part == "gradient" else inputs.check(arrays[0])


def race(turns: list[Callable[[], float]], budget: float) -> dict[str, float]:
    """The time of the second over that of the first, by the best turns and by the medians."""
    seconds: list[list[float]] = [[], []]
    until, order = time.monotonic() + budget, (0, 1)
    while time.monotonic() < until or len(seconds[0]) < 6:
        for which in (*order, *reversed(order)):
            seconds[which].append(turns[which]())
    checkout, wheel = seconds
    return {
        "best": min(wheel) / min(checkout),
        "median": statistics.median(wheel) / statistics.median(checkout),
        "turns": len(checkout),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="wheels/race.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--what", nargs="+", choices=PARTS, default=["forward"], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=8.0, metavar="N", help="for each shape (default: 8)")
    arguments = parser.parse_args()
    if not arguments.wheel.is_file():
        parser.error(f"WHEEL must be the file of a wheel for this system and Python, got {arguments.wheel}")
    sys.path.insert(0, str(ROOT))
    from benchmarks.sections import attention, tiny

    bad = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        zipfile.ZipFile(arguments.wheel).extractall(folder / "wheel")
        # Without site, which would put the package that lies in src/ before the wheel's.
        contestants = [Contestant(sys.path), Contestant([str(folder / "wheel"), *sys.path], "-S")]
        for name_of, package in zip(("here ", "wheel"), contestants, strict=True):
            print(name_of, json.dumps(package.facts))
        if not contestants[1].facts["file"].startswith(name):
            sys.exit("rootdk: wheels/race.py: the wheel's own package was not loaded")
        for part in arguments.what:
            ratios: dict[str, list[float]] = {"best": [], "median": []}
            shapes: Any = tiny.SHAPES if part in ("small", "tensors") else attention.MATRIX
            for shape in (None,) if part == "import" else shapes:
                if shape is not None:
                    prepare(part, shape, contestants, folder)
                turns = [package.import_once if shape is None else package.turn for package in contestants]
                ratio = race(turns, arguments.seconds)
                for statistic, values in ratios.items():
                    values.append(ratio[statistic])
                label = f"{part} {shape.name if shape is not None else 'in fresh processes'}"
                print(f"{label:40} best {ratio['best']:.3f}  median {ratio['median']:.3f}  ({ratio['turns']} turns each)", flush=True)  # fmt: skip
            means = {word: math.exp(statistics.fmean(map(math.log, values))) for word, values in ratios.items()}
            print(f"{part}: time of the wheel over that of what is here, geometric mean: "
                  f"best {means['best']:.3f}, median {means['median']:.3f}")  # fmt: skip
            if max(means.values()) > MOST or min(means.values()) < 1 / MOST:
                bad.append(part)
        for package in contestants:
            package.process.kill()
            package.process.wait()
    if bad:
        sys.exit(f"rootdk: apart by more than {MOST}: {', '.join(bad)}")


if __name__ == "__main__":
    main()
