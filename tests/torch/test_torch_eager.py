"""The direct way of plain eager calls through autograd: what autograd promises of every function holds for it too."""

import gc
import weakref
from typing import Any

import pytest
import torch

import rootdk
import rootdk.torch
from rootdk.torch import scaled_dot_product_attention


def tensors(**changes: Any) -> dict[str, Any]:
    """Everything that a call keeps."""
    given = {name: torch.randn(2, 3, 5, 4, dtype=torch.float64) for name in ("query", "key", "value")}
    given |= {"mask": torch.rand(5, 5) < 0.8, "bias": torch.randn(3, 1, 5).double(), "sinks": torch.randn(3).double()}
    given |= {"scale": torch.tensor(0.5, dtype=torch.float64), "alibi": torch.rand(3).double()} | changes
    return {name: t.requires_grad_() if t.is_floating_point() else t for name, t in given.items()}


@pytest.mark.parametrize("name", ["query", "key", "value", "mask", "bias", "sinks", "alibi", "scale", "out"])
def test_a_change_in_place_is_noticed(name: str) -> None:
    given = tensors()
    out = rootdk.attention(**given)
    changed = out.detach() if name == "out" else given[name].detach()
    changed.copy_(changed.clone())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("name", ["mask", "bias", "sinks", "alibi", "scale"])
def test_a_change_in_place_of_what_is_not_learned_is_noticed(name: str) -> None:
    given = {n: t.detach().requires_grad_(n == "query") for n, t in tensors().items()}
    out = rootdk.attention(**given)
    given[name].copy_(given[name].clone())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_what_is_no_tensor_is_taken_as_it_was() -> None:
    """Offsets and lengths are numbers for the kernel: they are copied, and may change afterwards."""
    given = tensors()
    lengths, offset = torch.tensor([3, 5]), torch.tensor([0, 1])
    out = rootdk.attention(**given, causal=True, key_lengths=lengths, query_offset=offset)
    (expected,) = torch.autograd.grad(out.sin().sum(), given["key"], retain_graph=True)
    lengths.zero_(), offset.zero_()
    assert torch.equal(torch.autograd.grad(out.sin().sum(), given["key"])[0], expected)


def test_backward_twice() -> None:
    given = tensors()
    learned = [t for t in given.values() if t.requires_grad]
    out = rootdk.attention(**given).sin().sum()
    first = torch.autograd.grad(out, learned, retain_graph=True)
    for once, again in zip(first, torch.autograd.grad(out, learned), strict=True):
        assert torch.equal(once, again)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(out, learned)


def test_gradients_are_the_same_whatever_else_is_asked_for() -> None:
    given = tensors()
    learned = {name: t for name, t in given.items() if t.requires_grad}
    everything = dict(
        zip(learned, torch.autograd.grad(rootdk.attention(**given).sin().sum(), learned.values()), strict=True)
    )
    for name in learned:
        alone = {n: t.detach().requires_grad_(n == name) for n, t in given.items()}
        rootdk.attention(**alone).sin().sum().backward()
        assert torch.equal(alone[name].grad, everything[name]), name
        assert all(t.grad is None for n, t in alone.items() if n != name)


def test_nothing_to_follow() -> None:
    given = {name: t.detach() for name, t in tensors().items()}
    assert rootdk.attention(**given).grad_fn is None
    with torch.no_grad():
        assert rootdk.attention(**tensors()).grad_fn is None
    with torch.inference_mode():
        assert not rootdk.attention(**tensors()).requires_grad
    out, reading = rootdk.measure(**tensors())
    assert out.requires_grad
    assert not any(getattr(reading, name).requires_grad for name in ("log_sum_exp", "entropy", "keys"))


def test_hooks_see_the_gradients() -> None:
    q, k, v = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
    seen: list[Any] = []
    out = scaled_dot_product_attention(q, k, v)
    out.grad_fn.register_prehook(lambda grads: seen.append(grads[0].clone()))
    out.grad_fn.register_hook(lambda inputs, _: seen.append([g for g in inputs if g is not None]))
    q.register_hook(lambda grad: grad * 2)
    d_out = torch.randn_like(out)
    out.backward(d_out)
    assert torch.equal(seen[0], d_out)
    assert torch.equal(q.grad, 2 * seen[1][0])
    assert torch.equal(k.grad, seen[1][1])
    assert torch.equal(v.grad, seen[1][2])


