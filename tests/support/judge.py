"""The compiled kernel against the reference: one call of everything, every number inside its derived budget."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
from budgets import assert_within, compute_type, forward_budget, gradient_budget, measure_budget, tangent_budget

import rootdk
from rootdk import _kernel
from rootdk.backends import problem_of, reference
from rootdk.options import Learnable, Problem

Said = dict[str, Any]
TARGETS = _kernel.targets()
DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


class Judge:
    """What forward, measure, pull-back, tangent of one problem must give. Computed once, compared often."""

    def __init__(self, arrays: Any, d_out: Any, options: dict[str, Any]) -> None:
        self.arrays, self.d_out, self.options = arrays, d_out, options
        problem = problem_of(*arrays, **options)
        self.out = forward_budget(problem)
        self.fields = measure_budget(problem)
        self.keys = reference.measure(problem, np.float32)[1]["keys"]
        self.gradients = gradient_budget(problem, d_out)
        self.tangents = random_tangents(np.random.default_rng(7), problem, options)
        self.tangent_bound = tangent_budget(problem, tangents_of(problem, self.tangents))

    def check(self, tangent: bool = True) -> None:
        """Call the kernel as it is set up now; inputs stay as they were, and the three functions agree bit by bit.

        tangent   also along a direction of usual size, which takes a query of 1e38 out of the range of float32
        """
        dtype = self.arrays[0].dtype
        before = [a.copy() for a in (*self.arrays, self.d_out)]
        out = rootdk.attention(*self.arrays, **self.options)
        assert out.dtype == dtype
        assert_within(out, *self.out, "output")

        measured, reading = rootdk.measure(*self.arrays, **self.options)
        np.testing.assert_array_equal(measured, out, err_msg="measure and attention differ")
        np.testing.assert_array_equal(reading.keys, self.keys, err_msg="keys")
        for field, (expected, bound) in self.fields.items():
            column = getattr(reading, field)
            assert column.dtype == compute_type(dtype)
            assert_within(column, expected, bound, field)

        again, pull_back = rootdk.attention_vjp(*self.arrays, **self.options)
        np.testing.assert_array_equal(again, out, err_msg="attention_vjp and attention differ")
        names = ("d_query", "d_key", "d_value")
        for name, gradient, budget in zip(names, pull_back(self.d_out), self.gradients, strict=True):
            assert gradient.dtype == dtype
            assert_within(gradient, *budget, name)

        if tangent:
            again, d_out = rootdk.attention_jvp(*self.arrays, **self.tangents, **self.options)
            assert_within(again, *self.out, "output of attention_jvp")
            assert d_out.dtype == dtype
            assert_within(d_out, *self.tangent_bound, "d_out")
        for array, copy in zip((*self.arrays, self.d_out), before, strict=True):
            np.testing.assert_array_equal(array, copy, err_msg="an input was changed")


def random_tangents(rng: np.random.Generator, problem: Problem, options: dict[str, Any]) -> dict[str, Any]:
    """A direction for everything that may move, as attention_jvp() takes it: the bias in the shape in which it came."""
    like = {"query": problem.query, "key": problem.key, "value": problem.value}
    like |= {name: np.asarray(options[name]) for name in ("bias", "sinks", "alibi") if name in options}
    tangents = {f"d_{name}": rng.standard_normal(a.shape).astype(a.dtype) for name, a in like.items()}
    return tangents | ({"d_scale": rng.standard_normal()} if problem.row_scale is None else {})


def tangents_of(problem: Problem, tangents: dict[str, Any]) -> Learnable:
    """The same for the reference."""
    given = {name.removeprefix("d_"): tangent for name, tangent in tangents.items()}
    if "bias" in given:
        given["bias"] = np.broadcast_to(given["bias"], problem.bias.shape)
    if "alibi" in given:
        given["alibi"] = np.broadcast_to(given["alibi"], problem.query.shape[:-2]).reshape(problem.alibi.shape)
    return Learnable(**given)


def everything(arrays: Any, d_out: Any, **options: Any) -> Said:
    """All that the kernel says about one problem, by name, for comparisons bit by bit."""
    out, reading = rootdk.measure(*arrays, **options)
    pulled_from, pull_back = rootdk.attention_vjp(*arrays, **options)
    said = {"attention": rootdk.attention(*arrays, **options), "output": out, "output of the pull-back": pulled_from}
    said |= {name: getattr(reading, name) for name in (*reference.FIELDS, "keys")}
    said |= dict(zip(("d_query", "d_key", "d_value"), pull_back(d_out), strict=True))
    forward = rootdk.attention_jvp(
        *arrays, *arrays, d_bias=options.get("bias"), d_alibi=options.get("alibi"), **options
    )
    return said | dict(zip(("output of the tangent", "tangent of the output"), forward, strict=True))


def assert_same_bits(result: Said, expected: Said, select: Callable[[Any], Any] = np.asarray) -> None:
    """Equal to the last bit, NaN where there is NaN; `select` picks the part that is compared."""
    assert result.keys() == expected.keys()
    for name, array in result.items():
        np.testing.assert_array_equal(select(array), select(expected[name]), err_msg=name)


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = rootdk.num_threads()
    rootdk.set_num_threads(n)
    try:
        yield
    finally:
        rootdk.set_num_threads(before)


@contextmanager
def target(name: str) -> Iterator[None]:
    before = _kernel.target()
    _kernel.set_target(name)
    try:
        yield
    finally:
        _kernel.set_target(before)
