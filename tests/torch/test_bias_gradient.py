"""The gradient of the bias: against the definition, finite differences and torch, for every shape that broadcasts."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from budgets import assert_within, bias_gradient_budget
from judge import TARGETS, target, threads
from problems import random_arrays
from tensors import DTYPES, NAMES, array, problem, tensor, tensor_options
from torch.autograd import gradcheck, gradgradcheck

import rootdk
from rootdk.backends import problem_of
from rootdk.backends.torch import kernel as torch_kernel
from rootdk.torch import MultiHeadAttention, scaled_dot_product_attention
from rootdk.torch.functional import transformers_attention

SMALL: dict[str, Any] = {"leading": (2,), "heads": 2, "kv_heads": 1, "n_query": 3, "n_key": 4, "d_k": 2, "d_v": 3}


def bias_gradient(arrays: Any, d_out: Any, bias: Any, **options: Any) -> Any:
    """What autograd gives a leaf with the numbers of `bias`, as an array."""
    leaf = tensor(bias).requires_grad_()
    out = rootdk.attention(*(tensor(a) for a in arrays), bias=leaf, **tensor_options(options))
    out.backward(tensor(d_out))
    assert leaf.grad.shape == leaf.shape
    assert leaf.grad.dtype == leaf.dtype
    return array(leaf.grad)


def check(arrays: Any, d_out: Any, bias: Any, what: str = "d_bias", **options: Any) -> None:
    """Inside the budget of the reference."""
    gradient = bias_gradient(arrays, d_out, bias, **options)
    judged = problem_of(*arrays, bias=bias, **options)
    assert_within(gradient, *bias_gradient_budget(judged, d_out, bias.shape, bias.dtype), what)


def without_bias(rng: np.random.Generator, name: str, dtype: Any, **sizes: Any) -> tuple[Any, Any, dict[str, Any]]:
    arrays, d_out, options = problem(rng, name, dtype, **sizes)
    options.pop("bias", None)
    return arrays, d_out, options


def broadcast_shapes(full: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every shape that broadcasts to this one: each axis whole or 1, leading ones also missing."""
    shapes = set(product(*((1, n) for n in full)))
    missing = {shape[i:] for shape in shapes for i in range(len(full) + 1) if all(n == 1 for n in shape[:i])}
    return sorted(shapes | missing, key=lambda shape: (len(shape), shape))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_definition(rng: np.random.Generator, dtype: str, name: str) -> None:
    kind = DTYPES[dtype][1]
    arrays, d_out, options = without_bias(rng, name, kind, n_query=37, n_key=41)
    for shape in ((2, 4, 37, 41), (1, 4, 37, 41), (37, 41), (4, 1, 41), (2, 1, 37, 1)):
        bias = rng.standard_normal(shape)
        if shape[-1] > 1:
            bias[..., 3] = -np.inf
        check(arrays, d_out, bias.astype(kind), f"d_bias {shape}", **options)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_of_another_type(rng: np.random.Generator, dtype: str, kind: str) -> None:
    arrays, d_out, options = without_bias(rng, "softcap", DTYPES[dtype][1])
    check(arrays, d_out, rng.standard_normal((4, 7, 9)).astype(DTYPES[kind][1]), **options)


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
@pytest.mark.parametrize("on", TARGETS)
def test_every_shape_that_broadcasts(rng: np.random.Generator, on: str, leading: tuple[int, ...]) -> None:
    arrays, d_out, options = without_bias(rng, "causal", np.float64, leading=leading)
    with target(on):
        for shape in broadcast_shapes((*leading, 4, 7, 9)):
            check(arrays, d_out, rng.standard_normal(shape), f"d_bias {shape}", **options)


def test_one_head_without_an_axis_for_it(rng: np.random.Generator) -> None:
    arrays = [a[0, 0] for a in random_arrays(rng)]
    d_out = rng.standard_normal((7, 5))
    for shape in ((7, 9), (7, 1), (1, 9), (9,), ()):
        bias = rng.standard_normal(shape)
        leaf = tensor(bias).requires_grad_()
        rootdk.attention(*(tensor(a) for a in arrays), bias=leaf).backward(tensor(d_out))
        expected, bound = bias_gradient_budget(problem_of(*arrays, bias=bias), d_out[None], shape, np.float64)
        assert_within(array(leaf.grad), expected, bound)


