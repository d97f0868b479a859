"""The public functions: what is handed down to the kernel, what comes back, and that it equals the reference."""

import ast
import doctest
import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from budgets import assert_within, forward_budget, gradient_budget, measure_budget
from problems import option_sets, random_arrays
from recording_kernel import RecordingKernel

import rootdk
from rootdk import options as options_module
from rootdk.backends import problem_of, reference
from rootdk.backends import torch as torch_backend
from rootdk.options import Learnable, Options, Problem

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
NAMES = list(option_sets(np.random.default_rng(0)))
# What follows the Problem in a call of the kernel, as the stub of the compiled module names it.
FILLED = ("out", "row_state", "reading", "keys")


def handed_down(
    recorder: RecordingKernel, *arrays: Any, call: Any = rootdk.attention, **options: Any
) -> dict[str, Any]:
    call(*arrays, **options)
    return facts_of(recorder.forward_arguments)


def facts_of(arguments: Any) -> dict[str, Any]:
    problem, *filled = arguments
    return dict(zip((*Problem._fields, *FILLED), (*problem, *filled), strict=True))


def as_numbers(arrays: Any, dtype: Any) -> list[Any]:
    return [a.astype(dtype) for a in arrays]


# What is handed down


def test_defaults(recorder: RecordingKernel, rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, dtype=np.float32)
    facts = handed_down(recorder, q, k, v)
    assert all(facts[name] is array for name, array in (("query", q), ("key", k), ("value", v)))
    assert facts["scale"] == pytest.approx(8**-0.5, rel=1e-15)
    assert facts["query_offset"].dtype == np.int64
    assert facts["query_offset"].tolist() == [2, 2]
    assert (facts["dropout"], facts["seed"]) == (0.0, 0)
    absent = ("row_scale", "softcap", "left", "right", "key_lengths", "mask", "bias", "sinks")
    assert all(facts[name] is None for name in (*absent, "row_state", "reading", "keys"))
    out = facts["out"]
    assert out.shape == (2, 4, 7, 5)
    assert out.dtype == np.float32
    assert out.flags.c_contiguous


def test_types_are_exact(recorder: RecordingKernel, rng: np.random.Generator) -> None:
    """The compiled module takes Python numbers and arrays of one type; NumPy scalars are turned into them."""
    options = {
        "scale": np.float32(0.5), "softcap": np.float64(2), "dropout": np.float32(0.25), "seed": np.uint64(2**64 - 1),
        "window": (np.int32(3), None), "sinks": np.arange(4), "key_lengths": np.array([3, 4], np.uint8),
        "query_offset": np.int16(-2), "causal": np.bool_(False),
    }  # fmt: skip
    facts = handed_down(recorder, *random_arrays(rng), **options)
    for name, value in {
        "scale": 0.5,
        "softcap": 2.0,
        "dropout": 0.25,
        "seed": 2**64 - 1,
        "left": 3,
    }.items():
        assert facts[name] == value
        assert type(facts[name]) in (int, float), name
    for name, kind in (("sinks", np.float64), ("key_lengths", np.int64), ("query_offset", np.int64)):
        assert facts[name].dtype == kind
        assert facts[name].flags.c_contiguous


@pytest.mark.parametrize(
    ("options", "left", "right"),
    [
        ({"causal": True}, None, 0),
        ({"window": 3}, 3, 3),
        ({"window": (2, 5)}, 2, 5),
        ({"window": [2, 5], "causal": True}, 2, 0),
        ({"window": (None, 5)}, None, 5),
        ({"window": (0, None), "causal": True}, 0, 0),
        ({"window": 2**63 - 1}, 2**61, 2**61),
    ],
)
def test_limits(recorder: RecordingKernel, rng: np.random.Generator, options: Any, left: Any, right: Any) -> None:
    facts = handed_down(recorder, *random_arrays(rng), **options)
    assert (facts["left"], facts["right"]) == (left, right)


