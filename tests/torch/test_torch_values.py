"""Tensors in, tensors out: every option and type against the definition, memory that is not copied, and refusals."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from budgets import assert_within, forward_budget, gradient_budget, measure_budget
from problems import random_arrays
from tensors import DTYPES, NAMES, array, problem, tensor, tensor_options

import rootdk
import rootdk.torch
from rootdk import RootdkError
from rootdk.backends import kernel, problem_of
from rootdk.backends.torch import kernel as torch_kernel
from rootdk.reading import FIELDS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_option_and_type(rng: np.random.Generator, name: str, dtype: str) -> None:
    arrays, d_out, options = problem(rng, name, DTYPES[dtype][1])
    judged = problem_of(*arrays, **options)
    tensors = [tensor(a).requires_grad_() for a in arrays]
    given = tensor_options(options)

    followed = rootdk.attention(*tensors, **given)
    assert followed.dtype == DTYPES[dtype][0]
    assert_within(array(followed), *forward_budget(judged), "output")
    gradients = torch.autograd.grad(followed, tensors, tensor(d_out))
    for what, gradient, budget in zip("qkv", gradients, gradient_budget(judged, d_out), strict=True):
        assert_within(array(gradient), *budget, f"gradient of {what}")

    values = [t.detach() for t in tensors]
    alone = rootdk.attention(*values, **given)
    assert not alone.requires_grad
    assert torch.equal(alone, followed), "with and without autograd differ"

    for inputs in (tensors, values):
        out, reading = rootdk.measure(*inputs, **given)
        assert torch.equal(out, followed)
        assert out.requires_grad == inputs[0].requires_grad
        for field, (expected, bound) in measure_budget(judged).items():
            column = getattr(reading, field)
            assert not column.requires_grad
            assert_within(array(column), expected, bound, field)

    out, pull_back = rootdk.attention_vjp(*tensors, **given)
    assert not out.requires_grad
    for pulled, gradient in zip(pull_back(tensor(d_out)), gradients, strict=True):
        assert torch.equal(pulled, gradient)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_as_numpy(rng: np.random.Generator, name: str) -> None:
    arrays, _, options = problem(rng, name, np.float32, n_query=40, n_key=50)
    theirs, fields = rootdk.measure(*arrays, **options)
    ours, reading = rootdk.measure(*(tensor(a) for a in arrays), **tensor_options(options))
    np.testing.assert_array_equal(ours.numpy(), theirs)
    for field in (*FIELDS, "keys"):
        np.testing.assert_array_equal(getattr(reading, field).numpy(), getattr(fields, field))
    np.testing.assert_array_equal(reading.by_head().mean_entropy, fields.by_head().mean_entropy)


class Spy:
    """The compiled module, and the addresses that it was given."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.addresses: list[int] = []

    def alike(self, *tensors: Any) -> Any:
        return self.real.alike(*tensors)

    def forward(self, problem: Any, out: Any, *rest: Any) -> None:
        self.addresses = [a.data_ptr() for a in (*problem[:3], out)]
        self.real.forward(problem, out, *rest)


def test_the_binding_tells_tensors_that_are_alike_from_others() -> None:
    tensor, narrow = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4, dtype=torch.bfloat16)
    turned, longer = torch.zeros(2, 4, 3).transpose(1, 2), torch.zeros(2, 5, 4)
    integers, sparse = torch.zeros(2, 3, 4, dtype=torch.int64), tensor.to_sparse()
    elsewhere = torch.zeros(2, 3, 4, device="meta")
    expected = {
        2: [(tensor,) * 3, (narrow,) * 3, (tensor, tensor[:, :], tensor.clone())],
        1: [(tensor, longer, longer), (tensor, tensor, turned), (turned,) * 3, (tensor, tensor[0], tensor)],
        0: [(tensor, narrow, narrow), (tensor, tensor, narrow), (integers,) * 3, (tensor, sparse, tensor)],
    }
    expected[0] += [(elsewhere, tensor, tensor), (tensor, elsewhere, tensor), (np.zeros((2, 3, 4)),) * 3]
    for answer, problems in expected.items():
        assert [kernel().alike(*tensors) for tensors in problems] == [answer] * len(problems)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["plain", "rows before heads", "expanded", "sliced", "offset", "steps"])
