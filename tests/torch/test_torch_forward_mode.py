"""Forward-mode derivatives are not computed: wherever a tangent would be lost, one line says so."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import rootdk
import rootdk.torch

Q, K, V, T = torch.randn(4, 2, 3, 5, 4, dtype=torch.float64).unbind(0)
DIFFERENTIABLE = {
    "query": Q,
    "key": K,
    "value": V,
    "scale": torch.tensor(0.4, dtype=torch.float64),
    "bias": torch.randn(5, 5, dtype=torch.float64),
    "sinks": torch.randn(3, dtype=torch.float64),
    "alibi": torch.rand(3, dtype=torch.float64),
}


def line(name: str) -> str:
    return (
        f"{name}: must have no tangent, got one: rootdk has no forward-mode derivatives "
        "(torch.autograd.grad, torch.func.vjp and torch.func.jacrev work)"
    )


def refused(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(rootdk.DerivativeError) as caught:
        call()
    assert str(caught.value) == line(name)
    assert isinstance(caught.value, NotImplementedError), "what torch raises for its own function"


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("learned", [False, True], ids=["", "requires_grad"])
@pytest.mark.parametrize("call", [rootdk.attention, rootdk.measure])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_every_tensor_of_a_plain_call(name: str, call: Any, learned: bool, grad: bool) -> None:
    given = {n: t.clone().requires_grad_(learned) for n, t in DIFFERENTIABLE.items()}
    with forward_ad.dual_level(), torch.set_grad_enabled(grad):
        call(**given)  # an open level alone is no reason
        given[name] = forward_ad.make_dual(given[name], torch.ones_like(given[name]))
        refused(name, lambda: call(**given))


def test_a_single_head_and_numpys_gradient() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(Q, T)
        refused("query", lambda: rootdk.attention(dual[0, 0], K[0, 0], V[0, 0]))
        refused("key", lambda: rootdk.attention_vjp(Q, dual, V))
        _, pull_back = rootdk.attention_vjp(Q, K, V)
        refused("d_out", lambda: pull_back(dual))


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_backward_pass(create_graph: bool) -> None:
    """Forward mode over reverse mode: the tangent arrives with the gradient of the output."""
    x = Q.clone().requires_grad_()
    out = rootdk.attention(x, K, V)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones_like(out), T)
        refused("d_out", lambda: torch.autograd.grad(out, x, dual, create_graph=create_graph))


def test_a_model_inside_use() -> None:
    with rootdk.torch.use(), forward_ad.dual_level():
        dual = forward_ad.make_dual(Q, T)
        refused("query", lambda: torch.nn.functional.scaled_dot_product_attention(dual, K, V))
        layer = rootdk.torch.MultiHeadAttention(4, 2, dtype=torch.float64)
        refused("query", lambda: layer(dual[0], K[0], V[0]))


def attend(q: Any) -> Any:
    return rootdk.attention(q, K, V)


@pytest.mark.parametrize(
    "derivative",
    [
        lambda: torch.autograd.functional.jacobian(attend, Q, strategy="forward-mode", vectorize=True),
        lambda: torch.func.jvp(attend, (Q,), (T,)),
        lambda: torch.func.jacfwd(attend)(Q),
        lambda: torch.func.jvp(torch.func.grad(lambda q: attend(q).sin().sum()), (Q,), (T,)),
        lambda: torch.func.linearize(attend, Q),
    ],
    ids=["functional.jacobian", "func.jvp", "func.jacfwd", "func.jvp of func.grad", "func.linearize"],
)
def test_transforms(derivative: Callable[[], Any]) -> None:
    refused("query", derivative)


def test_a_tangent_elsewhere_is_none_of_our_business() -> None:
    _, tangent = torch.func.jvp(lambda x: attend(Q) * x, (V,), (T,))
    torch.testing.assert_close(tangent, attend(Q) * T)


@pytest.mark.parametrize("compiled_before", [False, True])
def test_compiled(compiled_before: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    if compiled_before:
        compiled(Q)
    with forward_ad.dual_level():
        refused("query", lambda: compiled(forward_ad.make_dual(Q, T)))