@pytest.mark.parametrize(
    ("options", "offset"),
    [
        ({}, [2, 2]),
        ({"query_offset": 0}, [0, 0]),
        ({"query_offset": [4, -1]}, [4, -1]),
        ({"key_lengths": [9, 3]}, [2, -4]),
        ({"key_lengths": [9, 3], "query_offset": 1}, [1, 1]),
        ({"key_lengths": 5}, [-2, -2]),
    ],
)
def test_offsets(recorder: RecordingKernel, rng: np.random.Generator, options: Any, offset: list[int]) -> None:
    assert handed_down(recorder, *random_arrays(rng), **options)["query_offset"].tolist() == offset


def test_leading_axes_are_flat_for_lengths_and_offsets(recorder: RecordingKernel, rng: np.random.Generator) -> None:
    arrays = random_arrays(rng, (2, 3))
    lengths = np.arange(6).reshape(2, 3)
    facts = handed_down(recorder, *arrays, key_lengths=lengths[:, ::-1], query_offset=lengths.T.copy().T)
    assert facts["key_lengths"].tolist() == [2, 1, 0, 5, 4, 3]
    assert facts["query_offset"].tolist() == [0, 1, 2, 3, 4, 5]
    single = random_arrays(rng, ())
    assert handed_down(recorder, *single, key_lengths=4)["key_lengths"].tolist() == [4]


def test_mask_and_bias_are_views(recorder: RecordingKernel, rng: np.random.Generator) -> None:
    mask, bias = np.ones((7, 1), bool), np.ones((4, 1, 9), np.float16)
    facts = handed_down(recorder, *random_arrays(rng, dtype=np.float32), mask=mask, bias=bias)
    assert facts["mask"].shape == facts["bias"].shape == (2, 4, 7, 9)
    assert np.shares_memory(facts["mask"], mask)
    assert np.shares_memory(facts["bias"], bias)
    assert facts["bias"].dtype == np.float16
    assert facts["bias"].strides[0] == facts["bias"].strides[2] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements(recorder: RecordingKernel, rng: np.random.Generator, dtype: Any) -> None:
    arrays = random_arrays(rng, dtype=dtype)
    facts = handed_down(recorder, *arrays, bias=np.zeros(9, dtype))
    raw = np.uint16 if dtype is ml_dtypes.bfloat16 else dtype  # the buffer protocol does not know bfloat16
    assert facts["bias"].dtype == raw
    for name, array in zip(("query", "key", "value"), arrays, strict=True):
        assert facts[name].dtype == raw
        assert np.shares_memory(facts[name], array)
    assert rootdk.attention(*arrays).dtype == np.dtype(dtype)


def misaligned(array: Any) -> Any:
    """The same numbers at an address that is no multiple of their size."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    shifted = memory[1:].view(array.dtype).reshape(array.shape)
    shifted[...] = array
    assert not shifted.flags.aligned
    return shifted


def between_bytes(array: Any) -> Any:
    """The same numbers as a field of packed records: the distance between rows is no multiple of the size."""
    record = np.zeros(array.shape[:-1], np.dtype([("flag", np.uint8), ("row", array.dtype, array.shape[-1:])]))
    record["row"] = array
    return record["row"]


WALKED = {
    "transposed heads": lambda a: np.ascontiguousarray(np.swapaxes(a, -3, -2)).swapaxes(-3, -2),
    "every other row": lambda a: np.repeat(a, 2, axis=-2)[..., ::2, :],
    "reversed rows": lambda a: np.ascontiguousarray(a[..., ::-1, :])[..., ::-1, :],
    "cut from wider": lambda a: np.concatenate([a, a], axis=-1)[..., : a.shape[-1]],
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
}
COPIED = {
    "Fortran order": np.asfortranarray,
    "reversed components": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "every other component": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "misaligned": misaligned,
    "between bytes": between_bytes,
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder()),
}


@pytest.mark.parametrize("layout", [*WALKED, *COPIED])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_only_what_cannot_be_walked_is_copied(
    recorder: RecordingKernel, rng: np.random.Generator, dtype: Any, layout: str
) -> None:
    arrays = random_arrays(rng, dtype=dtype)
    laid_out = [(WALKED | COPIED)[layout](a) for a in arrays]
    facts = handed_down(recorder, *laid_out)
    for name, before, given in zip(("query", "key", "value"), arrays, laid_out, strict=True):
        walked = facts[name]
        assert np.shares_memory(walked, given) == (layout in WALKED)
        assert walked.strides[-1] == walked.itemsize
        assert walked.flags.aligned
        np.testing.assert_array_equal(walked, before.view(walked.dtype))


def test_a_stretched_array_is_not_copied(recorder: RecordingKernel, rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, dtype=np.float32)
    key = np.broadcast_to(k[:1], k.shape)
    facts = handed_down(recorder, q, key, v)
    assert facts["key"].strides[0] == 0
    assert np.shares_memory(facts["key"], k)


def test_subclasses_become_plain_arrays(recorder: RecordingKernel, rng: np.random.Generator) -> None:
    q = rng.standard_normal((4, 8)).astype(np.float32)

    class Own(np.ndarray):
        """Somebody's array type."""

    facts = handed_down(recorder, q.view(Own), q, q)
    assert type(facts["query"]) is np.ndarray
    assert facts["query"].shape == (1, 4, 8)


