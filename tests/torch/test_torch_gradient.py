"""Autograd: finite differences for every option, second derivatives, what is kept, and torch.func."""

from typing import Any

import numpy as np
import pytest
import torch
from tensors import NAMES, array, problem, tensor, tensor_options
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import rootdk
from rootdk.backends import problem_of, reference
from rootdk.torch import scaled_dot_product_attention

SMALL: dict[str, Any] = {"leading": (2,), "heads": 2, "kv_heads": 1, "n_query": 3, "n_key": 4, "d_k": 2, "d_v": 3}


def leaves(rng: np.random.Generator, name: str, **sizes: Any) -> tuple[list[Any], dict[str, Any], Any]:
    """Everything that can have a gradient, the other options, and the call as a function of the first."""
    arrays, _, options = problem(rng, name, np.float64, **(SMALL | sizes))
    given = tensor_options(options)
    learned = [tensor(a).requires_grad_() for a in arrays]
    names = []
    names += [name for name in ("sinks", "alibi") if name in given]
    if isinstance(given.get("scale", 0.5), float):
        names.append("scale")
    for what in names:
        start = given.pop(what, 0.5)
        learned.append(torch.as_tensor(start, dtype=torch.float64).clone().requires_grad_())

    def call(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        return rootdk.attention(q, k, v, **given, **dict(zip(names, rest, strict=True)))

    return learned, given, call


@pytest.mark.parametrize("name", NAMES)
def test_first_derivatives(rng: np.random.Generator, name: str) -> None:
    learned, _, call = leaves(rng, name, n_query=5, n_key=6, heads=4, kv_heads=2)
    assert gradcheck(call, learned)


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(rng: np.random.Generator, name: str) -> None:
    """Along random directions; number by number where the formula is richest."""
    learned, _, call = leaves(rng, name)
    assert gradgradcheck(call, learned, fast_mode=name not in ("softcap", "everything"))


def test_third_derivatives(rng: np.random.Generator) -> None:
    learned, _, call = leaves(rng, "softcap", leading=(1,), n_query=2, n_key=3, heads=1, d_v=1)

    def second(*inputs: Any) -> Any:
        (first,) = torch.autograd.grad(call(*inputs).sin().sum(), inputs[0], create_graph=True)
        return torch.autograd.grad(first.sin().sum(), inputs[1], create_graph=True)[0]

    assert gradcheck(second, learned)


def test_one_tensor_in_three_places(rng: np.random.Generator) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: rootdk.attention(x, x, x, causal=True), (x,))
    assert gradgradcheck(lambda x: rootdk.attention(x, x, x, causal=True), (x,))