def test_saved_tensors_may_be_packed() -> None:
    """As offloading does it: nothing but what the hooks give back is used."""
    given = tensors()
    learned = [t for t in given.values() if t.requires_grad]
    expected = torch.autograd.grad(rootdk.attention(**given).sin().sum(), learned)
    packed: list[Any] = []

    def pack(tensor: Any) -> Any:
        packed.append(tensor.detach().numpy().copy())
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: torch.from_numpy(packed[i])):
        out = rootdk.attention(**given)
    assert sum(a.size for a in packed) == sum(t.numel() for t in given.values()) + out.numel() + 2 * 2 * 3 * 5
    for ours, theirs in zip(torch.autograd.grad(out.sin().sum(), learned), expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("backward", [False, True])
def test_everything_dies_without_the_garbage_collector(backward: bool) -> None:
    gc.disable()
    try:
        given = tensors()
        out = rootdk.attention(**given)
        alive = [weakref.ref(t) for t in (*given.values(), out, out.grad_fn)]
        if backward:
            out.sum().backward()
        del given, out
        assert [ref() for ref in alive] == [None] * len(alive)
    finally:
        gc.enable()


@pytest.mark.parametrize("options", [{}, {"causal": True, "scale": "llama4"}, {"key_lengths": [4, 2], "window": 2}])
def test_many_gradients_at_once(options: dict[str, Any]) -> None:
    """vmap over the backward pass of a call that was made outside it."""
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    out = rootdk.attention(q, k, v, **options)
    d_outs = torch.randn(4, *out.shape, dtype=torch.float64)

    def pull_back(d_out: Any) -> Any:
        return torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)

    mapped = torch.func.vmap(pull_back)(d_outs)
    for i, d_out in enumerate(d_outs):
        for ours, theirs in zip(mapped, pull_back(d_out), strict=True):
            torch.testing.assert_close(ours[i], theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("seed", [1, 2**63 + 1])
def test_second_derivatives_drop_the_same_weights(seed: int) -> None:
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    out = rootdk.attention(q, k, v, dropout=0.4, seed=seed)
    (plain,) = torch.autograd.grad(out.sum(), v, retain_graph=True)
    d_out = torch.ones_like(out, requires_grad=True)
    (first,) = torch.autograd.grad(out, v, d_out, create_graph=True)
    assert torch.equal(first, plain)
    # d_value is linear in d_out with the weights as factors, and so is the output in the value.
    (weights_sum,) = torch.autograd.grad(first, d_out, torch.ones_like(first))
    torch.testing.assert_close(weights_sum, rootdk.attention(q, k, torch.ones_like(v), dropout=0.4, seed=seed))


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sinks": [0.5, 0, 1], "dropout": 0.5},
        {"key_lengths": [4, 2], "scale": "llama4", "causal": True, "window": 3},
    ],
)
def test_the_default_device_does_not_matter(options: dict[str, Any], create_graph: bool) -> None:
    q = torch.randn(2, 3, 5, 4, requires_grad=True)
    d_out = torch.ones_like(q)
    with torch.device("meta"):
        out, reading = rootdk.measure(q, q, q, **options)
        (gradient,) = torch.autograd.grad(out, q, d_out, create_graph=create_graph)
        if create_graph:
            (gradient,) = torch.autograd.grad(gradient, q, d_out)
        mapped = torch.func.grad(lambda q: rootdk.attention(q, q, q, **options).sum())(q)
    assert {t.device.type for t in (out, reading.entropy, reading.keys, gradient, mapped)} == {"cpu"}


def test_the_default_device_does_not_matter_to_a_layer() -> None:
    layer = rootdk.torch.MultiHeadAttention(8, 2, dropout=0.5)
    x = torch.randn(2, 3, 8)
    with torch.device("meta"):
        out, weights = layer(x, x, x)
    assert out.device.type == weights.device.type == "cpu"


MANY: list[dict[str, Any]] = [
    {},
    {"causal": True, "scale": "llama4"},
    {"sinks": torch.randn(3, dtype=torch.float64), "scale": torch.tensor(0.3, dtype=torch.float64)},
    {"alibi": torch.rand(2, 3, dtype=torch.float64), "causal": True},
    {"bias": torch.randn(5, 5, dtype=torch.float64), "dropout": 0.4, "seed": 3},
]


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("options", MANY, ids=[",".join(options) for options in MANY])
def test_batched_gradients(options: dict[str, Any], create_graph: bool) -> None:
    """torch.autograd.grad(is_grads_batched=True), and the derivative of what it gives."""
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    options = {n: t.clone().requires_grad_() if isinstance(t, torch.Tensor) else t for n, t in options.items()}
    leaves = (q, k, v, *(t for t in options.values() if isinstance(t, torch.Tensor)))
    out = rootdk.attention(q, k, v, **options)
    d_outs = torch.randn(4, *out.shape, dtype=torch.float64, requires_grad=create_graph)
    kept = {"retain_graph": True, "create_graph": create_graph}
    together = torch.autograd.grad(out, leaves, d_outs, is_grads_batched=True, **kept)
    alone = [torch.autograd.grad(out, leaves, d_out, **kept) for d_out in d_outs]
    expected = [torch.stack(gradients) for gradients in zip(*alone, strict=True)]
    for ours, theirs in zip(together, expected, strict=True):
        assert torch.equal(ours, theirs)
    if create_graph:
        seconds = (torch.autograd.grad(sum(g.sin().sum() for g in gs), (d_outs, *leaves), retain_graph=True)
                   for gs in (together, expected))  # fmt: skip
        for ours, theirs in zip(*seconds, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_vectorized_jacobian_and_hessian() -> None:
    q, k, v = torch.randn(3, 1, 2, 3, 2, dtype=torch.float64).unbind(0)
    for derivative, of in (
        (torch.autograd.functional.jacobian, lambda q: rootdk.attention(q, k, v, causal=True)),
        (torch.autograd.functional.hessian, lambda q: rootdk.attention(q, k, v, causal=True).sin().sum()),
    ):
        torch.testing.assert_close(derivative(of, q, vectorize=True), derivative(of, q), rtol=1e-12, atol=1e-14)