def test_seeds(recorder: RecordingKernel, rng: np.random.Generator) -> None:
    arrays = random_arrays(rng)
    assert handed_down(recorder, *arrays, dropout=0.1, seed=5)["seed"] == 5
    drawn = {handed_down(recorder, *arrays, dropout=0.1)["seed"] for _ in range(4)}
    assert len(drawn) == 4
    assert all(0 <= seed < 2**64 for seed in drawn)


def test_measure_asks_for_a_reading(recorder: RecordingKernel, rng: np.random.Generator) -> None:
    for dtype in (np.float32, np.float16, np.float64):
        facts = handed_down(recorder, *random_arrays(rng, (2, 3), dtype=dtype), call=rootdk.measure)
        assert facts["reading"] is rootdk.Reading  # the kernel makes one
        assert facts["keys"] is None
        assert facts["row_state"] is None


def test_vjp_hands_down_what_backward_needs(recorder: RecordingKernel, rng: np.random.Generator) -> None:
    arrays = random_arrays(rng, dtype=ml_dtypes.bfloat16)
    out, pull_back = rootdk.attention_vjp(*arrays, causal=True)
    forward = facts_of(recorder.forward_arguments)
    assert forward["row_state"].shape == (2, 2, 4, 7)
    assert forward["row_state"].dtype == np.float32
    strided = np.asfortranarray(out)
    gradients = pull_back(strided)
    assert [(g.shape, g.dtype) for g in gradients] == [(a.shape, a.dtype) for a in arrays]
    problem, kept, d_out, row_state, gradient_memory = recorder.backward_arguments
    assert problem is recorder.forward_arguments[0]
    np.testing.assert_array_equal(kept, forward["out"])  # type: ignore[arg-type]
    assert not np.shares_memory(kept, out)  # type: ignore[call-overload]
    assert d_out.strides[-1] == 2  # type: ignore[attr-defined]
    assert row_state is forward["row_state"]
    assert isinstance(gradient_memory, Learnable)
    handed = {name: memory for name, memory in gradient_memory._asdict().items() if memory is not None}
    assert list(handed) == ["query", "key", "value"]
    for memory, gradient in zip(handed.values(), gradients, strict=True):
        assert np.shares_memory(memory, gradient)
        assert memory.dtype == np.uint16


def test_threads(recorder: RecordingKernel) -> None:
    assert rootdk.num_threads() == 3
    rootdk.set_num_threads(2)
    assert rootdk.num_threads() == 2


# Options that are kept from call to call

USUAL: list[dict[str, Any]] = [
    {}, {"causal": True}, {"causal": True, "query_offset": 0}, {"scale": 0.25}, {"scale": -1.5, "query_offset": -3},
]  # fmt: skip
UNUSUAL: list[dict[str, Any]] = [
    {"causal": np.True_}, {"query_offset": np.int64(1)}, {"query_offset": [1, 2]}, {"scale": 1}, {"scale": -0.0},
    {"scale": "sqrt"}, {"scale": np.float64(0.25)}, {"key_lengths": 4}, {"window": 3}, {"softcap": 2.0},
    {"sinks": np.zeros(4)}, {"dropout": 0.25}, {"dropout": 0}, {"seed": 1}, {"mask": np.ones(9, bool)},
    {"bias": np.zeros(9)},
]  # fmt: skip


