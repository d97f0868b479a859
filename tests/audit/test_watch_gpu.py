"""Watching on a GPU: three launches per layer, nothing that waits for the device, the numbers of the CPU.

Without a GPU the Triton kernel is interpreted on CPU tensors, and the meta device stands for one from which nothing can
be fetched: whatever would wait for a GPU raises there.
"""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

import rootdk
from rootdk.audit.health import Trend
from rootdk.audit.layer import LayerReading, digest_on_device
from rootdk.audit.watching import handle, read
from rootdk.audit.watching.call import Call
from rootdk.audit.watching.rows import Scale, sight_of
from rootdk.backends import torch as adapter
from rootdk.backends.torch import gpu

LAYERS, HEADS, N, D = 2, 2, 20, 8


class Block(torch.nn.Module):
    """Attention with whatever mask the model was given."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(HEADS * D, 3 * HEADS * D)

    def forward(self, x: Any, **options: Any) -> Any:
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, D)).transpose(1, 3).unbind(2)
        return x + scaled_dot_product_attention(query, key, value, **options).transpose(1, 2).flatten(2)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x: Any, **options: Any) -> Any:
        for block in self.blocks:
            x = block(x, **options)
        return x


def masks(device: str) -> dict[str, dict[str, Any]]:
    keep = torch.ones(1, 1, N, N, device=device).tril() > 0
    added = torch.zeros(2, 1, N, N, device=device).masked_fill(~keep, -torch.inf)
    return {
        "nothing": {},
        "causal": {"is_causal": True},
        "bool mask": {"attn_mask": keep},
        "float mask": {"attn_mask": added},
    }


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every tensor goes the way of one on a GPU; the launches of the kernels are noted."""
    noted: list[Any] = []
    launch, digest = gpu._launch, gpu._digest

    def noting(**arguments: Any) -> None:
        noted.append(arguments)
        if not arguments["query"].is_meta:
            launch(**arguments)

    def noting_digest(block: Any, *rest: Any) -> None:
        noted.append({"digest": block})
        if not block.is_meta:
            digest(block, *rest)

    for kind in gpu.SIZES:
        monkeypatch.setitem(gpu.SIZES, kind, (gpu.Sizes(16, 16, 4, 1),))
    monkeypatch.setattr(gpu, "_launch", noting)
    monkeypatch.setattr(gpu, "_digest", noting_digest)
    monkeypatch.setattr(adapter, "elsewhere", lambda _: gpu)
    monkeypatch.setattr(read, "has_kernel", lambda _: True)
    monkeypatch.setattr(read, "elsewhere", lambda _: gpu)
    return noted


@pytest.fixture
def _meta_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would keep a watch from reading tensors without numbers."""
    monkeypatch.setattr(handle, "check_readable", lambda _: None)
    monkeypatch.setattr(handle, "scale_of", lambda call: Scale(call.scale, call.scale, 0.0))  # waits, once per module
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


@pytest.mark.usefixtures("_meta_is_read")
@pytest.mark.parametrize("name", list(masks("cpu")))
def test_nothing_waits_for_the_device(name: str, launches: list[Any]) -> None:
    """A forward, its readings and its step of the trend, on a device from which no number can be fetched."""
    model, x = Model().to("meta"), torch.empty(2, N, HEADS * D, device="meta")
    with rootdk.watch(model) as watch, rootdk.watch(model, rows=4) as sampled:
        model(x, **masks("meta")[name])
    assert watch.unread == sampled.unread == {}
    assert len(watch.readings) == LAYERS
    # The rows, the key that they point at, the trend. What only hides cannot be told from a bias without looking: a
    # float mask takes one more launch, for the scores.
    per_layer = 4 if name == "float mask" else 3
    assert len(launches) == 2 * per_layer * LAYERS
    assert {arguments["n_rows"] for arguments in launches if "digest" not in arguments} == {N, 4}
    assert all(reading.reading.entropy.is_meta for reading in watch.readings.values())
    with pytest.raises(NotImplementedError):  # the stand-in does raise where somebody looks
        _ = watch.readings["blocks.0"].metrics


class Launches(TorchDispatchMode):
    """Counts the operations that a device would have to run: neither views nor fresh memory."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or "empty" in func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("_meta_is_read")
