"""A Reading alone: `read`, which has no values, beside `attention` and `measure`, on the long shapes of the matrix.

In ABBA blocks, see race.py. By operations per vector of scores `read` is (d + 19) / (2 d + 12) of attention.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import numpy as np

import rootdk
from benchmarks.problems import Shape, make_inputs
from benchmarks.race import abba, block_ratios, timing
from benchmarks.section import Row, Setting, Step, at_most, cell, judge_rows, milliseconds, of_rows, ratio
from benchmarks.sections.attention import MATRIX, QUICK
from rootdk.reading import FIELDS

LONG = 1000


def steps(setting: Setting) -> Iterator[Step]:
    """Where a pass over the keys is nearly all of a call."""
    shapes = QUICK[:2] if setting.quick else [shape for shape in MATRIX if shape.n >= LONG]
    for shape in shapes:
        yield Step("read", f"{shape.name}, read", partial(race, shape, setting.seconds(2.5)))


def race(shape: Shape, budget: float) -> Row:
    """Two pairs on the same arrays; what is read is first held against what is measured."""
    query, key, value = make_inputs(shape).arrays
    reading, expected = (
        rootdk.read(query, key, causal=shape.causal),
        rootdk.measure(query, key, value, causal=shape.causal),
    )
    left_out = {}
    if any(not np.array_equal(getattr(reading, name), getattr(expected[1], name)) for name in FIELDS):
        left_out["read"] = "is not what measure reads"

    def reads() -> object:
        return rootdk.read(query, key, causal=shape.causal)

    plain, read = abba(lambda: rootdk.attention(query, key, value, causal=shape.causal), reads, budget)
    measured, again = abba(lambda: rootdk.measure(query, key, value, causal=shape.causal), reads, budget)
    seconds = {"rootdk": timing(plain), "measure": timing(measured), "read": timing(read)}
    return {
        "name": shape.name,
        "shape": asdict(shape),
        "seconds": {name: figure for name, figure in seconds.items() if name not in left_out},
        "read_over_attention": block_ratios(plain, read),
        "read_over_measure": block_ratios(measured, again),
        "left_out": left_out,
    }


_OF_ATTENTION, _OF_MEASURE = ratio("read_over_attention"), ratio("read_over_measure")
TARGETS = (
    at_most("read / attention, n >= 1000, d >= 64, highest", 0.60, _OF_ATTENTION, "read", "rootdk",
            counts=lambda row: row["shape"]["d"] >= 64),
    at_most("read / attention, n >= 1000, d = 32, highest", 0.68, _OF_ATTENTION, "read", "rootdk",
            counts=lambda row: row["shape"]["d"] == 32),
)  # fmt: skip
SECTIONS = (
    of_rows(
        "read",
        steps,
        partial(judge_rows, key="read", targets=TARGETS),
        "A Reading without an output, ms, best / median",
        {
            "attention": milliseconds("rootdk"),
            "read": milliseconds("read"),
            "of attention": cell(_OF_ATTENTION, ".2f", "read"),
            "of measure": cell(_OF_MEASURE, ".2f", "read"),
        },
    ),
)
