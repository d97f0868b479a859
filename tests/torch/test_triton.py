"""The Triton kernel against the float64 definition: on a GPU where there is one, else interpreted, on the CPU.

Every number lies inside the same derived budget as the kernel on the CPU (tests/support/budgets.py).
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from budgets import assert_within, measure_budget
from problems import option_sets, random_arrays
from tensors import tensor, tensor_options

import rootdk
from rootdk import ArgumentError, ArgumentTypeError, scaling
from rootdk.backends import problem_of, reference
from rootdk.backends.torch import gpu
from rootdk.reading import FIELDS
from rootdk.torch.triton import read

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
NAMES = list(option_sets(np.random.default_rng(0)))
SMALL = {"leading": (2,), "heads": 2, "kv_heads": 1}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few dozen rows and keys are several blocks: the interpreter takes a second for a hundred of each."""
    for kind in gpu.SIZES:
        monkeypatch.setitem(gpu.SIZES, kind, (gpu.Sizes(16, 16, 4, 1),))


def there(given: Any) -> Any:
    """On the device that is tested."""
    given = tensor(given) if isinstance(given, np.ndarray) else given
    return given.to(DEVICE) if isinstance(given, torch.Tensor) else given


def logit_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in ("dropout", "seed")}


def assert_reading(reading: Any, query: Any, key: Any, rows: Any = slice(None), **options: Any) -> None:
    """Inside the budget of the definition."""
    problem = problem_of(query, key, key, **options)
    keys = reference.measure(problem, np.float32)[1]["keys"]
    np.testing.assert_array_equal(reading.keys.cpu().numpy(), keys[..., rows], err_msg="keys")
    assert reading.has_sinks == (problem.sinks is not None)
    for name, (expected, bound) in measure_budget(problem).items():
        column = getattr(reading, name)
        assert column.dtype == torch.float32
        assert_within(column.cpu().numpy(), expected[..., rows], bound, name)


OF_TYPES = ["nothing", "bias", "softcap", "everything"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float32") for name in NAMES] + [(name, half) for half in ("float16", "bfloat16") for name in OF_TYPES],
)
def test_every_option_and_type(rng: np.random.Generator, name: str, dtype: str) -> None:
    sizes = {"n_query": 18, "n_key": 25}
    options = logit_options(option_sets(rng, heads=2, **sizes)[name])
    q, k, _ = random_arrays(rng, **SMALL, **sizes, d_k=24, dtype=DTYPES[dtype])
    if "bias" in options:
        options["bias"] = options["bias"].astype(DTYPES[dtype])
    reading = read(there(q), there(k), **{name: there(value) for name, value in tensor_options(options).items()})
    assert_reading(reading, q, k, **options)


