"""Attention on a ring of processes against the float64 reference: output, gradients and Reading, by the usual budgets.

Each number of ranks is started once and goes through all cases; a case is made anew from its name in every process.
"""

import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from budgets import assert_within, forward_budget, gradient_budget, judge_type, measure_budget
from problems import random_arrays
from ring_ranks import together
from tensors import array, tensor, tensor_options

import rootdk
from rootdk import distributed, scaling
from rootdk.backends import problem_of, reference
from rootdk.distributed import even_lengths, pieces
from rootdk.reading import FIELDS

LAYOUTS = ("contiguous", "balanced")


class Case(NamedTuple):
    arrays: tuple[Any, Any, Any]
    d_out: Any
    options: dict[str, Any]
    layout: str
    uneven: bool

    def lengths(self, n: int, ranks: int) -> list[int]:
        """Uneven shards have one that is empty and one that is long."""
        if not self.uneven:
            return even_lengths(n, ranks)
        return [0, 3, *even_lengths(n - 3, ranks - 2)] if ranks > 2 else [n - 3, 3]


def case(name: str) -> Case:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    layout, kind = name.split(": ")
    sizes: dict[str, Any] = {"n_query": 41, "n_key": 41, "dtype": np.float32}
    options: dict[str, Any] = {}
    if "causal" in kind:
        options["causal"] = True
    for word, dtype in (("float64", "float64"), ("float16", "float16"), ("bfloat16", "bfloat16")):
        if word in kind.split():
            sizes["dtype"] = tensor_type(dtype)
    if "few" in kind:
        sizes |= {"n_query": 5, "n_key": 23}
    if "many queries" in kind:
        sizes |= {"n_query": 50, "n_key": 20}
    if "lengths" in kind:
        options["key_lengths"] = np.array([17, 40])
    if "window" in kind:
        options["window"] = (6, 2)
    if "offset" in kind:
        options["query_offset"] = np.array([-3, 5])
    if "everything" in kind:
        options |= {"causal": True, "window": (30, None), "key_lengths": np.array([38, 41]), "softcap": 3.0}
        options |= {"scale": scaling.llama4(2, 0.5)}
    if "softcap" in kind:
        options |= {"softcap": 1.5, "scale": 1.0}
    if "sinks" in kind or "everything" in kind:
        options["sinks"] = rng.standard_normal(4)
    if "alibi" in kind or "everything" in kind:
        options["alibi"] = rng.standard_normal(4) / 4
    arrays = random_arrays(rng, **sizes)
    if "one head" in kind:
        arrays = tuple(a[0, 0] for a in arrays)  # type: ignore[assignment]
    d_out = rng.standard_normal((*arrays[0].shape[:-1], arrays[2].shape[-1])).astype(arrays[0].dtype)
    return Case(arrays, d_out, options, layout, "uneven" in kind)


def tensor_type(name: str) -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


KINDS = (
    "full",
    "causal",
    "causal float64",
    "causal bfloat16",
    "float16",
    "causal uneven",
    "full uneven",
    "causal lengths",
    "lengths uneven",
    "window",
    "causal few",
    "causal many queries",
    "causal offset",
    "softcap",
    "sinks causal",
    "alibi uneven",
    "everything float64",
    "everything uneven",
    "causal one head",
)
NAMES = [f"{layout}: {kind}" for layout in LAYOUTS for kind in KINDS]


def own_rows(whole: Any, rank: int, lengths: list[int], layout: str) -> Any:
    held = pieces(lengths, layout)[rank]
    return torch.cat([whole[..., first : first + rows, :] for first, _, rows in held], dim=-2)


def run_cases(rank: int, ranks: int) -> dict[str, Any]:
    results = {}
    for name in NAMES:
        chosen = case(name)
        query, key, value = (tensor(a) for a in chosen.arrays)
        queries, keys = (chosen.lengths(t.shape[-2], ranks) for t in (query, key))
        shards = [
            own_rows(t, rank, lengths, chosen.layout).requires_grad_()
            for t, lengths in ((query, queries), (key, keys), (value, keys))
        ]
        options = tensor_options(chosen.options)
        out, reading = distributed.measure(*shards, layout=chosen.layout, **options)
        d_out = own_rows(tensor(chosen.d_out), rank, queries, chosen.layout)
        gradients = torch.autograd.grad(out, shards, d_out)
        plain = distributed.attention(*(t.detach() for t in shards), layout=chosen.layout, **options)
        assert torch.equal(out, plain), f"{name}: measuring changed the output"
        whole = [distributed.unshard(t, layout=chosen.layout) for t in (out, *gradients)]
        results[name] = (whole, distributed.unshard(reading, layout=chosen.layout))
    return results


@pytest.fixture(scope="module", params=[2, 4])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return together(run_cases, request.param, tmp_path_factory.mktemp("ranks"), request.param)


def reference_problem(chosen: Case) -> Any:
    return problem_of(*chosen.arrays, **chosen.options)