@pytest.mark.parametrize("made", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("options", USUAL, ids=str)
def test_kept_options_are_what_they_were(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, made: Any, options: dict[str, Any]
) -> None:
    arrays = [made(a) for a in random_arrays(rng)]
    options_module.usual_facts.cache_clear()
    first, again = (problem_of(*arrays, **options) for _ in range(2))
    assert options_module.usual_facts.cache_info()[:2] == (1, 1), "hits, misses"
    with monkeypatch.context() as without:
        without.setattr(options_module, "usual_facts", options_module.usual_facts.__wrapped__)
        fresh = problem_of(*arrays, **options)
    for problem in (first, again):
        for name, ours, theirs in zip(Problem._fields, problem, fresh, strict=True):
            assert type(ours) is type(theirs), name
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
    other = [made(a) for a in random_arrays(rng, n_query=3)]
    assert problem_of(*other, **options).query.shape[-2] == 3
    assert options_module.usual_facts.cache_info()[:2] == (1, 2), "another shape is another entry"


# Tensors of older torch say nothing to the binding, and every call on them is resolved in Python.
SPEAKS = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def test_tensors_of_new_torch_speak_to_the_binding() -> None:
    assert SPEAKS or tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13)


@pytest.mark.parametrize("shape", [(2, 4, 3, 8), (4, 3, 8), (1, 2, 4, 3, 8), (2, 4, 3, 9)])
@pytest.mark.parametrize("options", USUAL, ids=str)
def test_a_call_on_tensors_is_known(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    """The binding gives, the first time and the second, what is resolved step by step: the same objects."""
    tensors = torch.randn(3, *shape).unbind(0)
    resolved = problem_of(*tensors, **options)
    for _ in range(2):
        known = torch_backend.known(*tensors, Options(**options))
        if not SPEAKS:
            assert known is None
            continue
        assert type(known) is Problem
        assert all(ours is theirs for ours, theirs in zip(known, resolved, strict=True))


def test_what_a_call_must_be_to_be_known(rng: np.random.Generator) -> None:
    def known(*tensors: Any, **options: Any) -> bool:
        return torch_backend.known(*tensors, Options(**options)) is not None

    x = torch.randn(2, 4, 9, 8)
    assert known(x, x, x) is SPEAKS
    assert not any(known(x, x, x, **options) for options in UNUSUAL)
    others = (
        x.double(),
        x[:, :, :8],
        x.transpose(1, 2),
        torch.nn.Parameter(x),
        x.numpy(),
        x.to("meta"),
        None,
    )
    assert not any(known(x, x, other) or known(x, other, x) or known(other, x, x) for other in others)
    assert not known(x[0, 0], x[0, 0], x[0, 0]), "the result has no axis of heads"
    assert not known(*(x[..., :0] for _ in range(3))), "an error"
    with torch.autocast("cpu"):
        assert not known(x, x, x)
    with torch.autograd.forward_ad.dual_level():
        assert not known(x, x, x)
    assert not torch.func.vmap(lambda t: torch.tensor(known(x, x, x)))(x).any()


@pytest.mark.parametrize("scale", [1e30, float("nan")])
def test_a_known_call_is_checked_as_any_other(scale: float) -> None:
    x = torch.randn(2, 4, 9, 8)
    for _ in range(2):
        with pytest.raises(rootdk.errors.ArgumentError, match=r"scale: must be finite and at most 1e\+19 in size, got"):
            rootdk.attention(x, x, x, scale=scale)


@pytest.mark.parametrize("options", UNUSUAL, ids=str)
def test_other_options_are_not_kept(rng: np.random.Generator, options: dict[str, Any]) -> None:
    arrays = random_arrays(rng)
    options_module.usual_facts.cache_clear()
    problem_of(*arrays, **options)
    assert options_module.usual_facts.cache_info()[:2] == (0, 0)


@pytest.mark.parametrize(
    ("first", "equal_but_wrong"),
    [
        ({"causal": True}, {"causal": 1}),
        ({"causal": False}, {"causal": 0.0}),
        ({"query_offset": 1}, {"query_offset": True}),
        ({"query_offset": 2}, {"query_offset": 2.0}),
        ({"scale": 1.0}, {"scale": True}),
        ({}, {"dropout": False}),
    ],
)
def test_what_equals_a_kept_option_is_refused_all_the_same(
    rng: np.random.Generator, first: dict[str, Any], equal_but_wrong: dict[str, Any]
) -> None:
    arrays = random_arrays(rng)
    rootdk.attention(*arrays, **first)
    with pytest.raises(rootdk.ArgumentTypeError):
        rootdk.attention(*arrays, **equal_but_wrong)


# What comes back, from the compiled kernel


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_equals_the_reference(rng: np.random.Generator, dtype: Any, name: str) -> None:
    arrays, options = as_numbers(random_arrays(rng), dtype), option_sets(rng)[name]
    out = rootdk.attention(*arrays, **options)
    assert out.dtype == np.dtype(dtype)
    assert_within(out, *forward_budget(problem_of(*arrays, **options)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_measure_equals_the_reference(rng: np.random.Generator, dtype: Any, name: str) -> None:
    arrays, options = as_numbers(random_arrays(rng), dtype), option_sets(rng)[name]
    problem = problem_of(*arrays, **options)
    out, reading = rootdk.measure(*arrays, **options)
    np.testing.assert_array_equal(out, rootdk.attention(*arrays, **options))
    np.testing.assert_array_equal(reading.keys, reference.measure(problem)[1]["keys"])
    for field, (expected, bound) in measure_budget(problem).items():
        assert_within(getattr(reading, field), expected, bound, field)
    assert reading.has_sinks == ("sinks" in options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_equal_the_reference(rng: np.random.Generator, dtype: Any, name: str) -> None:
    arrays, options = as_numbers(random_arrays(rng), dtype), option_sets(rng)[name]
    out, pull_back = rootdk.attention_vjp(*arrays, **options)
    np.testing.assert_array_equal(out, rootdk.attention(*arrays, **options))
    d_out = rng.standard_normal(out.shape).astype(dtype)
    problem = problem_of(*arrays, **options)
    budgets = gradient_budget(problem, d_out)
    for what, gradient, (expected, bound) in zip(("query", "key", "value"), pull_back(d_out), budgets, strict=True):
        assert gradient.dtype == np.dtype(dtype)
        assert_within(gradient, expected, bound, f"d_{what}")


@pytest.mark.parametrize("layout", [*WALKED, *COPIED])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_layouts_do_not_change_the_result(rng: np.random.Generator, dtype: Any, layout: str) -> None:
    lay = (WALKED | COPIED)[layout]
    arrays = random_arrays(rng, dtype=dtype)
    bias = rng.standard_normal((4, 7, 9)).astype(dtype)
    mask = rng.random((4, 7, 9)) < 0.7
    laid_out = [lay(a) for a in arrays]
    out, pull_back = rootdk.attention_vjp(*arrays, bias=bias, mask=mask)
    other_out, other_pull_back = rootdk.attention_vjp(*laid_out, bias=lay(bias), mask=np.asfortranarray(mask))
    np.testing.assert_array_equal(other_out, out)
    assert other_out.dtype == np.dtype(dtype)
    assert other_out.flags.c_contiguous
    d_out = rng.standard_normal(out.shape).astype(dtype)
    for ours, theirs in zip(other_pull_back(lay(d_out)), pull_back(d_out), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("leading", [(), (2, 3), (1, 1, 2)])
def test_any_number_of_leading_axes(rng: np.random.Generator, leading: tuple[int, ...]) -> None:
    arrays = random_arrays(rng, leading)
    out, reading = rootdk.measure(*arrays, causal=True)
    assert out.shape == (*leading, 4, 7, 5)
    assert reading.shape == (*leading, 4, 7)
    assert_within(out, *forward_budget(problem_of(*arrays, causal=True)))


def test_two_axes_are_one_head(rng: np.random.Generator) -> None:
    q, k, v = (a[0, 0] for a in random_arrays(rng))
    bias, d_out = rng.standard_normal((7, 9)), rng.standard_normal((7, 5))
    options = {"causal": True, "key_lengths": 8}
    out, pull_back = rootdk.attention_vjp(q, k, v, bias=bias, sinks=0.5, **options)
    whole, whole_pull_back = rootdk.attention_vjp(q[None], k[None], v[None], bias=bias, sinks=[0.5], **options)
    np.testing.assert_array_equal(out, whole[0])
    for ours, theirs in zip(pull_back(d_out), whole_pull_back(d_out[None]), strict=True):
        np.testing.assert_array_equal(ours, theirs[0])
    measured, reading = rootdk.measure(q, k, v, bias=bias, sinks=0.5, **options)
    np.testing.assert_array_equal(measured, out)
    assert reading.shape == (7,)
    assert len(reading.by_head()) == 1


@pytest.mark.parametrize("sizes", [{"n_key": 0}, {"n_query": 0}, {"leading": (0,)}, {"d_v": 0}, {"heads": 0}])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_empty_sizes(rng: np.random.Generator, sizes: dict[str, Any], dtype: Any) -> None:
    arrays = random_arrays(rng, **sizes, dtype=dtype)
    out, reading = rootdk.measure(*arrays)
    assert out.shape == (*arrays[0].shape[:-1], arrays[2].shape[-1])
    assert out.size == 0 or (out == 0).all()
    assert reading.shape == arrays[0].shape[:-1]
    gradients = rootdk.attention_vjp(*arrays)[1](out)
    assert [g.shape for g in gradients] == [a.shape for a in arrays]
    if "n_key" in sizes:
        assert (out == 0).all()
        assert (reading.log_sum_exp == -np.inf).all()
        assert (gradients[0] == 0).all()


def test_dropout_is_reproducible_and_drawn_anew(rng: np.random.Generator) -> None:
    arrays = random_arrays(rng, dtype=np.float32)
    first, same = (rootdk.attention(*arrays, dropout=0.5, seed=9) for _ in range(2))
    np.testing.assert_array_equal(first, same)
    assert (rootdk.attention(*arrays, dropout=0.5) != rootdk.attention(*arrays, dropout=0.5)).any()
    plain, dropped = rootdk.measure(*arrays)[1], rootdk.measure(*arrays, dropout=0.5, seed=9)[1]
    np.testing.assert_array_equal(plain.entropy, dropped.entropy)  # a reading is of the weights before dropout


def test_inputs_are_not_changed(rng: np.random.Generator) -> None:
    arrays = random_arrays(rng, dtype=np.float32)
    before = [a.copy() for a in arrays]
    out, pull_back = rootdk.attention_vjp(*arrays, causal=True)
    kept, d_out = out.copy(), np.ones_like(out)
    pull_back(d_out)
    pull_back(d_out)  # and it can be called again
    for array, copy in zip((*arrays, out, d_out), (*before, kept, np.ones_like(out)), strict=True):
        np.testing.assert_array_equal(array, copy)


def names_beside_each_other(node: ast.AST) -> set[Any]:
    """Parameters, arguments, keywords, fields, keys or elements: what stands in one list in the source."""
    children = [child.target if isinstance(child, ast.AnnAssign) else child for child in ast.iter_child_nodes(node)]
    return {getattr(child, place, None) for child in children for place in ("arg", "id", "attr", "value")}


def test_the_list_of_options_is_spelled_in_few_places() -> None:
    """Six signatures and the record for people; three records and a check where a small call would notice."""
    of_logits = set(Options._fields) - {"dropout", "seed"}
    places: Counter[str] = Counter()
    for file in Path(rootdk.__file__).parent.rglob("*.py"):
        nodes = ast.walk(ast.parse(file.read_text("utf-8")))
        places[file.name] += sum(of_logits <= names_beside_each_other(node) for node in nodes)
    assert +places == {"attention.py": 9, "options.py": 2}


@pytest.mark.parametrize("module", ["attention", "reading", "scaling", "rendering"])
def test_docstrings_run(module: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(f"rootdk.{module}"), verbose=False)
    assert failed == 0
    assert attempted > 0