@pytest.mark.parametrize("name", NAMES)
def test_first_and_second_derivatives(rng: np.random.Generator, name: str) -> None:
    arrays, _, options = without_bias(rng, name, np.float64, **SMALL)
    given = tensor_options(options)
    sinks = [given.pop("sinks").requires_grad_()] if "sinks" in given else []
    inputs = [tensor(a).requires_grad_() for a in arrays]
    for shape in ((2, 2, 3, 4), (2, 1, 4)):
        bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)

        def call(q: Any, k: Any, v: Any, bias: Any, *sinks: Any) -> Any:
            return rootdk.attention(q, k, v, bias=bias, sinks=sinks[0] if sinks else None, **given)

        assert gradcheck(call, (*inputs, bias, *sinks))
        # Along random directions; the test below goes through the numbers one by one.
        assert gradgradcheck(call, (*inputs, bias, *sinks), fast_mode=True)
        assert gradcheck(lambda bias: call(*(t.detach() for t in inputs), bias, *(s.detach() for s in sinks)), (bias,))


def test_second_derivatives_with_hidden_pairs_and_a_learned_scale(rng: np.random.Generator) -> None:
    inputs = [tensor(a).requires_grad_() for a in random_arrays(rng, **SMALL)]
    free = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    hidden = torch.zeros(3, 4, dtype=torch.bool)
    hidden[0, 1] = hidden[2] = True

    def call(q: Any, k: Any, v: Any, free: Any, scale: Any) -> Any:
        return rootdk.attention(q, k, v, bias=free.masked_fill(hidden, -torch.inf), scale=scale, softcap=2.0)

    assert gradcheck(call, (*inputs, free, scale))
    assert gradgradcheck(call, (*inputs, free, scale))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_add_up_in_float32(rng: np.random.Generator, dtype: str) -> None:
    """A half bias gets the float32 sums, rounded once."""
    arrays, d_out, options = without_bias(rng, "causal", DTYPES[dtype][1], n_query=200, n_key=60)
    for shape in ((4, 1, 60), (200, 60), (4, 200, 1), (1,)):
        half = rng.standard_normal(shape).astype(DTYPES[dtype][1])
        wide = bias_gradient(arrays, d_out, half.astype(np.float32), **options)
        narrow = bias_gradient(arrays, d_out, half, **options)
        np.testing.assert_array_equal(narrow, wide.astype(half.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(rng: np.random.Generator, dtype: str) -> None:
    """Transposed, sliced, reversed by views, expanded: the gradient arrives where the numbers came from."""
    arrays, d_out, _ = without_bias(rng, "nothing", DTYPES[dtype][1])
    tensors, grad = [tensor(a) for a in arrays], tensor(d_out)
    leaf = torch.randn(9, 14, 4).to(DTYPES[dtype][0]).requires_grad_()
    strided = leaf.permute(2, 1, 0)[:, ::2]
    rootdk.attention(*tensors, bias=strided).backward(grad)
    dense = strided.detach().contiguous().requires_grad_()
    rootdk.attention(*tensors, bias=dense).backward(grad)
    assert torch.equal(leaf.grad.permute(2, 1, 0)[:, ::2], dense.grad)
    assert not leaf.grad.permute(2, 1, 0)[:, 1::2].any()

    row = torch.randn(9).to(DTYPES[dtype][0]).requires_grad_()
    (expanded,) = torch.autograd.grad(rootdk.attention(*tensors, bias=row.expand(4, 7, 9)), row, grad)
    judged = problem_of(*arrays, bias=array(row))
    expected, bound = bias_gradient_budget(judged, d_out, (9,), arrays[0].dtype)
    _, each = bias_gradient_budget(judged, d_out, (4, 7, 9), arrays[0].dtype)
    assert_within(array(expanded), expected, bound + 28 * each)  # torch added up 28 rows that had been rounded

    expected = torch.autograd.grad(rootdk.attention(*tensors, bias=dense), dense, grad)[0]
    twisted = grad.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    assert torch.equal(torch.autograd.grad(rootdk.attention(*tensors, bias=dense), dense, twisted)[0], expected)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("shape", [(2, 4, 30, 50), (30, 50), (4, 30, 1), (4, 1, 50)])
def test_hidden_numbers_that_are_not_finite(rng: np.random.Generator, shape: tuple[int, ...], softcap: Any) -> None:
    """NaN where nobody looks makes the kernel go over its work again: nothing may be added twice, or become NaN."""
    arrays = random_arrays(rng, n_query=30, n_key=50, dtype=np.float32)
    d_out = rng.standard_normal((2, 4, 30, 5)).astype(np.float32)
    mask = rng.random((2, 4, 30, 50)) < 0.8
    mask[..., [7, 20]] = False
    bias = rng.standard_normal(shape).astype(np.float32)
    clean = bias_gradient(arrays, d_out, bias, mask=mask, softcap=softcap)
    for which, special in ((2, np.nan), (2, np.inf), (1, np.nan)):
        dirty = [a.copy() for a in arrays]
        dirty[which][:, :, 7] = special
        np.testing.assert_array_equal(bias_gradient(dirty, d_out, bias, mask=mask, softcap=softcap), clean)
    if shape[-1] == 50:
        assert not clean[..., [7, 20]].any()


def test_a_nan_reaches_what_sees_it(rng: np.random.Generator) -> None:
    arrays = random_arrays(rng)
    d_out = rng.standard_normal((2, 4, 7, 5))
    d_out[1, 2, 3] = np.nan
    gradient = bias_gradient(arrays, d_out, np.zeros((2, 4, 7, 9)), causal=True)
    expected = np.zeros(gradient.shape, bool)
    expected[1, 2, 3, : 3 + 9 - 7 + 1] = True
    np.testing.assert_array_equal(np.isnan(gradient), expected)


THREADED: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    # Above 1 MiB: too large for copies.
    "batch entries take turns": (
        {"leading": (3,), "heads": 2, "kv_heads": 2, "n_query": 300, "n_key": 520}, (2, 300, 520),
    ),
    "heads take turns": ({"leading": (1,), "heads": 6, "kv_heads": 3, "n_query": 400, "n_key": 700}, (400, 700)),
    "some batch entries take turns": (
        {"leading": (2, 3), "heads": 2, "kv_heads": 1, "n_query": 300, "n_key": 300}, (2, 1, 2, 300, 300),
    ),
    "copies": ({"leading": (5,), "heads": 4, "kv_heads": 2, "n_query": 60, "n_key": 70}, (60, 70)),
    "copies of keys": ({"leading": (3,), "heads": 4, "kv_heads": 4, "n_query": 100, "n_key": 600}, (1, 600)),
    "chunks of keys": ({"leading": (1,), "heads": 2, "kv_heads": 1, "n_query": 100, "n_key": 2100}, (2, 100, 1)),
    "one number": ({"leading": (2,), "heads": 2, "kv_heads": 2, "n_query": 80, "n_key": 1100}, (1,)),
    "nothing shared": ({"leading": (2,), "heads": 2, "kv_heads": 2, "n_query": 100, "n_key": 300}, (2, 2, 100, 300)),
    "few rows": ({"leading": (2,), "heads": 4, "kv_heads": 2, "n_query": 1, "n_key": 5000}, (4, 1, 5000)),
}  # fmt: skip


@pytest.mark.parametrize("case", THREADED)
def test_the_same_bits_on_any_number_of_threads(rng: np.random.Generator, case: str) -> None:
    sizes, shape = THREADED[case]
    arrays = random_arrays(rng, **sizes, d_k=16, d_v=16, dtype=np.float32)
    d_out = rng.standard_normal(arrays[0].shape).astype(np.float32)
    bias = rng.standard_normal(shape).astype(np.float32)
    gradients = []
    for n in (1, 2, 7, 7):
        with threads(n):
            tensors = [tensor(a).requires_grad_() for a in (*arrays, bias)]
            rootdk.attention(*tensors[:3], bias=tensors[3], causal=True).backward(tensor(d_out))
            gradients.append([array(t.grad) for t in tensors])
    for other in gradients[1:]:
        for first, second in zip(gradients[0], other, strict=True):
            np.testing.assert_array_equal(first, second)
    judged = problem_of(*arrays, bias=bias, causal=True)
    assert_within(gradients[0][3], *bias_gradient_budget(judged, d_out, shape, np.float32))


@pytest.mark.parametrize("case", ["heads take turns", "copies", "chunks of keys"])
def test_the_other_gradients_do_not_care(rng: np.random.Generator, case: str) -> None:
    """Asking for the bias' gradient may cut the keys into other chunks; the others stay inside their own budgets."""
    from budgets import gradient_budget

    sizes, shape = THREADED[case]
    arrays = random_arrays(rng, **sizes, d_k=16, d_v=16, dtype=np.float32)
    d_out = rng.standard_normal(arrays[0].shape).astype(np.float32)
    bias = rng.standard_normal(shape).astype(np.float32)
    tensors = [tensor(a).requires_grad_() for a in (*arrays, bias)]
    rootdk.attention(*tensors[:3], bias=tensors[3], window=(200, 50)).backward(tensor(d_out))
    budgets = gradient_budget(problem_of(*arrays, bias=bias, window=(200, 50)), d_out)
    for name, leaf, budget in zip(("d_query", "d_key", "d_value"), tensors, budgets, strict=False):
        assert_within(array(leaf.grad), *budget, name)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_add(sizes: tuple[int, int]) -> None:
    n_query, n_key = sizes
    q = torch.randn(2, 3, n_query, 4)
    k = torch.randn(2, 3, n_key, 4)
    for shape in ((3, n_query, n_key), (3, 1, 1), (n_query, 1), (1,)):
        bias = torch.randn(shape, requires_grad=True)
        rootdk.attention(q, k, k, bias=bias).sum().backward()
        assert torch.equal(bias.grad, torch.zeros(shape))


@pytest.mark.parametrize("shape", [(2, 4, 6, 8), (4, 6, 8), (6, 8), (1, 1, 6, 1), (2, 1, 1, 8)])
def test_a_learned_attn_mask_equals_torch(shape: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(2, 4, n, 5, dtype=torch.float64, requires_grad=True) for n in (6, 8, 8))
    attn_mask = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    leaves = (q, k, v, attn_mask)
    ours, theirs = (
        torch.autograd.grad(attend(q, k, v, attn_mask=attn_mask).sin().sum(), leaves)
        for attend in (scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention)
    )
    for first, second in zip(ours, theirs, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("which", ["attn_mask", "key_padding_mask"])
def test_the_module_passes_it_on_through_output_and_weights(which: str) -> None:
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True, dtype=torch.float64)
    ours = MultiHeadAttention(8, 2, batch_first=True, add_zero_attn=True, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    mask = torch.randn((5, 5) if which == "attn_mask" else (3, 5), dtype=torch.float64, requires_grad=True)
    gradients = []
    for layer in (ours, theirs):
        out, weights = layer(x, x, x, **{which: mask})
        gradients.append([torch.autograd.grad(t.sin().sum(), mask, retain_graph=True)[0] for t in (out, weights)])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-11, atol=1e-13)


def test_a_position_bias_from_transformers_gets_it() -> None:
    module = torch.nn.Module()
    module.is_causal = False
    q = torch.randn(2, 4, 6, 8, dtype=torch.float64)
    mask = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    position_bias = torch.randn(1, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    out, _ = transformers_attention(module, q, q, q, mask, scaling=1.0, position_bias=position_bias)
    torch_out = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask + position_bias, scale=1.0)
    (ours,) = torch.autograd.grad(out.sin().sum(), position_bias)
    (theirs,) = torch.autograd.grad(torch_out.sin().sum(), position_bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


def test_autocast_leaves_the_bias_its_type() -> None:
    q = torch.randn(2, 4, 20, 8, requires_grad=True)
    bias = torch.randn(4, 20, 20, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = rootdk.attention(q, q, q, bias=bias)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert bias.grad.dtype == torch.float32


def test_no_gradient_is_made_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    run = torch_kernel.backward
    monkeypatch.setattr(torch_kernel, "backward", lambda *a: asked.append(a[-1].bias) or run(*a))
    q = torch.randn(2, 4, 6, 8, requires_grad=True)
    bias = torch.randn(6, 6)
    rootdk.attention(q, q, q, bias=bias).sum().backward()
    rootdk.attention(q, q, q, bias=bias.requires_grad_()).sum().backward()
    assert asked[0] is None
    assert asked[1] is not None
    assert bias.grad is not None


def test_func_grad_and_vmap() -> None:
    q, k, v = (torch.randn(3, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    for shape, in_dim in (((3, 5, 5), 0), ((5, 3, 5), 1), ((2, 1, 5), None)):
        bias = torch.randn(shape, dtype=torch.float64)

        def loss(q: Any, k: Any, v: Any, bias: Any) -> Any:
            return rootdk.attention(q, k, v, bias=bias, causal=True).sin().sum()

        both = torch.func.grad(loss, argnums=(0, 3))
        ours = torch.func.vmap(both, in_dims=(0, 0, 0, in_dim))(q, k, v, bias)
        for i in range(3):
            mine = bias if in_dim is None else bias.select(in_dim, i)
            leaves = [q[i].clone().requires_grad_(), mine.clone().requires_grad_()]
            expected = torch.autograd.grad(loss(leaves[0], k[i], v[i], leaves[1]), leaves)
            for mapped, gradient in zip(ours, expected, strict=True):
                torch.testing.assert_close(mapped[i], gradient, rtol=1e-12, atol=1e-14)