def test_nothing_is_copied(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, layout: str, dtype: str) -> None:
    kind = DTYPES[dtype][0]

    def made() -> Any:
        if layout == "rows before heads":
            return torch.randn(2, 9, 4, 8, dtype=kind).transpose(1, 2)
        if layout == "expanded":
            return torch.randn(2, 1, 9, 8, dtype=kind).expand(2, 4, 9, 8)
        if layout == "sliced":
            return torch.randn(2, 4, 12, 8, dtype=kind)[:, :, 2:11]
        if layout == "offset":
            return torch.randn(2 * 4 * 9 * 8 + 3, dtype=kind)[3:].view(2, 4, 9, 8)
        if layout == "steps":
            return torch.randn(2, 8, 18, 16, dtype=kind)[:, ::2, ::2, 4:12]
        return torch.randn(2, 4, 9, 8, dtype=kind)

    tensors = [made() for _ in range(3)]
    spy = Spy(kernel())
    monkeypatch.setattr(torch_kernel, "kernel", lambda: spy)
    out = rootdk.attention(*tensors, causal=True)
    assert spy.addresses == [t.data_ptr() for t in (*tensors, out)]
    assert torch.equal(out, rootdk.attention(*(t.contiguous() for t in tensors), causal=True))
    if layout == "rows before heads":
        assert out.transpose(1, 2).is_contiguous(), "what follows attention would have to copy"


class Older:
    """What a tensor of torch before 2.10 answers: DLPack's table is not among it."""

    def __init__(self, tensor: Any) -> None:
        self.dtype, self.shape, self.stride, self.data_ptr = tensor.dtype, tensor.shape, tensor.stride, tensor.data_ptr


