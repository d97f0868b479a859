"""Every refusal, by its full text: the argument, what was expected, what came. Nothing is computed before it."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from recording_kernel import RecordingKernel

import rootdk
from rootdk import ArgumentError, ArgumentTypeError, KernelMissingError, RootdkError, backends

Q = np.zeros((2, 8, 128, 64), np.float32)
K = np.zeros((2, 4, 96, 64), np.float32)
V = np.zeros((2, 4, 96, 32), np.float32)
TYPES = "float32, float64, float16 or bfloat16"
# NumPy before 2 says numpy.ma.core.
MASKED = f"{np.ma.MaskedArray.__module__}.MaskedArray"
ANY = "query: must be an array of NumPy or jax or a torch tensor"

ARRAYS = [
    ([1.0], K, V, f"{ANY}, got list"),
    (None, K, V, f"{ANY}, got NoneType"),
    (np.float32(1), K, V, f"{ANY}, got numpy.float32"),
    (np.ma.masked_array(Q), K, V, f"{ANY}, got {MASKED}"),
    (torch.Size([2, 3]), K, V, f"{ANY}, got torch.Size"),
    (torch.zeros(2, 3), K, V, "key: must be a torch tensor like query, got numpy.ndarray"),
    (torch.zeros(2, 3, device="meta"), K, V, "query: must be a dense tensor on the CPU, got one on device 'meta' (rootdk computes on the CPU only: move it with tensor.cpu())"),  # noqa: E501
    (Q, [1.0], V, "key: must be a NumPy array like query, got list"),
    (Q, K, torch.zeros(2, 3), "value: must be a NumPy array like query, got torch.Tensor"),
    (Q.astype(int), K, V, f"query: must be {TYPES}, got int64"),
    (Q.astype(complex), K, V, f"query: must be {TYPES}, got complex128"),
    (Q.astype(np.longdouble), K, V, f"query: must be {TYPES}, got {np.dtype(np.longdouble)}"),
    (Q, K.astype(bool), V, f"key: must be {TYPES}, got bool"),
    (Q, K.astype(np.float64), V, "key: must be float32 to match query, got float64"),
    (Q, K, V.astype(np.float16), "value: must be float32 to match query, got float16"),
    (np.zeros(64, np.float32), K, V, "query: must have at least 2 axes (n_query, d_k), got 1 (query (64,))"),
    (Q[..., :0], K[..., :0], V, "query: last axis must be at least 1, got 0 (query (2, 8, 128, 0))"),
    (Q[..., :0], Q[..., :0], Q[..., :0], "query: last axis must be at least 1, got 0 (query (2, 8, 128, 0))"),
    (Q, K[0], V, "key: must have 4 axes like query, got 3 (query (2, 8, 128, 64), key (4, 96, 64))"),
    (Q, K, V[0], "value: must have 4 axes like query, got 3 (query (2, 8, 128, 64), value (4, 96, 32))"),
    (Q, K[:1], V, "key: leading axes must be (2,) to match query, got (1,) (query (2, 8, 128, 64), key (1, 4, 96, 64))"),  # noqa: E501
    (Q, K, V[:1], "value: leading axes must be (2,) to match query, got (1,) (query (2, 8, 128, 64), value (1, 4, 96, 32))"),  # noqa: E501
    (Q, K[..., :32], V, "key: last axis must be 64 to match query, got 32 (query (2, 8, 128, 64), key (2, 4, 96, 32))"),
    (Q, K[:, :3], V, "key: heads must divide the 8 of query, got 3 (query (2, 8, 128, 64), key (2, 3, 96, 64))"),
    (Q, K[:, :0], V, "key: heads must divide the 8 of query, got 0 (query (2, 8, 128, 64), key (2, 0, 96, 64))"),
    (Q, K, V[:, :2], "value: heads must be 4 to match key, got 2 (key (2, 4, 96, 64), value (2, 2, 96, 32))"),
    (Q, K[:, :2], V, "value: heads must be 2 to match key, got 4 (key (2, 2, 96, 64), value (2, 4, 96, 32))"),
    (Q, K, V[:, :, 1:], "value: must hold 96 keys to match key, got 95 (key (2, 4, 96, 64), value (2, 4, 95, 32))"),
    (Q, K[:, :, 1:], V, "value: must hold 95 keys to match key, got 96 (key (2, 4, 95, 64), value (2, 4, 96, 32))"),
]  # fmt: skip

NAMES = "'none', 'sqrt', 'dk', 't5', 'entropy_invariant', 'ssmax', 'llama4', one with parameters such as 'mup(64)', "
NAMES += "or a number"
SCALE = "scale: must be None, a number, a name or a rule from rootdk.scaling"
WINDOW = "window: must be an int >= 0 or a pair of them (None for no limit)"
FAR = 2**60
OPTIONS = [
    ({"scale": "sqrtt"}, f"scale: must be one of the names {NAMES}, got 'sqrtt'; did you mean 'sqrt'?"),
    ({"scale": float("nan")}, "scale: must be finite and at most 1e+19 in size, got nan"),
    ({"scale": float("inf")}, "scale: must be finite and at most 1e+19 in size, got inf"),
    ({"scale": True}, f"{SCALE}, got True"),
    ({"scale": [1.0]}, f"{SCALE}, got [1.0]"),
    ({"scale": rootdk.ScaleRule("bad", "", lambda d_k, keys, position: float("nan"))},
     "scale: the rule 'bad' must give finite factors of at most 1e+19 in size, got nan"),
    ({"scale": rootdk.ScaleRule("bad", "", lambda d_k, keys, position: np.ones(3))},
     "scale: the rule 'bad' must give one factor per row (2, 128), got shape (3,)"),
    ({"scale": rootdk.ScaleRule("bad", "", lambda d_k, keys, position: "0.5")},
     "scale: the rule 'bad' must give numbers, got '0.5'"),
    ({"scale": rootdk.ScaleRule("bad", "", lambda d_k, keys, position: None)},
     "scale: the rule 'bad' must give numbers, got None"),
    ({"scale": rootdk.ScaleRule("bad", "", lambda d_k, keys, position: [[1.0], [1.0, 2.0]])},
     "scale: the rule 'bad' must give numbers, got [[1.0], [1.0, 2.0]]"),
    ({"scale": 10**400}, "scale: must be finite and at most 1e+19 in size, got an int near 1e400"),
    ({"scale": -(10**30)}, f"scale: must be finite and at most 1e+19 in size, got {-(10**30)}"),
    ({"scale": rootdk.ScaleRule("bad", "", lambda d_k, keys, position: 10**400)},
     "scale: the rule 'bad' must give numbers, got an int near 1e400"),
    ({"scale": rootdk.ScaleRule("bad", "", lambda d_k, keys, position: np.ma.masked_array(0.5))},
     f"scale: the rule 'bad' must give numbers, got {MASKED}"),
    ({"causal": 1}, "causal: must be True or False, got 1"),
    ({"causal": None}, "causal: must be True or False, got None"),
    ({"mask": [True]}, "mask: must be a NumPy array like query, got list"),
    ({"mask": np.zeros((128, 96))}, "mask: must be bool, True keeps a pair, got float64"),
    ({"mask": np.zeros((96, 128), bool)},
     "mask: must broadcast to (..., heads, n_query, n_key) = (2, 8, 128, 96), got (96, 128)"),
    ({"mask": np.zeros((1, 2, 8, 128, 96), bool)},
     "mask: must broadcast to (..., heads, n_query, n_key) = (2, 8, 128, 96), got (1, 2, 8, 128, 96)"),
    ({"bias": 0.5}, "bias: must be a NumPy array like query, got float"),
    ({"bias": np.zeros((128, 96), int)}, f"bias: must be {TYPES}, got int64"),
    ({"bias": np.zeros(95)}, "bias: must broadcast to (..., heads, n_query, n_key) = (2, 8, 128, 96), got (95,)"),
    ({"window": -1}, f"{WINDOW}, got -1"),
    ({"window": np.int64(-1)}, f"{WINDOW}, got -1"),
    ({"window": (3, -1)}, f"{WINDOW}, got (3, -1)"),
    ({"window": 2.0}, f"{WINDOW}, got 2.0"),
    ({"window": True}, f"{WINDOW}, got True"),
    ({"window": -(10**400)}, f"{WINDOW}, got an int near -1e400"),
    ({"window": np.ma.masked_array(1)}, f"{WINDOW}, got {MASKED}"),
    ({"window": (1, 2, 3)}, "window: must be an int or (left, right), got (1, 2, 3)"),
    ({"query_offset": 1.5}, "query_offset: must be integers, got 1.5"),
    ({"query_offset": True}, "query_offset: must be integers, got True"),
    ({"query_offset": [1, 2, 3]}, "query_offset: must be an int or ints of shape (2,), got shape (3,)"),
    ({"query_offset": [[1, 2], [3]]}, "query_offset: must be numbers, got [[1, 2], [3]]"),
    ({"query_offset": 2**61}, f"query_offset: must be from {-FAR} to {FAR}, got {2**61}"),
    ({"query_offset": 10**30}, f"query_offset: must be from {-FAR} to {FAR}, got {10**30}"),
    ({"query_offset": -(10**5000)}, f"query_offset: must be from {-FAR} to {FAR}, got an int near -1e5000"),
    ({"query_offset": np.ma.masked_array([1, 2])},
     f"query_offset: must be numbers without a mask, got {MASKED}"),
    ({"key_lengths": [10**30, 1]}, f"key_lengths: must be from 0 to 96, got {[10**30, 1]}"),
    ({"key_lengths": 10**400}, "key_lengths: must be from 0 to 96, got an int near 1e400"),
    ({"key_lengths": np.ma.masked_array([1, 2], [True, False])},
     f"key_lengths: must be numbers without a mask, got {MASKED}"),
    ({"key_lengths": [np.ma.masked_array(1, True), 2]},
     f"key_lengths: must be numbers without a mask, got {MASKED}"),
    ({"key_lengths": [97, 1]}, "key_lengths: must be from 0 to 96, got [97, 1]"),
    ({"key_lengths": [-1, 1]}, "key_lengths: must be from 0 to 96, got [-1, 1]"),
    ({"key_lengths": [[1, 2]]}, "key_lengths: must be an int or ints of shape (2,), got shape (1, 2)"),
    ({"key_lengths": "12"}, "key_lengths: must be integers, got '12'"),
    ({"softcap": 0.0}, "softcap: must be a finite number > 0, got 0.0"),
    ({"softcap": -2}, "softcap: must be a finite number > 0, got -2"),
    ({"softcap": float("nan")}, "softcap: must be a finite number > 0, got nan"),
    ({"softcap": 10**400}, "softcap: must be a finite number > 0, got an int near 1e400"),
    ({"softcap": -(10**5000)}, "softcap: must be a finite number > 0, got an int near -1e5000"),
    ({"softcap": "30"}, "softcap: must be a number > 0, got '30'"),
    ({"sinks": np.zeros(4)}, "sinks: must have shape (8,), one per query head, got (4,)"),
    ({"sinks": 1.0}, "sinks: must have shape (8,), one per query head, got ()"),
    ({"sinks": ["a"] * 8}, "sinks: must be numbers, got ['a', 'a', 'a', 'a', 'a', 'a', 'a', 'a']"),
    ({"sinks": [0, 0, 0, 0, 0, 0, 0, float("inf")]}, "sinks: must be finite, got [0, 0, 0, 0, 0, 0, 0, inf]"),
    ({"alibi": np.zeros(4)}, "alibi: must broadcast to (..., heads) = (2, 8), got shape (4,)"),
    ({"alibi": ["a"] * 8}, "alibi: must be numbers, got ['a', 'a', 'a', 'a', 'a', 'a', 'a', 'a']"),
    ({"alibi": float("nan")}, "alibi: must be finite and at most 1e+19 in size, got nan"),
    ({"segments": np.zeros(4, int)},
     "segments: must be a tuple of two (queries, keys) for 128 queries and 96 keys, got one array"),
    ({"sinks": np.ma.masked_array(np.zeros(8))}, f"sinks: must be numbers without a mask, got {MASKED}"),
    ({"sinks": [10**400] * 8}, "sinks: must be finite, got list"),
    ({"dropout": 10**400}, "dropout: must be at least 0 and below 1, got an int near 1e400"),
    ({"dropout": 1.0}, "dropout: must be at least 0 and below 1, got 1.0"),
    ({"dropout": -0.1}, "dropout: must be at least 0 and below 1, got -0.1"),
    ({"dropout": float("nan")}, "dropout: must be at least 0 and below 1, got nan"),
    ({"dropout": None}, "dropout: must be a number from 0 to below 1, got None"),
    ({"dropout": np.zeros(2)}, "dropout: must be a number from 0 to below 1, got array([0., 0.])"),
    ({"seed": -1}, "seed: must be at least 0 and below 2**64, got -1"),
    ({"seed": 2**64}, f"seed: must be at least 0 and below 2**64, got {2**64}"),
    ({"seed": 10**5000}, "seed: must be at least 0 and below 2**64, got an int near 1e5000"),
    ({"seed": 1.0}, "seed: must be an int, got 1.0"),
]  # fmt: skip


def refusal(recorder: RecordingKernel, call: Any) -> tuple[BaseException, str]:
    with pytest.raises(RootdkError) as caught:
        call()
    assert recorder.forward_arguments == (), "the kernel ran before the check"
    return caught.value, str(caught.value)


@pytest.mark.parametrize(("query", "key", "value", "message"), ARRAYS, ids=lambda x: x if isinstance(x, str) else "")
def test_arrays(recorder: RecordingKernel, query: Any, key: Any, value: Any, message: str) -> None:
    error, text = refusal(recorder, lambda: rootdk.attention(query, key, value))
    assert text == message
    about_type = any(word in text for word in ("array", "tensor", "float32"))
    assert isinstance(error, ArgumentTypeError if about_type else ArgumentError)


@pytest.mark.parametrize("call", [rootdk.attention, rootdk.measure, rootdk.attention_vjp])
@pytest.mark.parametrize(("options", "message"), OPTIONS, ids=lambda x: x if isinstance(x, str) else "")
def test_options(recorder: RecordingKernel, call: Any, options: dict[str, Any], message: str) -> None:
    assert refusal(recorder, lambda: call(Q, K, V, **options))[1] == message


@pytest.mark.parametrize(
    ("window", "kind"),
    [(-1, ArgumentError), (np.int64(-1), ArgumentError), ((0, np.int32(-7)), ArgumentError), (2.0, ArgumentTypeError),
     (True, ArgumentTypeError), (np.bool_(True), ArgumentTypeError), ("3", ArgumentTypeError)],
)  # fmt: skip
def test_a_window_is_wrong_by_value_or_by_type(window: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^window: must be an int"):
        rootdk.attention(Q, K, V, window=window)


@pytest.mark.parametrize("axes", [2, 3])
def test_without_leading_axes_one_integer_may_stand_in_a_list(recorder: RecordingKernel, axes: int) -> None:
    """A caller who dropped the batch axis of one may have kept it in the lengths."""
    arrays = [array[0] if axes == 3 else array[0, 0] for array in (Q, K, V)]
    rootdk.attention(*arrays, key_lengths=[5], query_offset=np.array([7]))
    as_list = [field.tolist() for field in recorder.problem if getattr(field, "dtype", None) == np.int64]
    rootdk.attention(*arrays, key_lengths=5, query_offset=7)
    plain = [field.tolist() for field in recorder.problem if getattr(field, "dtype", None) == np.int64]
    assert as_list == plain == [[7], [5]]
    with pytest.raises(ArgumentError) as caught:
        rootdk.attention(*arrays, key_lengths=[5, 6])
    assert str(caught.value) == "key_lengths: must be an int or ints of shape (1,), got shape (2,)"


def test_every_argument_is_refused_somewhere() -> None:
    import inspect

    named = {message.partition(":")[0] for *_, message in ARRAYS + OPTIONS}
    assert named == set(inspect.signature(rootdk.attention).parameters)


def test_a_borrowed_signature_is_the_whole_one() -> None:
    import inspect

    from rootdk.options import given_options, takes

    @takes(rootdk.read)
    def scale_of(arguments: dict[str, Any]) -> Any:
        return given_options(arguments).scale, arguments["rows"]

    assert inspect.signature(scale_of).parameters == inspect.signature(rootdk.read).parameters
    assert scale_of(Q, K, scale=0.5) == (0.5, None)
    with pytest.raises(TypeError, match=r"^scale_of\(\): got an unexpected keyword argument 'dropout'$"):
        scale_of(Q, K, dropout=0.1)  # type: ignore[call-arg]


def test_errors_are_also_the_built_in_ones() -> None:
    with pytest.raises(ValueError, match="softcap: must be"):
        rootdk.attention(Q, K, V, softcap=-1.0)
    with pytest.raises(TypeError, match="key: must be"):
        rootdk.attention(Q, None, V)


@pytest.mark.parametrize(
    ("d_out", "message"),
    [
        (np.zeros((2, 8, 128, 31), np.float32),
         "d_out: must have the shape of the output (2, 8, 128, 32), got (2, 8, 128, 31)"),
        (np.zeros((2, 8, 128, 32)), "d_out: must be float32 to match query, got float64"),
        (1.0, "d_out: must be a NumPy array like query, got float"),
    ],
)  # fmt: skip
def test_d_out(recorder: RecordingKernel, d_out: Any, message: str) -> None:
    _, pull_back = rootdk.attention_vjp(Q, K, V)
    with pytest.raises(RootdkError) as caught:
        pull_back(d_out)
    assert str(caught.value) == message
    assert recorder.backward_arguments == ()


def test_threads(recorder: RecordingKernel) -> None:
    expected = "n: must be an int from 1 to 1024, got"
    for given, message in ((0, f"{expected} 0"), (1.5, f"{expected} 1.5"), (10**400, f"{expected} an int near 1e400")):
        with pytest.raises(RootdkError) as caught:
            rootdk.set_num_threads(given)  # type: ignore[arg-type]
        assert str(caught.value) == message
    assert recorder.threads == 3


def test_a_missing_kernel_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rootdk._kernel", None)  # what an import finds where nothing was built
    backends.kernel.cache_clear()
    with pytest.raises(KernelMissingError) as caught:
        rootdk.attention(Q, K, V)
    assert str(caught.value).startswith("rootdk._kernel: the compiled kernel must be importable, got ModuleNotFound")
    assert str(caught.value).endswith("; build it with `pip install .` in the source folder")
    assert isinstance(caught.value, ImportError)
    with pytest.raises(KernelMissingError):
        rootdk.num_threads()
    backends.kernel.cache_clear()