def test_how_many_operations_a_reading_launches(launches: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside three kernels: whether a head returned nothing but zeros."""
    monkeypatch.setattr(adapter, "traced", lambda *_: False)  # the mode that counts is not to be seen
    model, x = Model().to("meta"), torch.empty(2, N, HEADS * D, device="meta")
    with Launches() as plain:
        model(x, is_causal=True)
    with rootdk.watch(model), Launches() as watched:
        model(x, is_causal=True)
    assert len(launches) == 3 * LAYERS
    assert 0 < watched.count - plain.count <= 2 * LAYERS


@pytest.mark.parametrize("name", list(masks("cpu")))
def test_the_numbers_are_those_of_the_cpu(name: str, request: pytest.FixtureRequest) -> None:
    torch.manual_seed(0)
    model, x = Model(), 3 * torch.randn(2, N, HEADS * D)
    with rootdk.watch(model) as expected:
        model(x, **masks("cpu")[name])
    launches = request.getfixturevalue("launches")
    with rootdk.watch(model) as watch:
        model(x, **masks("cpu")[name])
    assert launches
    for path, layer in expected.readings.items():
        for metric, numbers in layer.metrics.items():
            np.testing.assert_allclose(
                watch.readings[path].metrics[metric], numbers, rtol=2e-5, atol=2e-6, err_msg=metric
            )
    assert watch.report().verdict == expected.report().verdict


ROWS = 24  # a block and a half


def calls() -> dict[str, dict[str, Any]]:
    keep = torch.arange(ROWS) >= torch.tensor([0, 9])[:, None, None, None]
    return {
        "window": {"reach": 18, "causal": True},
        "padding on the left": {"mask": keep, "causal": True},
        "softcap and sinks": {"softcap": 2.0, "sinks": torch.tensor([1.0, -2.0])},
        "bias": {"added": torch.randn(2, ROWS, ROWS)},
        "wide": {"d": 200},
        "few keys": {"n": 12},
        "no keys": {"n": 0},
        "NaN": {"broken": True},
        "ties": {"reach": 18, "n": 160, "tied": True},
    }


# All rows, and chosen ones where that decides which keys are read. The interpreter takes a second for each.
READ = [(name, ROWS) for name in calls() if name not in ("wide", "ties")]
READ += [(name, 7) for name in ("window", "padding on the left", "bias", "wide", "no keys", "ties")]


@pytest.mark.parametrize(("name", "rows"), READ)
@pytest.mark.usefixtures("launches")
def test_all_that_a_launch_finds_is_what_the_cpu_finds(name: str, rows: int) -> None:
    """First weights, the key that rows point at, and the digest, for every option that shapes them."""
    torch.manual_seed(1)
    options = dict(calls()[name])
    n, d, broken = options.pop("n", ROWS), options.pop("d", D), options.pop("broken", False)
    query, (key, value) = 2 * torch.randn(2, HEADS, ROWS, d), torch.randn(2, 2, 1, n, d)
    if options.pop("tied", False):
        key = torch.zeros_like(key)  # the first key that a row sees, although whole blocks are read before its block
    elif n:
        key[..., n // 2, :] += 1.5 * query.mean(dim=(1, 2))[:, None]  # something to point at
    if broken:
        query[0, 1, 5:9] = torch.nan
    call = Call(query, key, value, query.new_empty(0), route="test", scale=0.5, **options)
    sight = sight_of(call)
    bare = call.softcap is None and sight.bias is None and call.sinks is None
    result, expected = (
        way(*first, call, sight, 0.5, rows, bare, *rest)
        for way, first, rest in ((read._on_device, (gpu,), ()), (read._here, (), (False,)))
    )
    torch.testing.assert_close(result["first_weight"], expected["first_weight"], atol=2e-6, rtol=2e-5, equal_nan=True)
    if n:
        for part in ("share", "mass"):
            torch.testing.assert_close(
                *(getattr(side["pointed"], part) for side in (result, expected)), atol=2e-6, rtol=2e-5, equal_nan=True
            )
        known = ~expected["pointed"].share.isnan()
        assert torch.equal(result["pointed"].key[known], expected["pointed"].key[known])
    else:
        assert result["pointed"].share.isnan().all()
    for digest, wanted in zip(result["digested"], layer_of(expected["reading"]).digest, strict=True):
        np.testing.assert_allclose(np.nan_to_num(digest.numpy(), neginf=np.nan, nan=np.nan), wanted, rtol=1e-5)


def layer_of(reading: Any) -> LayerReading:
    return LayerReading("a", 0, reading, reading, reading.entropy, "sdpa", "float32", D, HEADS, N, N)


@pytest.mark.parametrize("n_query", [N, 3, 0])
def test_the_digest_on_a_device_is_that_of_the_cpu(n_query: int) -> None:
    query, key = torch.randn(2, HEADS, n_query, D), torch.randn(2, HEADS, N, D)
    query[:, 1:, :2] = torch.nan
    reading = rootdk.read(query, key, causal=True, query_offset=-1 if n_query else 0)
    for digest, expected in zip(digest_on_device(reading), layer_of(reading).digest, strict=True):
        np.testing.assert_allclose(digest.numpy(), expected, rtol=1e-6)


def test_a_trend_of_tensors_is_one_of_arrays() -> None:
    of_arrays, of_tensors = Trend(), Trend()
    for step in range(0, 1001, 100):
        logits, ratio = np.array([10.0 * 2 ** (step / 500), 3.0]), np.array([0.9, 0.8])
        of_arrays.note("a", step, logits, ratio)
        of_tensors.note("a", step, torch.from_numpy(logits), torch.from_numpy(ratio))
    for trend in (of_arrays, of_tensors):
        movement = trend.movement("a")
        assert movement is not None
        assert movement.growth.tolist() == pytest.approx([4.0, 1.0])
        assert movement.entropy_drop == pytest.approx(0.0)


@pytest.mark.gpu
def test_a_watched_step_on_a_gpu_never_waits() -> None:
    model, x = Model().cuda(), torch.randn(2, N, HEADS * D, device="cuda")
    with rootdk.watch(model) as watch:
        model(x, is_causal=True)
        torch.cuda.set_sync_debug_mode("error")
        try:
            model(x, is_causal=True)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert watch.unread == {}
    assert watch.report().verdict


@pytest.mark.gpu
def test_clipping_on_a_gpu() -> None:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True, device="cuda")
    x = 40 * torch.randn(1, 16, 8, device="cuda")
    for clipped in (False, True):
        with rootdk.watch(layer) as watch:
            layer(x, x, x)
        assert bool((watch.readings["MultiheadAttention"].metrics["max_logit"] <= 100.1).all()) == clipped
        rootdk.audit.qk_clip_(layer, watch, tau=100.0)