@pytest.mark.parametrize("name", NAMES)
def test_output_and_gradients(results: Any, name: str) -> None:
    chosen = case(name)
    problem = reference_problem(chosen)
    (out, *gradients), _ = results[0][name]
    expected, bound = forward_budget(problem)
    assert_within(array(out), expected.reshape(out.shape), bound, f"{name}, output")
    d_out = chosen.d_out.reshape(problem.query.shape[:-1] + problem.value.shape[-1:])
    for what, actual, (expected, bound) in zip(
        ("d_query", "d_key", "d_value"), gradients, gradient_budget(problem, d_out), strict=True
    ):
        assert_within(array(actual), expected.reshape(actual.shape), bound, f"{name}, {what}")


@pytest.mark.parametrize("name", NAMES)
def test_the_reading_is_that_of_one_process(results: Any, name: str) -> None:
    problem = reference_problem(case(name))
    reading = results[0][name][1]
    keys = reference.measure(problem, judge_type(problem.query.dtype))[1]["keys"]
    np.testing.assert_array_equal(reading.keys.numpy(), keys.reshape(reading.shape))
    for field, (expected, bound) in measure_budget(problem).items():
        assert_within(getattr(reading, field).numpy(), expected.reshape(reading.shape), bound, f"{name}, {field}")


def test_every_rank_has_the_same_whole(results: Any) -> None:
    for name in NAMES:
        for other in results[1:]:
            for mine, theirs in zip(results[0][name][0], other[name][0], strict=True):
                assert torch.equal(mine, theirs), name
            for field in (*FIELDS, "keys"):
                assert torch.equal(getattr(results[0][name][1], field), getattr(other[name][1], field)), name


# --- things that need no reference


def other_checks(rank: int, ranks: int) -> dict[str, Any]:
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    query, key, value = torch.randn(3, 2, 4, 24, 8).unbind(0)
    value[0, 0, 20] = torch.nan
    key[1, 1, 3] = torch.inf
    alone = rootdk.attention(query, key, value, causal=True)
    shards = [distributed.shard(t, layout="balanced") for t in (query, key, value)]
    ring = distributed.unshard(distributed.attention(*shards, layout="balanced", causal=True), layout="balanced")
    results["nan"] = (torch.isnan(alone), torch.isnan(ring))

    # In float64, where the few hundred roundings of such a sum stay below 1e-12 of it.
    query, key, value = torch.randn(3, 2, 4, 24, 8, dtype=torch.float64).unbind(0)
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    alone = rootdk.attention(query, key, value, sinks=sinks)
    (expected,) = torch.autograd.grad(alone.square().sum(), sinks)
    shards = [distributed.shard(t) for t in (query, key, value)]
    (part,) = torch.autograd.grad(distributed.attention(*shards, sinks=sinks).square().sum(), sinks)
    torch.distributed.all_reduce(part)
    results["sinks"] = (expected, part)

    # A group of some of the ranks only, and strided shards.
    group = torch.distributed.new_group([0, ranks - 1])
    if rank in (0, ranks - 1):
        half = distributed.shard(query.transpose(1, 2), group, axis=1).transpose(1, 2)
        out = distributed.attention(half, half, half, group)
        results["part"] = (rootdk.attention(query, query, query), distributed.unshard(out, group))
    results["positions"] = distributed.positions(10, layout="balanced").tolist()
    results["numbers"] = long_sequence(rank)
    return results


N = 65536


def long_sequence(rank: int) -> Any:
    """One head, causal, over all ranks; the shards alone come back."""
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 1, N, 16).unbind(0)
    shards = [distributed.shard(t, layout="balanced") for t in (query, key, value)]
    return distributed.unshard(distributed.attention(*shards, layout="balanced", causal=True), layout="balanced")


def test_four_ranks(tmp_path: Path) -> None:
    results = together(other_checks, 4, tmp_path, 4)
    alone, ring = results[0]["nan"]
    assert torch.equal(alone, ring)
    assert alone.any()
    assert not alone.all()
    torch.testing.assert_close(results[0]["sinks"][1], results[0]["sinks"][0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(results[0]["part"][1], results[0]["part"][0], rtol=1e-12, atol=1e-12)
    assert [result["positions"] for result in results] == [[0, 1, 9], [2, 3, 8], [4, 7], [5, 6]]

    torch.manual_seed(1)
    query, key, value = torch.randn(3, 1, N, 16).unbind(0)
    ring = results[0]["numbers"]
    whole = rootdk.attention(query, key, value, causal=True)
    bounds = []
    for row in (0, 1, N // 8, N // 3, N // 2, N - 2, N - 1):
        seen = slice(0, row + 1)
        problem = problem_of(*(array(t) for t in (query[:, row : row + 1], key[:, seen], value[:, seen])))
        expected, bound = forward_budget(problem)
        assert_within(array(ring[:, row : row + 1]), expected, bound, f"row {row}")
        bounds.append(bound)
    # Each of the two may be off by the budget.
    assert_within(array(whole), array(ring).astype(np.float64), 2 * max(bounds), "one process")
