"""Watching a model that is spread over processes: what the ranks find together is what one process finds alone."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ring_ranks import together
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import rootdk
from rootdk import distributed
from rootdk.audit.layer import KINDS
from rootdk.errors import ArgumentError
from rootdk.integrations import TrainingLog, merged_metrics
from rootdk.integrations.ranks import medians

RANKS, BATCH, HEADS, TOKENS, WIDTH = 2, 6, 4, 24, 32


class Attend(nn.Module):
    """Causal attention with some of the heads, on one machine or on a ring."""

    def __init__(self, heads: slice = slice(None), ring: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.heads, self.ring, self.scale = heads, ring, scale

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).transpose(1, 3).unbind(2)
        q, k, v = (t[:, self.heads] for t in (q, k, v))
        if self.ring:
            return distributed.attention(q, k, v, layout="balanced", causal=True, scale=self.scale)
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)


def model(**options: Any) -> Any:
    return nn.Sequential(Attend(**options))


def batch() -> Any:
    torch.manual_seed(5)
    data = torch.randn(BATCH, TOKENS, WIDTH)
    data[-1] *= 6.0  # the extremes lie with the last rank
    return data


def watched(module: Any, data: Any) -> Any:
    with rootdk.watch(module) as watch:
        module(data)
    assert not watch.unread
    return watch.readings


def all_ways(rank: int, folder: str) -> dict[str, Any]:
    torch.manual_seed(0)
    share = slice(2 * rank, BATCH if rank else 2)  # 2 and 4 of the 6 sequences
    readings = watched(model(), batch()[share])
    read = {
        "own": {path: reading.metrics for path, reading in readings.items()},
        "data": merged_metrics(readings, "data"),
        "absent": merged_metrics(readings if rank else {}, {"data": None}),
        "tensor": merged_metrics(watched(model(heads=slice(2 * rank, 2 * rank + 2)), batch()), "tensor"),
        "sequence": merged_metrics(
            watched(model(ring=True).double(), distributed.shard(batch().double(), layout="balanced")), "sequence"
        ),
    }
    for parallel in ("data", None):
        path = f"{folder}/{parallel}_{rank}.jsonl"
        module = model()
        with TrainingLog(path, parallel=parallel).start(module) as log:
            module(batch()[share]).sum().backward()
            log.after_step()
    try:
        merged_metrics(watched(model(heads=slice(0, 1 + rank)), batch()), "data")
    except ArgumentError as error:
        read["heads differ"] = str(error)
    return read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Any:
    return together(all_ways, RANKS, folder, str(folder))


@pytest.fixture(scope="module")
def alone() -> Any:
    """One process with all rows and all heads."""
    return watched(model(), batch())["0"].metrics


@pytest.fixture(scope="module")
def alone_in_float64() -> Any:
    return watched(model().double(), batch().double())["0"].metrics


# On a ring nobody has all the keys: which one most rows point at stays unknown there.
POINTED = {"top_key_share", "top_key_mass"}


@pytest.mark.parametrize("way", ["data", "tensor"])
def test_the_ranks_find_together_what_one_process_finds(ranks: Any, alone: Any, way: str) -> None:
    merged = ranks[0][way]["0"]
    assert merged.heads == HEADS
    assert merged.metrics.keys() == alone.keys()
    assert np.isfinite([alone[name] for name in POINTED]).all()
    for name, expected in alone.items():
        # Every row is the same, bit by bit, so only the sums behind a mean may round.
        # The key is looked for in float32, by products that a library sums in another order for another batch.
        tolerance = 1e-5 if name in POINTED else 1e-12 if KINDS.get(name) == "mean" else 0.0
        np.testing.assert_allclose(merged.metrics[name], expected, rtol=tolerance, err_msg=name)


def test_a_ring_is_read_as_one_process_reads_it(ranks: Any, alone_in_float64: Any) -> None:
    merged = ranks[0]["sequence"]["0"]
    assert merged.metrics.keys() == alone_in_float64.keys()
    for name, expected in alone_in_float64.items():
        if name in POINTED:
            assert np.isnan(merged.metrics[name]).all()
            continue
        # Rows are put together from blocks in float64: some hundred roundings of 1e-16.
        np.testing.assert_allclose(merged.metrics[name], expected, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("way", ["data", "tensor", "sequence", "absent"])
def test_every_rank_agrees(ranks: Any, way: str) -> None:
    for other in ranks[1:]:
        for name, numbers in ranks[0][way]["0"].metrics.items():
            np.testing.assert_array_equal(numbers, other[way]["0"].metrics[name], err_msg=name)


def test_an_average_of_the_ranks_would_be_wrong(ranks: Any, alone: Any) -> None:
    """The data tells the two apart, so that the tests above can fail."""
    for name in ("max_logit", "entropy_ratio", "saturated"):
        mean = np.mean([rank["own"]["0"][name] for rank in ranks], axis=0)
        assert not np.allclose(mean, alone[name], rtol=1e-3), name


def test_a_rank_that_read_nothing_takes_part(ranks: Any) -> None:
    for name, numbers in ranks[0]["absent"]["0"].metrics.items():
        np.testing.assert_array_equal(numbers, ranks[1]["own"]["0"][name], err_msg=name)


def test_ranks_with_other_heads_are_no_replicas(ranks: Any) -> None:
    expected = "parallel: ranks that share rows must have the same heads, got 1 and on rank 1 2 in 0; 'tensor' puts"
    assert all(rank["heads differ"].startswith(expected) for rank in ranks)


@pytest.mark.usefixtures("ranks")
def test_rank_0_writes_for_all(folder: Path, alone: Any, ranks: Any) -> None:
    assert sorted(path.name for path in folder.glob("*.jsonl")) == ["None_0.jsonl", "data_0.jsonl"]
    lines = {name: json.loads((folder / f"{name}_0.jsonl").read_text()) for name in ("data", "None")}
    assert lines["data"]["attn/max_logit"] == alone["max_logit"].max()
    assert lines["None"]["attn/max_logit"] == ranks[0]["own"]["0"]["max_logit"].max()
    assert lines["data"]["attn/max_logit"] > lines["None"]["attn/max_logit"]


def in_step(sides: list[Any], wide: bool) -> list[Any]:
    """medians() of several processes at once, here threads; each gets the sum of what all of them count."""
    asked: list[Any] = [None] * len(sides)
    barrier = threading.Barrier(len(sides))

    def side(index: int) -> Any:
        def add(counts: Any) -> Any:
            asked[index] = counts
            barrier.wait()
            total = sum(asked)
            barrier.wait()
            return total

        return medians(sides[index], add, wide)

    with ThreadPoolExecutor(len(sides)) as pool:
        return list(pool.map(side, range(len(sides))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_medians_of_parts(rng: np.random.Generator, dtype: Any) -> None:
    """Against NumPy's, for even and odd counts, ties and negative numbers."""
    sets = [rng.standard_normal(n).astype(dtype).astype(np.float64) for n in (1, 2, 7, 100)]
    sets += [np.repeat([-0.5, 0.5], 4), np.zeros(3)]
    cuts = [int(rng.integers(0, len(numbers) + 1)) for numbers in sets]
    sides = [
        [numbers[:cut] for numbers, cut in zip(sets, cuts, strict=True)],
        [numbers[c:] for numbers, c in zip(sets, cuts, strict=True)],
    ]
    for of_side in in_step(sides, dtype is np.float64):
        np.testing.assert_array_equal(of_side, [np.median(numbers) for numbers in sets])


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (
            "model",
            r"^parallel: must be 'data', 'sequence', 'tensor' or a dictionary from these to groups, got 'model'$",
        ),
        (3, r"^parallel: must be 'data', 'sequence', 'tensor' or a dictionary from these to groups, got 3$"),
        ({"data": None, "sequence": None}, r"^parallel: must name one group for rows, got both 'data' and 'sequence'"),
    ],
)
def test_ways_that_are_not_there(parallel: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        merged_metrics({}, parallel)


def test_a_softcap_on_a_ring_is_said_to_be_unread(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)

    class Capped(nn.Module):
        def forward(self, x: Any) -> Any:
            return distributed.attention(x, x, x, softcap=5.0)

    try:
        with rootdk.watch(module := Capped()) as watch:
            module(torch.randn(1, 2, 4, 8))
    finally:
        dist.destroy_process_group()
    assert watch.unread == {"Capped": "a softcap on a ring hides the scores before it"}
