"""The Triton kernel compiled ahead of time for GPUs that are not here: it compiles, and nothing is spilled.

In a process of its own: in this one Triton interprets, and a process does one or the other.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "compiled_kernel.py"
TARGETS = ["sm_80", "sm_90", "sm_100", "gfx942"]
# Of the 255 that a thread of a CUDA device can have, and of 512 on gfx942, half of which may be accumulators.
MOST_REGISTERS = {"sm_80": 224, "sm_90": 224, "sm_100": 224, "gfx942": 256}


def compiled(folder: Path, *wanted: str) -> dict[str, dict[str, dict[str, int]]]:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
    environment.pop("TRITON_INTERPRET", None)
    finished = subprocess.run(
        [sys.executable, SCRIPT, *wanted], env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    usage: dict[str, dict[str, dict[str, int]]] = json.loads(finished.stdout)
    return usage


def assert_frugal(usage: dict[str, dict[str, dict[str, int]]]) -> None:
    assert list(usage) == TARGETS
    for target, variants in usage.items():
        for variant, use in variants.items():
            assert use["spilled"] == 0, (target, variant, use)
            assert use["registers"] <= MOST_REGISTERS[target], (target, variant, use)
            assert use["shared"] <= 64 * 1024, (target, variant, use)


def test_nothing_is_spilled(tmp_path: Path) -> None:
    usage = compiled(tmp_path, *TARGETS, "bf16 128 causal, pointed at", "fp16 128 everything")
    assert_frugal(usage)
    assert {len(variants) for variants in usage.values()} == {2}


@pytest.mark.slow
def test_nothing_is_spilled_in_any_variant(tmp_path: Path) -> None:
    usage = compiled(tmp_path, *TARGETS)
    assert_frugal(usage)
    assert {len(variants) for variants in usage.values()} == {9}
