"""What reading costs on a GPU: run it where there is one, and paste the table that it prints.

    python benchmarks/gpu.py                rootdk.read against torch's fused forward, and a watched training step
    ROOTDK_TRITON_AUTOTUNE=1 python benchmarks/gpu.py        with block sizes that Triton finds by trying

Times are medians of calls that take turns, by events of the device. No figure of it is quoted anywhere yet: rootdk has
not been timed on such hardware.
"""

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# n, heads, key heads, d
SHAPES = ((1024, 16, 16, 64), (2048, 16, 16, 128), (4096, 16, 16, 64), (4096, 32, 8, 128), (16384, 8, 8, 128))
TURNS, STEPS = 20, 10


def milliseconds(torch: Any, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Of each call the median over turns, after two that are not counted: kernels are compiled in those."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(TURNS + 2):
        for name, call in calls.items():
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            call()
            last.record()
            torch.cuda.synchronize()
            if turn >= 2:
                times[name].append(first.elapsed_time(last))
    return {name: statistics.median(column) for name, column in times.items()}


def reading_rows(torch: Any, dtype: Any) -> list[tuple[str, dict[str, float]]]:
    """One line per shape, causal."""
    import rootdk
    from rootdk.reading import FIELDS

    rows = []
    for n, heads, kv_heads, d in SHAPES:
        q = torch.randn(1, heads, n, d, device="cuda", dtype=dtype)
        k, v = torch.randn(2, 1, kv_heads, n, d, device="cuda", dtype=dtype).unbind(0)
        reading, expected = rootdk.read(q, k, causal=True), rootdk.read(q.cpu(), k.cpu(), causal=True)
        for name in FIELDS:  # a figure of a wrong answer is worth nothing
            torch.testing.assert_close(getattr(reading, name).cpu(), getattr(expected, name), atol=1e-3, rtol=1e-3)
        attend = torch.nn.functional.scaled_dot_product_attention
        calls: dict[str, Callable[[], Any]] = {
            "torch forward": lambda: attend(q, k, v, is_causal=True, enable_gqa=heads != kv_heads),  # noqa: B023
            "read": lambda: rootdk.read(q, k, causal=True),  # noqa: B023
            "read, 64 rows": lambda: rootdk.read(q, k, causal=True, rows=list(range(0, n, n // 64))),  # noqa: B023
        }
        rows.append((f"{str(dtype).removeprefix('torch.')}, {heads} over {kv_heads}, {n} keys, d {d}",
                     milliseconds(torch, calls)))  # fmt: skip
    return rows


def training_row(torch: Any) -> tuple[str, dict[str, float]]:
    """A step of the model of benchmarks/sections/watch.py, with and without a watch."""
    import rootdk
    from benchmarks.sections import watch

    torch.set_default_device("cuda")
    plain, watched = watch.Trainee(1024), watch.Trainee(1024)
    with rootdk.watch(watched.model) as seen:
        calls = {"unwatched step": lambda: plain.train(STEPS), "watched step": lambda: watched.train(STEPS)}
        times = milliseconds(torch, calls)
    if seen.unread or len(seen.readings) != watch.LAYERS:
        raise SystemExit(f"gpu: every layer must be read, got {seen.unread or list(seen.readings)}")
    return f"training step, {watch.LAYERS} layers, 1024 tokens", {name: time / STEPS for name, time in times.items()}


def main() -> None:
    """Print the table, or say what is missing."""
    try:
        import torch
        import triton
    except ImportError as error:
        raise SystemExit(f"gpu: torch and triton must be installed, got: {error}") from None
    if not torch.cuda.is_available():
        raise SystemExit(
            "gpu: a CUDA or ROCm device must be visible to torch, got none (torch.cuda.is_available() is False)"
        )
    sys.path.insert(0, str(Path(__file__).parents[1]))
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, triton {triton.__version__}\n")
    print("| call | ms, median | ratio |\n|---|---|---|")
    rows = [row for dtype in (torch.bfloat16, torch.float16) for row in reading_rows(torch, dtype)]
    for shape, times in [*rows, training_row(torch)]:
        first = next(iter(times.values()))
        for call, time in times.items():
            print(f"| {shape}: {call} | {time:.3f} | {time / first:.2f} |")


if __name__ == "__main__":
    main()