@pytest.mark.parametrize(
    ("n_query", "n_key"), [(1, 1), (1, 50), (16, 16), (17, 15), (33, 65), (3, 0), (0, 3), (40, 16)]
)
@pytest.mark.parametrize("name", ["full", "causal", "window", "documents", "documents, causal"])
def test_ragged_shapes(rng: np.random.Generator, n_query: int, n_key: int, name: str) -> None:
    q, k, _ = random_arrays(rng, (), 2, 1, n_query, n_key, d_k=7, dtype=np.float32)
    options: dict[str, Any] = {"window": (5, 2)} if name == "window" else {"causal": "causal" in name}
    if "documents" in name:  # of 7 tokens; the last ones of the longer side have no other
        options["segments"] = (np.arange(n_query) // 7, np.arange(n_key) // 7)
    assert_reading(read(there(q), there(k), **options), q, k, **options)


@pytest.mark.parametrize("d_k", [1, 16, 80, 129, 200])
def test_widths_whole_and_in_pieces(rng: np.random.Generator, d_k: int) -> None:
    q, k, _ = random_arrays(rng, (), 1, 1, 18, 20, d_k=d_k, dtype=np.float32)
    assert_reading(read(there(q), there(k)), q, k)


@pytest.mark.parametrize("name", ["causal top-left", "mask", "window one side", "everything"])
def test_chosen_rows_keep_their_positions(rng: np.random.Generator, name: str) -> None:
    rows = [20, 0, 7, 7, -2]
    options = logit_options(option_sets(rng, heads=2, n_query=21, n_key=39)[name])
    q, k, _ = random_arrays(rng, **SMALL, n_query=21, n_key=39, dtype=np.float32)
    given = {name: there(value) for name, value in tensor_options(options).items()}
    for chosen in (rows, torch.tensor(rows), there(torch.tensor(rows))):
        assert_reading(read(there(q), there(k), rows=chosen, **given), q, k, rows, **options)


def test_rows_on_the_device_are_not_looked_at_but_never_read_outside(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_on_device", lambda given: isinstance(given, torch.Tensor))
    q, k, _ = (there(a) for a in random_arrays(rng, (), 2, 1, 9, 18, dtype=np.float32))
    reading = read(q, k, rows=there(torch.tensor([2**40, -(2**40)])))
    assert torch.equal(reading.entropy, read(q, k).entropy[..., [8, 0]])


def test_strides_and_leading_axes_are_walked_without_a_copy(rng: np.random.Generator) -> None:
    """Heads inside rows, a broadcast mask and two leading axes, of which the kernel walks one."""
    q, k, _ = random_arrays(rng, (2, 2), 2, 1, 9, 18, dtype=np.float32)
    mask, lengths = rng.random((2, 1, 1, 9, 18)) < 0.7, rng.integers(5, 19, (2, 2))
    inside = (there(np.swapaxes(a, -2, -3).copy()).transpose(-2, -3) for a in (q, k))
    reading = read(*inside, mask=there(mask), key_lengths=lengths, scale=scaling.llama4(2, 0.5))
    assert_reading(reading, q, k, mask=mask, key_lengths=lengths, scale=scaling.llama4(2, 0.5))
    single = read(there(q[0, 0, 0]), there(k[0, 0, 0]))
    assert single.shape == (9,)


def test_options_that_lie_on_the_device(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths, offsets, sinks and a learned scale as tensors: taken as they are, and nothing looks at their values."""
    monkeypatch.setattr(gpu, "_on_device", lambda given: isinstance(given, torch.Tensor))
    q, k, _ = random_arrays(rng, **SMALL, n_query=9, n_key=18, dtype=np.float32)
    options: dict[str, Any] = {"key_lengths": np.array([18, 11]), "sinks": np.array([0.5, -1.0]), "scale": 0.6}
    options["alibi"] = np.array([0.1, 0.7])
    for more in ({"causal": True}, {"causal": True, "query_offset": np.array([3, 9])}):
        given = {name: there(torch.as_tensor(value)) for name, value in (options | more).items() if name != "causal"}
        assert_reading(read(there(q), there(k), causal=True, **given), q, k, **options, **more)


def test_segments_that_lie_on_the_device_are_refused(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """As are lengths and offsets there beside them: which keys a row sees between is found on the CPU."""
    q, k, _ = (there(a) for a in random_arrays(rng, **SMALL, n_query=9, n_key=9, dtype=np.float32))
    of_tokens = torch.arange(9) // 4
    monkeypatch.setattr(gpu, "_on_device", lambda given: given is of_tokens)
    with pytest.raises(ArgumentTypeError, match=r"^segments: must be on the CPU, got a tensor on cpu$"):
        read(q, k, segments=of_tokens)
    monkeypatch.setattr(gpu, "_on_device", lambda given: isinstance(given, torch.Tensor))
    for name in ("key_lengths", "query_offset"):
        with pytest.raises(ArgumentTypeError, match=rf"^{name}: must be on the CPU with segments, got a tensor on"):
            read(q, k, segments=of_tokens.numpy(), **{name: there(torch.tensor([9, 4]))})


@pytest.mark.parametrize(
    "bias", [-np.inf, *map(float, (np.finfo(np.float32).min, np.finfo(np.float32).max)), np.nan], ids=str
)
def test_what_is_not_finite_or_far_away(rng: np.random.Generator, bias: float) -> None:
    q, k, _ = random_arrays(rng, (), 2, 1, 20, 40, dtype=np.float32)
    q[0, 3, 1], k[0, 25, 0] = np.nan, np.inf
    added = np.zeros((20, 40), np.float32)
    added[5:, 7], added[8] = bias, bias
    problem = problem_of(q, k, k, bias=added, causal=True)
    expected = reference.measure(problem)[1]
    reading = read(there(q), there(k), bias=there(added), causal=True)
    np.testing.assert_array_equal(reading.keys.cpu().numpy(), expected["keys"])
    budget = measure_budget(problem)
    # Squares beyond the range of float32 may be infinite a little earlier, and a mean is off by ln 2: docs/limits.md.
    compared = [name for name in FIELDS if np.isnan(bias) or np.isinf(bias) or name not in ("mean", "variance")]
    for name in compared:
        assert_within(getattr(reading, name).cpu().numpy(), *budget[name], name)


def test_a_hidden_key_has_no_effect_whatever_it_holds(rng: np.random.Generator) -> None:
    q, k, _ = random_arrays(rng, (), 2, 1, 20, 40, dtype=np.float32)
    hidden = k.copy()
    hidden[:, 30:] = np.nan
    for options in ({"key_lengths": 30}, {"mask": there(np.arange(40) < 30)}, {"window": (None, 9), "query_offset": 0}):
        first, second = (read(there(q), there(keys), **options) for keys in (k, hidden))
        for name in (*FIELDS, "keys"):
            assert torch.equal(getattr(first, name), getattr(second, name)), name


def test_the_same_call_gives_the_same_bits(rng: np.random.Generator) -> None:
    q, k, _ = random_arrays(rng, **SMALL, n_query=20, n_key=40, dtype=np.float32)
    first, second = (read(there(q), there(k), causal=True) for _ in range(2))
    for name in (*FIELDS, "keys"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name


def test_measure_is_torchs_attention_and_read(rng: np.random.Generator) -> None:
    q, k, v = (there(a) for a in random_arrays(rng, (1,), 2, 1, 9, 18, dtype=np.float32))
    q.requires_grad_()
    mask, bias = there(rng.random((9, 18)) < 0.8), there(rng.standard_normal((2, 9, 18)).astype(np.float32))
    given: list[dict[str, Any]] = [
        {},
        {"scale": 0.3},
        {"scale": there(torch.tensor(0.3))},
        {"causal": True},
        {"mask": mask},
    ]
    for options in [*given, {"causal": True, "query_offset": 0}, {"bias": bias}, {"mask": mask, "bias": bias}]:
        out, reading = gpu.measure(q, k, v, rootdk.options.Options(**options))
        expected = rootdk.attention(*(t.cpu() for t in (q, k, v)), **{n: _here(o) for n, o in options.items()})
        torch.testing.assert_close(out.cpu(), expected, atol=2e-6, rtol=2e-6)
        assert torch.equal(reading.entropy, read(q, k, **options).entropy)
        (gradient,) = torch.autograd.grad(out.sum(), q)
        assert gradient.shape == q.shape


def _here(given: Any) -> Any:
    return given.cpu() if isinstance(given, torch.Tensor) else given


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 3}, "window: torch's attention, which measure uses on a GPU, has none; use rootdk.read"),
        ({"softcap": 3.0}, "softcap: torch's attention"),
        ({"sinks": [0.0, 1.0]}, "sinks: torch's attention"),
        ({"key_lengths": [3, 4]}, "key_lengths: torch's attention"),
        ({"alibi": [0.5, 0.25]}, "alibi: torch's attention"),
        ({"segments": [0, 0, 1, 1, 1]}, "segments: torch's attention"),
        ({"seed": 1, "dropout": 0.5}, "seed: torch's attention"),
        ({"causal": True, "query_offset": 3}, "query_offset: torch's attention, which measure uses on a GPU, begins"),
        ({"scale": scaling.llama4(2, 0.5)}, "scale: torch's attention, which measure uses on a GPU, takes one for all"),
    ],
)
def test_what_torchs_attention_lacks_is_an_error(rng: np.random.Generator, options: dict[str, Any], words: str) -> None:
    q, k, v = (there(a) for a in random_arrays(rng, **SMALL, n_query=5, n_key=9, dtype=np.float32))
    with pytest.raises(ArgumentError) as caught:
        gpu.measure(q, k, v, rootdk.options.Options(**options))
    assert str(caught.value).startswith(words)


def test_errors(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, _ = (there(a) for a in random_arrays(rng, dtype=np.float32))
    cases = [
        ((q.double(), k.double()), {}, ArgumentTypeError, "query: must be float32, float16 or bfloat16 on a GPU"),
        ((q, k.half()), {}, ArgumentTypeError, "key: must be float32 to match query, got float16"),
        ((q, k.to("meta")), {}, ArgumentTypeError, f"key: must be on {q.device} like query, got meta"),
        ((q, k.cpu().numpy()), {}, ArgumentTypeError, "key: must be a torch tensor like query, got ndarray"),
        ((q, k), {"mask": np.ones((7, 9), bool)}, ArgumentTypeError, "mask: must be a torch tensor like query"),
        ((q, k), {"mask": q[0, 0]}, ArgumentTypeError, "mask: must be bool, True keeps a pair, got float32"),
        ((q, k), {"rows": [9]}, ArgumentError, "rows: must be from -7 to 6, got [9]"),
        ((q, k), {"softcap": -1.0}, ArgumentError, "softcap: must be a finite number > 0"),
        ((q.to("meta"), k), {}, ArgumentTypeError, "query: must be on a CUDA or ROCm device, got one on device 'meta'"),
    ]
    for arrays, options, error, words in cases:
        with pytest.raises(error) as caught:
            read(*arrays, **options)
        assert str(caught.value).startswith(words), caught.value
    monkeypatch.setattr(gpu, "interpreted", lambda: False)
    with pytest.raises(ArgumentTypeError, match="or set TRITON_INTERPRET=1 before triton is imported"):
        read(q.cpu(), k.cpu())


def test_a_fact_that_the_kernel_does_not_know_is_refused(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, _ = (there(a) for a in random_arrays(rng, dtype=np.float32))
    monkeypatch.setattr(gpu, "_KNOWN", gpu._KNOWN - {"softcap"})
    read(q, k)
    with pytest.raises(ArgumentError, match=r"^softcap: must be None on a GPU, got float$"):
        read(q, k, softcap=2.0)


def test_attention_points_to_torch(rng: np.random.Generator) -> None:
    """On a tensor that only says that it is on a GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 2, 4, 8, device="cuda")
        with pytest.raises(
            ArgumentTypeError, match=r"on a GPU use torch\.nn\.functional\.scaled_dot_product_attention"
        ):
            rootdk.attention(q, q, q)


@pytest.mark.parametrize("kind", list(gpu.SIZES), ids=str)
def test_an_autotuner_has_the_sizes_of_the_table(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs where ROOTDK_TRITON_AUTOTUNE is 1, and then chooses the sizes itself."""
    monkeypatch.undo()
    from rootdk.backends.torch import gpu_kernel

    tuner = gpu_kernel.autotuned(gpu.SIZES[kind])
    tried = [(*config.kwargs.values(), config.num_warps, config.num_stages) for config in tuner.configs]
    assert tried == [tuple(sizes) for sizes in gpu.SIZES[kind]]


@pytest.mark.gpu
def test_rootdk_read_and_measure_go_to_the_gpu(rng: np.random.Generator) -> None:
    q, k, v = (there(a) for a in random_arrays(rng, dtype=np.float32))
    assert torch.equal(rootdk.read(q, k).entropy, read(q, k).entropy)
    out, reading = rootdk.measure(q, k, v)
    assert out.is_cuda
    assert torch.equal(reading.entropy, read(q, k).entropy)


@pytest.mark.gpu
def test_nothing_waits_for_the_device(rng: np.random.Generator) -> None:
    q, k, _ = (there(a) for a in random_arrays(rng, dtype=np.float32))
    lengths = torch.tensor([9, 5], device="cuda")
    read(q, k, causal=True, key_lengths=lengths)  # compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        read(q, k, causal=True, key_lengths=lengths)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_cuda_graph_captures_it(rng: np.random.Generator) -> None:
    q, k, _ = (there(a) for a in random_arrays(rng, dtype=np.float32))
    expected = read(q, k, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = read(q, k, causal=True)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured.entropy, expected.entropy)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_blocks_that_ship_at_real_sizes(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    monkeypatch.undo()  # the sizes of the table
    q, k = torch.randn(2, 2, 4, 1000, 128, device="cuda", dtype=dtype).unbind(0)
    mask = torch.rand(1000, 1000, device="cuda") < 0.9
    for options in ({}, {"causal": True}, {"mask": mask}):
        reading, expected = (
            read(q, k, **options),
            rootdk.read(q.float().cpu(), k.float().cpu(), **{n: _here(o) for n, o in options.items()}),
        )
        torch.testing.assert_close(reading.entropy.cpu(), expected.entropy, atol=2e-4, rtol=2e-4)
        torch.testing.assert_close(reading.variance.cpu(), expected.variance, atol=2e-3, rtol=2e-3)