class OlderKernel:
    """The compiled module, given such tensors."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.seen: set[Any] = set()

    def older(self, given: Any) -> Any:
        if not isinstance(given, torch.Tensor):
            return given
        self.seen.add(given.dtype)
        return Older(given)

    def alike(self, *tensors: Any) -> Any:
        return self.real.alike(*map(self.older, tensors))

    def forward(self, problem: Any, *rest: Any) -> None:
        self.real.forward(problem._make(map(self.older, problem)), *map(self.older, rest))

    def backward(self, problem: Any, *rest: Any) -> None:
        self.real.backward(problem._make(map(self.older, problem)), *map(self.older, rest))


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_the_table_of_dlpack(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    kind = DTYPES[dtype][0]
    q, k, v = (torch.randn(2, 9, 4, 8).to(kind).transpose(1, 2).requires_grad_() for _ in range(3))
    options: Any = {"mask": torch.rand(9, 9) < 0.8, "bias": torch.randn(4, 1, 9).to(kind)}

    def everything() -> list[Any]:
        out, reading = rootdk.measure(q, k, v, **options)
        return [out, reading.entropy, reading.keys, *torch.autograd.grad(out.sum(), (q, k, v))]

    expected = everything()
    spy = OlderKernel(kernel())
    monkeypatch.setattr(torch_kernel, "kernel", lambda: spy)
    for ours, theirs in zip(everything(), expected, strict=True):
        assert torch.equal(ours, theirs)
    assert {kind, torch.bool, torch.int64} <= spy.seen


def test_a_scattered_last_axis_is_copied_and_right(rng: np.random.Generator) -> None:
    q, k, v = (torch.randn(2, 4, 8, 9).transpose(2, 3) for _ in range(3))
    assert torch.equal(rootdk.attention(q, k, v), rootdk.attention(q.contiguous(), k.contiguous(), v.contiguous()))


def test_the_negative_bit_is_resolved() -> None:
    negative = torch.randn(2, 5, 8, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    plain = negative.resolve_neg().contiguous()
    for give in (lambda x: x, lambda x: x.to(torch.complex64).imag if x.is_complex() else x):
        assert torch.equal(rootdk.attention(give(negative), plain, plain), rootdk.attention(plain, plain, plain))
    bias = torch.randn(5, 5, dtype=torch.complex64).conj().imag
    expected = rootdk.attention(plain, plain, plain, bias=bias.resolve_neg())
    assert torch.equal(rootdk.attention(plain, plain, plain, bias=bias), expected)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_any_number_of_axes(rng: np.random.Generator, leading: tuple[int, ...]) -> None:
    arrays = random_arrays(rng, leading=leading, dtype=np.float32)
    out = rootdk.attention(*(tensor(a) for a in arrays), causal=True)
    np.testing.assert_array_equal(out.numpy(), rootdk.attention(*arrays, causal=True))


def test_one_head_has_no_axis_for_it(rng: np.random.Generator) -> None:
    q = torch.randn(5, 8, requires_grad=True)
    out, reading = rootdk.measure(q, q, q, sinks=torch.tensor(0.5))
    assert out.shape == (5, 8)
    assert reading.shape == (5,)
    assert reading.has_sinks
    assert rootdk.attention(q, q, q).shape == (5, 8)


@pytest.mark.parametrize("sizes", [(0, 4, 3, 3), (2, 0, 3, 3), (2, 4, 0, 3), (2, 4, 3, 0)])
@pytest.mark.parametrize("followed", [False, True])
def test_empty(sizes: tuple[int, int, int, int], followed: bool) -> None:
    batch, heads, n_query, n_key = sizes
    q = torch.randn(batch, heads, n_query, 8, requires_grad=followed)
    k = torch.randn(batch, heads, n_key, 8, requires_grad=followed)
    out = rootdk.attention(q, k, k)
    assert torch.equal(out, torch.zeros(batch, heads, n_query, 8))
    if followed:
        out.sum().backward()
        assert not q.grad.any()
        assert not k.grad.any()


Q = torch.zeros(2, 4, 6, 8)
CPU = "must be a dense tensor on the CPU, got one on device 'meta' (rootdk computes on the CPU only: move it with tensor.cpu())"  # noqa: E501
TYPES = "float32, float64, float16 or bfloat16"
UNMASKED = "must be numbers without a mask, got numpy.ma.MaskedArray"
DENSE = (
    "must be a dense tensor, got a nested one "
    "(torch.nested.to_padded_tensor makes it dense; key_lengths hides the padding)"
)
NESTED, JAGGED = (torch.nested.nested_tensor([Q[0], Q[0]], layout=layout) for layout in (torch.strided, torch.jagged))
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"key": Q.numpy()}, "key: must be a torch tensor like query, got numpy.ndarray"),
    ({"value": [1.0]}, "value: must be a torch tensor like query, got list"),
    ({"mask": np.ones((6, 6), bool)}, "mask: must be a torch tensor like query, got numpy.ndarray"),
    ({"bias": 0.5}, "bias: must be a torch tensor like query, got float"),
    ({"query": Q.to("meta")}, f"query: {CPU}"),
    ({"key": Q.to("meta")}, f"key: {CPU}"),
    ({"value": Q.to("meta")}, f"value: {CPU}"),
    ({"mask": torch.ones(6, 6, dtype=torch.bool, device="meta")}, f"mask: {CPU}"),
    ({"bias": torch.ones(6, 6, device="meta")}, f"bias: {CPU}"),
    ({"sinks": torch.ones(4, device="meta")}, f"sinks: {CPU}"),
    ({"key_lengths": torch.ones(2, device="meta")}, f"key_lengths: {CPU}"),
    ({"query": Q.int()}, f"query: must be {TYPES}, got int32"),
    ({"value": Q.double()}, "value: must be float32 to match query, got float64"),
    ({"mask": torch.ones(6, 6)}, "mask: must be bool, True keeps a pair, got float32"),
    ({"mask": torch.ones(6, 5, dtype=torch.bool)},
     "mask: must broadcast to (..., heads, n_query, n_key) = (2, 4, 6, 6), got (6, 5)"),
    ({"bias": torch.ones(6, 6, dtype=torch.int64)}, f"bias: must be {TYPES}, got int64"),
    ({"key": Q[:1]}, "key: leading axes must be (2,) to match query, got (1,) (query (2, 4, 6, 8), key (1, 4, 6, 8))"),
    ({"softcap": -1.0}, "softcap: must be a finite number > 0, got -1.0"),
    ({"dropout": 1.0}, "dropout: must be at least 0 and below 1, got 1.0"),
    ({"window": -1}, "window: must be an int >= 0 or a pair of them (None for no limit), got -1"),
    ({"causal": 1}, "causal: must be True or False, got 1"),
    ({"scale": float("nan")}, "scale: must be finite and at most 1e+19 in size, got nan"),
    ({"key_lengths": torch.tensor([7, 1])}, "key_lengths: must be from 0 to 6, got array([7, 1])"),
    ({"sinks": torch.zeros(3)}, "sinks: must have shape (4,), one per query head, got (3,)"),
    ({"seed": -1}, "seed: must be at least 0 and below 2**64, got -1"),
    ({"scale": 10**400}, "scale: must be finite and at most 1e+19 in size, got an int near 1e400"),
    ({"dropout": 10**400}, "dropout: must be at least 0 and below 1, got an int near 1e400"),
    ({"sinks": np.ma.masked_array(np.zeros(4))}, f"sinks: {UNMASKED}"),
    ({"key_lengths": np.ma.masked_array([1, 2])}, f"key_lengths: {UNMASKED}"),
    ({"query_offset": np.ma.masked_array([1, 2])}, f"query_offset: {UNMASKED}"),
    *(({name: NESTED}, f"{name}: {DENSE}") for name in ("query", "key", "value", "mask", "bias", "sinks")),
    *(({name: JAGGED}, f"{name}: {DENSE}") for name in ("query", "key", "value")),
]  # fmt: skip


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[text for _, text in REFUSED])
def test_refused_by_name(given: dict[str, Any], message: str, followed: bool) -> None:
    """The same words whether autograd follows the call or not."""
    arguments: dict[str, Any] = {"query": Q, "key": Q, "value": Q} | given
    if followed:
        name = next(n for n in ("query", "key", "value") if n not in given)
        arguments[name] = Q.clone().requires_grad_()
    with pytest.raises(RootdkError) as caught:
        rootdk.attention(**arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "given",
    [{"scale": 10**400}, {"softcap": 10**400}, {"dropout": 10**400}, {"seed": 10**400}, {"sinks": [10**400] * 4},
     {"key_lengths": 10**400}, {"query_offset": 10**400}, {"scale": np.ma.masked_array(1.0)},
     {"softcap": np.ma.masked_array(1.0)}, {"dropout": np.ma.masked_array(0.5)}, {"seed": np.ma.masked_array(1)},
     {"window": np.ma.masked_array(1)}, {"sinks": np.ma.masked_array(np.zeros(4))},
     {"key_lengths": np.ma.masked_array([1, 2])}, {"query_offset": np.ma.masked_array([1, 2])}],
    ids=lambda given: f"{next(iter(given))} {type(next(iter(given.values()))).__name__}",
)  # fmt: skip
def test_refused_inside_a_transform(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(RootdkError, match=f"^{name}: must be "):
        torch.func.grad(lambda q: rootdk.attention(q, q, q, **given).sum())(Q)


@pytest.mark.parametrize("tensor_", [NESTED, JAGGED], ids=["strided", "jagged"])
def test_a_nested_tensor_is_named(tensor_: Any) -> None:
    layer = rootdk.torch.MultiHeadAttention(8, 2)
    calls: list[Any] = [
        rootdk.attention,
        rootdk.measure,
        rootdk.attention_vjp,
        rootdk.torch.scaled_dot_product_attention,
        layer,
    ]
    for call in calls:
        for name, tensors in (("query", (tensor_,) * 3), ("key", (Q, tensor_, Q)), ("value", (Q, Q, tensor_))):
            with pytest.raises(RootdkError) as caught:
                call(*tensors)
            assert str(caught.value) == f"{name}: {DENSE}"
    with rootdk.torch.use(), pytest.raises(RootdkError, match=f"^query: {DENSE[:30]}"):
        torch.nn.functional.scaled_dot_product_attention(tensor_, tensor_, tensor_)


def test_d_out_is_checked() -> None:
    _, pull_back = rootdk.attention_vjp(Q, Q, Q)
    with pytest.raises(RootdkError) as caught:
        pull_back(Q[..., :3])
    assert str(caught.value) == "d_out: must have the shape of the output (2, 4, 6, 8), got (2, 4, 6, 3)"


def test_seeds_come_from_torch() -> None:
    q = torch.randn(2, 4, 20, 8)
    for tensors in ([q, q, q], [q.clone().requires_grad_(), q, q]):
        torch.manual_seed(5)
        first, second = (rootdk.attention(*tensors, dropout=0.5) for _ in range(2))
        torch.manual_seed(5)
        assert torch.equal(first, rootdk.attention(*tensors, dropout=0.5))
        assert not torch.equal(first, second)
    given = rootdk.attention(q, q, q, dropout=0.5, seed=2**63 + 1)
    assert torch.equal(given, rootdk.attention(q.clone().requires_grad_(), q, q, dropout=0.5, seed=2**63 + 1))


def test_a_tensor_is_enough_to_find_torch() -> None:
    """rootdk.attention knows tensors without rootdk.torch having been imported."""
    code = (
        "import torch, rootdk, sys; q = torch.randn(2, 4, 8); rootdk.attention(q, q, q);"
        "assert 'rootdk.torch' not in sys.modules; q.requires_grad_(); rootdk.attention(q, q, q).sum().backward()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