def test_a_learned_scale_and_sinks_in_float32(rng: np.random.Generator) -> None:
    """The gradient that is not the kernel's own, at a size where its sums are long."""
    arrays, d_out, options = problem(rng, "sinks", np.float32, n_query=200, n_key=200)
    sinks = tensor(options["sinks"]).float().requires_grad_()
    scale = torch.tensor(0.4, requires_grad=True)
    tensors = [tensor(a) for a in arrays]
    rootdk.attention(*tensors, sinks=sinks, scale=scale).backward(tensor(d_out))

    exact = [t.double() for t in tensors]
    wide = [sinks.detach().double().requires_grad_(), scale.detach().double().requires_grad_()]
    rootdk.attention(*exact, sinks=wide[0], scale=wide[1]).backward(tensor(d_out).double())
    # A sum of N products, each right to a few roundings of its size: the errors add up like sqrt(N).
    terms = d_out.size
    for ours, theirs in zip((sinks, scale), wide, strict=True):
        bound = 2 * np.finfo(np.float32).eps * np.sqrt(terms) * 8
        assert (ours.grad.double() - theirs.grad).abs().max() < bound
    judged = reference.backward(
        _judged(exact, sinks=wide[0].detach().numpy(), scale=wide[1].item()), d_out.astype(np.float64)
    ).sinks
    np.testing.assert_allclose(wide[0].grad.numpy(), judged, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scale", [0.5, 1 / 512, 1e-6, 1e-30, 0.0, -1e-6])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_gradient_of_any_scale_in_any_type(dtype: Any, scale: float) -> None:
    """It must not pass through d_query, which is rounded to a half type and as small as the scale."""
    draw = torch.Generator().manual_seed(7)
    q, k, v, d_out = (torch.randn(2, 4, 50, 16, generator=draw).to(dtype) for _ in range(4))
    lengths = torch.tensor([50, 30])
    measured, exact = [], []
    for wide, gradients in ((dtype, measured), (torch.float64, exact)):
        temperature = torch.tensor(scale, dtype=torch.float64, requires_grad=True)
        out = rootdk.attention(q.to(wide), k.to(wide), v.to(wide), scale=temperature, key_lengths=lengths, causal=True)
        out.backward(d_out.to(wide))
        gradients.append(temperature.grad.item())
    # A sum of N products of unit size, each right to a few roundings: the errors add up like sqrt(N).
    unit = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    assert abs(measured[0] - exact[0]) < 2 * unit * np.sqrt(d_out.numel()) * 8
    weights_free = _numeric_scale_gradient(q, k, v, d_out, scale, lengths)
    assert exact[0] == pytest.approx(weights_free, rel=1e-6)


def _numeric_scale_gradient(q: Any, k: Any, v: Any, d_out: Any, scale: float, lengths: Any) -> float:
    """By a central difference of float64 outputs: its error is h^2 and 1e-16/h, both far below 1e-6 of the result."""
    h = 1e-5
    q, k, v = (t.double() for t in (q, k, v))
    high, low = (rootdk.attention(q, k, v, scale=scale + step, key_lengths=lengths, causal=True) for step in (h, -h))
    return float((d_out.double() * (high - low)).sum() / (2 * h))


def test_a_row_that_sees_nothing_does_not_count_for_the_scale() -> None:
    q, k, v = torch.randn(3, 2, 4, 8).unbind(0)
    q[:, 0] = torch.nan
    scale = torch.tensor(0.3, requires_grad=True)
    rootdk.attention(q, k, v, scale=scale, causal=True, query_offset=-1).sum().backward()
    assert scale.grad.isfinite()


@pytest.mark.parametrize("size", [3e38, -3e38, 1e300, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_sinks(dtype: Any, size: float) -> None:
    """A sink takes all or nothing, and so its gradient is 0."""
    q, k, v = (torch.randn(2, 3, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    sinks = torch.full((2,), size, dtype=torch.float64, requires_grad=True)
    out = rootdk.attention(q, k, v, sinks=sinks)
    torch.testing.assert_close(out, torch.zeros_like(out) if size > 0 else rootdk.attention(q, k, v))
    gradients = torch.autograd.grad(out.sin().sum(), (q, k, v, sinks))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[3].any()


def _judged(tensors: Any, **options: Any) -> Any:

    return problem_of(*(array(t) for t in tensors), **options)


def test_rows_that_see_nothing_have_gradient_zero() -> None:
    q = torch.randn(2, 4, 8, requires_grad=True)
    sinks = torch.zeros(2, requires_grad=True)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1] = False
    rootdk.attention(q, q.detach(), q.detach(), mask=mask, sinks=sinks).sum().backward()
    assert not q.grad[:, 1].any()
    assert q.grad.isfinite().all()
    assert sinks.grad.isfinite().all()


def test_strange_d_out() -> None:
    q = torch.randn(2, 4, 5, 8, dtype=torch.float64, requires_grad=True)
    out = rootdk.attention(q, q, q)
    for d_out in (torch.ones(()).double().expand(out.shape), torch.randn(8, 5, 4, 2).double().permute(3, 2, 1, 0)):
        (ours,) = torch.autograd.grad(out, q, d_out, retain_graph=True)
        (theirs,) = torch.autograd.grad(out, q, d_out.contiguous(), retain_graph=True)
        assert torch.equal(ours, theirs)


def test_what_is_kept_grows_with_n() -> None:
    kept: list[Any] = []
    q, k, v = (torch.randn(1, 2, 300, 8, requires_grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = rootdk.attention(q, k, v, causal=True)
    assert {t.data_ptr() for t in kept} >= {t.data_ptr() for t in (q, k, v, out)}
    assert max(t.numel() for t in kept) == q.numel()
    assert sum(t.numel() for t in kept) == 4 * q.numel() + 2 * 2 * 300


def test_a_change_in_place_is_noticed() -> None:
    q = torch.randn(2, 5, 8, requires_grad=True)
    k = torch.randn(2, 5, 8)
    out = rootdk.attention(q, k, k)
    k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool) -> None:
    """The pass runs twice and drops the same weights both times."""
    q, k, v = (torch.randn(2, 4, 20, 8, requires_grad=True) for _ in range(3))

    def block(q: Any, k: Any, v: Any) -> Any:
        return scaled_dot_product_attention(q.sin(), k, v, is_causal=True, dropout_p=0.3)

    torch.manual_seed(3)
    expected = torch.autograd.grad(block(q, k, v).square().sum(), (q, k, v))
    torch.manual_seed(3)
    out = checkpoint(block, q, k, v, use_reentrant=reentrant)
    out.square().sum().backward()
    for tensor_, gradient in zip((q, k, v), expected, strict=True):
        assert torch.equal(tensor_.grad, gradient)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: Any) -> None:
    q, k, v = (torch.randn(2, 4, 20, 8, requires_grad=True) for _ in range(3))
    halves = [t.detach().to(dtype) for t in (q, k, v)]
    with torch.autocast("cpu", dtype=dtype):
        assert torch.nn.functional.scaled_dot_product_attention(q, k, v).dtype == dtype, "torch itself does not cast"
        out = scaled_dot_product_attention(q, k, v)
        assert torch.equal(rootdk.measure(q.detach(), k.detach(), v.detach())[0], out)
        wide = q.detach().double()
        assert rootdk.attention(wide, wide, wide).dtype == torch.float64
    assert torch.equal(out, rootdk.attention(*halves))
    out.sum().backward()
    assert q.grad.dtype == torch.float32


def test_func_grad_and_vmap() -> None:
    q, k, v = (torch.randn(3, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    lengths = torch.tensor([2, 5, 4])
    bias = torch.randn(3, 5, 5, dtype=torch.float64)

    def loss(q: Any, k: Any, v: Any, n: Any, bias: Any) -> Any:
        return rootdk.attention(q, k, v, key_lengths=n, bias=bias, causal=True, query_offset=0).sin().sum()

    ours = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v, lengths, bias)
    for i in range(3):
        entry = [t[i].clone().requires_grad_() for t in (q, k, v)]
        expected = torch.autograd.grad(loss(*entry, lengths[i], bias[i]), entry)
        for mapped, gradient in zip(ours, expected, strict=True):
            torch.testing.assert_close(mapped[i], gradient, rtol=1e-12, atol=1e-14)

    shared = torch.func.vmap(lambda q: rootdk.attention(q, k[0], v[0]), in_dims=1, out_dims=1)(q.transpose(0, 1))
    torch.testing.assert_close(shared[:, 2], rootdk.attention(q[2], k[0], v[0]), rtol=1e-12, atol=1e-14)
    jacobian = torch.func.jacrev(lambda q: rootdk.attention(q, k[0], v[0]))(q[0])
    expected = torch.autograd.functional.jacobian(lambda q: rootdk.attention(q, k[0], v[0]), q[0])
    torch.testing.assert_close(jacobian, expected, rtol=1e-12, atol=1e-14)
