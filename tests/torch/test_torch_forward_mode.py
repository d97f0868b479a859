"""Forward-mode derivatives through torch: against torch's own of the plain formula, or one line where there is none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from recording_kernel import counted_passes
from torch import func
from torch.autograd import forward_ad

import rootdk
import rootdk.torch

WIDE = torch.float64
HEADS, SHARED, N_QUERY, N_KEY = 4, 2, 3, 5


def draws(*shapes: tuple[int, ...], seed: int) -> tuple[Any, ...]:
    source = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=source, dtype=WIDE) for shape in shapes)


SHAPES = ((2, HEADS, N_QUERY, 3), (2, SHARED, N_KEY, 3), (2, SHARED, N_KEY, 2))
SHAPES += ((HEADS, N_QUERY, N_KEY), (HEADS,), (), (HEADS,))
NAMES = ("query", "key", "value", "bias", "sinks", "scale", "alibi")
X, T = draws(*SHAPES, seed=1), draws(*SHAPES, seed=2)
EVERY = tuple(range(len(NAMES)))
Q, K, V = draws((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4), seed=3)
TQ = draws((2, 3, 5, 4), seed=4)[0]


def ours(query: Any, key: Any, value: Any, bias: Any, sinks: Any, scale: Any, alibi: Any) -> Any:
    learned = {"bias": bias, "sinks": sinks, "scale": scale, "alibi": alibi}
    return rootdk.attention(query, key, value, **learned, causal=True, softcap=2.0)


def plain(query: Any, key: Any, value: Any, bias: Any, sinks: Any, scale: Any, alibi: Any) -> Any:
    """The same in torch's own operations; without its softmax, whose tangent cannot be differentiated in 2.13."""
    key, value = (t.repeat_interleave(HEADS // SHARED, 1) for t in (key, value))
    logits = 2 * torch.tanh(scale * (query @ key.transpose(-1, -2)) / 2) + bias
    apart = (torch.arange(N_QUERY)[:, None] + N_KEY - N_QUERY - torch.arange(N_KEY)).abs()
    logits = logits - alibi[:, None, None] * apart
    seen = torch.ones(N_QUERY, N_KEY, dtype=torch.bool).tril(N_KEY - N_QUERY)
    joined = torch.cat([logits.masked_fill(~seen, -torch.inf), sinks[:, None, None].expand(2, HEADS, N_QUERY, 1)], -1)
    sizes = torch.exp(joined - joined.detach().amax(-1, keepdim=True))
    return (sizes / sizes.sum(-1, keepdim=True))[..., :-1] @ value


def loss(of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *x: of(*x).sin().sum()


def dual(of: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(of(*map(forward_ad.make_dual, X, T))).tangent


def back_through_a_tangent(of: Any) -> Any:
    leaves = [x.clone().requires_grad_() for x in (*X, *T)]
    with forward_ad.dual_level():
        out = of(*map(forward_ad.make_dual, leaves[: len(X)], leaves[len(X) :]))
        return torch.autograd.grad(forward_ad.unpack_dual(out).tangent.sin().sum(), leaves)


def tangent_of_a_gradient(of: Any) -> Any:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x.clone().requires_grad_(), t) for x, t in zip(X, T, strict=True)]
        gradients = torch.autograd.grad(loss(of)(*duals), duals, create_graph=True)
        return [forward_ad.unpack_dual(gradient).tangent for gradient in gradients]


def tangent_of_d_out(of: Any) -> Any:
    """The call was made before, without a tangent: it arrives with the gradient of the output."""
    leaves = [x.clone().requires_grad_() for x in X]
    out = of(*leaves)
    with forward_ad.dual_level():
        d_out = forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out).cumsum(-1))
        return [forward_ad.unpack_dual(g).tangent for g in torch.autograd.grad(out, leaves, d_out)]


def many(tensors: Any) -> list[Any]:
    return [torch.stack([t, 2 * t, -t]) for t in tensors]


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "forward_ad": dual,
    "gradient of a tangent": back_through_a_tangent,
    "tangent of a gradient": tangent_of_a_gradient,
    "tangent of d_out": tangent_of_d_out,
    "func.jvp": lambda of: func.jvp(of, X, T),
    "func.jacfwd": lambda of: func.jacfwd(of, argnums=EVERY)(*X),
    "func.linearize": lambda of: func.linearize(of, *X)[1](*T),
    "func.hessian": lambda of: func.hessian(loss(of), argnums=EVERY)(*X),
    "jacrev of jacrev": lambda of: func.jacrev(func.jacrev(loss(of)), argnums=EVERY)(*X),
    "grad of grad": lambda of: func.grad(lambda *x: func.grad(loss(of))(*x).sin().sum(), argnums=EVERY)(*X),
    "jvp of grad": lambda of: func.jvp(func.grad(loss(of), argnums=EVERY), X, T),
    "grad of jvp": lambda of: func.grad(lambda x: func.jvp(of, x, T)[1].sin().sum())(X),
    "grad of jvp in the tangents": lambda of: func.grad(lambda t: func.jvp(of, X, t)[1].sin().sum())(T),
    "vmap of jvp": lambda of: func.vmap(lambda *t: func.jvp(of, X, t)[1])(*many(T)),
    "vmap over all": lambda of: func.vmap(of)(*many(X)),
    "vmap of grad": lambda of: func.vmap(func.grad(loss(of), argnums=EVERY))(*many(X)),
    "jacobian, vectorized": lambda of: torch.autograd.functional.jacobian(of, X, vectorize=True),
    "jacobian, forward": lambda of: torch.autograd.functional.jacobian(of, X, vectorize=True, strategy="forward-mode"),
    "hessian, forward outside": lambda of: torch.autograd.functional.hessian(
        loss(of), X, vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
}


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # torch's own, in linearize
@pytest.mark.parametrize("name", DERIVATIVES)
def test_every_derivative_is_that_of_the_plain_formula(name: str) -> None:
    expected = torch.utils._pytree.tree_leaves(DERIVATIVES[name](plain))
    leaves = torch.utils._pytree.tree_leaves(DERIVATIVES[name](ours))
    for mine, theirs in zip(leaves, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("moving", EVERY, ids=NAMES)
def test_every_tensor_by_itself(moving: int) -> None:
    def along(of: Any) -> Any:
        return func.jvp(lambda x: of(*X[:moving], x, *X[moving + 1 :]), (X[moving],), (T[moving],))

    for mine, theirs in zip(along(ours), along(plain), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


def test_the_kernel_computes_it() -> None:
    """One pass forward and one for the tangents, whatever the way; one for a whole Jacobian."""
    for derivative in (dual, lambda of: func.jvp(of, X, T), lambda of: func.jacfwd(of)(*X)):
        with counted_passes() as passes:
            derivative(ours)
        assert passes == {"forward": 1, "tangent": 1}


def test_the_output_keeps_its_bits_and_measure_its_reading() -> None:
    along = func.jvp(lambda q: rootdk.attention(q, K, V, causal=True), (Q,), (TQ,))[1]
    with forward_ad.dual_level():
        moved = forward_ad.make_dual(Q, TQ)
        out, reading = rootdk.measure(moved, K, V, causal=True)
        expected, without = rootdk.measure(Q, K, V, causal=True)
        primal, tangent = forward_ad.unpack_dual(out)
        assert torch.equal(primal, expected)
        assert torch.equal(tangent, along)
        assert torch.equal(reading.entropy, without.entropy)
        assert forward_ad.unpack_dual(reading.entropy).tangent is None


def test_the_drop_in_a_layer_and_a_model_inside_use() -> None:
    layer = rootdk.torch.MultiHeadAttention(4, 2, dtype=WIDE, batch_first=True)
    theirs = torch.nn.MultiheadAttention(4, 2, dtype=WIDE, batch_first=True)
    theirs.load_state_dict(layer.state_dict())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the only one of torch's with a tangent
        expected = func.jvp(lambda q: torch.nn.functional.scaled_dot_product_attention(q, K, V), (Q,), (TQ,))
        through = func.jvp(lambda x: theirs(x, x, x, need_weights=False)[0], (Q[0],), (TQ[0],))
    drop_in = func.jvp(lambda q: rootdk.torch.scaled_dot_product_attention(q, K, V), (Q,), (TQ,))
    with rootdk.torch.use():
        used = func.jvp(lambda q: torch.nn.functional.scaled_dot_product_attention(q, K, V), (Q,), (TQ,))
    own = func.jvp(lambda x: layer(x, x, x, need_weights=False)[0], (Q[0],), (TQ[0],))
    for mine, wanted in ((drop_in, expected), (used, expected), (own, through)):
        torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_tangent_has_the_type_of_the_output(dtype: Any) -> None:
    q, k, v, t = (x.to(dtype) for x in (Q, K, V, TQ))
    out, d_out = func.jvp(lambda q: rootdk.attention(q, k, v), (q,), (t,))
    assert out.dtype == d_out.dtype == dtype
    wide = func.jvp(lambda q: rootdk.attention(q, k.double(), v.double()), (q.double(),), (t.double(),))[1]
    torch.testing.assert_close(d_out.double(), wide, rtol=0, atol=4 * torch.finfo(dtype).eps * wide.abs().max().item())


def test_one_head_dropout_and_an_open_level() -> None:
    def attend(q: Any) -> Any:
        return rootdk.attention(q[0, 0], K[0, 0], V[0, 0], dropout=0.4, seed=5)

    step = 1e-6
    numeric = (attend(Q + step * TQ) - attend(Q - step * TQ)) / (2 * step)
    torch.testing.assert_close(func.jvp(attend, (Q,), (TQ,))[1], numeric, rtol=0, atol=1e-8)
    with forward_ad.dual_level():  # alone it is no reason for another way
        assert forward_ad.unpack_dual(rootdk.attention(Q, K, V)).tangent is None
    _, tangent = func.jvp(lambda x: rootdk.attention(Q, K, V) * x, (V,), (TQ,))
    torch.testing.assert_close(tangent, rootdk.attention(Q, K, V) * TQ)


def test_vmap_with_dropout_draws_as_torch_asks() -> None:
    def attend(q: Any) -> Any:
        return rootdk.attention(q, K[0], V[0], dropout=0.5)

    same = Q[:1].expand(2, -1, -1, -1)
    first, second = func.vmap(attend, randomness="same")(same)
    assert torch.equal(first, second)
    first, second = func.vmap(attend, randomness="different")(same)
    assert not torch.equal(first, second)
    seeded = func.vmap(lambda q: rootdk.attention(q, K[0], V[0], dropout=0.5, seed=1))(Q)
    assert torch.equal(seeded[1], rootdk.attention(Q[1], K[0], V[0], dropout=0.5, seed=1))


def attend(q: Any) -> Any:
    return rootdk.attention(q, K, V)


def compiled_dual(q: Any, t: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(attend(forward_ad.make_dual(q, t))).tangent


@pytest.mark.parametrize(
    "derivative", [lambda q, t: func.jvp(attend, (q,), (t,))[1], compiled_dual], ids=["func.jvp", "forward_ad"]
)
def test_compiled(derivative: Callable[..., Any]) -> None:
    torch.compiler.reset()
    tangent = torch.compile(derivative, fullgraph=True, backend="aot_eager")(Q, TQ)
    assert torch.equal(tangent, func.jvp(attend, (Q,), (TQ,))[1])


def refused(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(rootdk.DerivativeError) as caught:
        call()
    assert str(caught.value) == message
    assert isinstance(caught.value, NotImplementedError), "what torch raises for its own function"


def test_what_is_taken_by_its_value_has_no_tangent_to_lose() -> None:
    where = "must have no tangent where tensors are taken by their values, got one"
    _, pull_back = rootdk.attention_vjp(Q, K, V)
    with forward_ad.dual_level():
        moved = forward_ad.make_dual(Q, TQ)
        refused(f"key: {where}", lambda: rootdk.attention_vjp(Q, moved, V))
        refused(f"d_out: {where}", lambda: pull_back(moved))
        refused(f"value: {where}", lambda: rootdk.attention_jvp(Q, K, moved))
        refused(f"d_query: {where}", lambda: rootdk.attention_jvp(Q, K, V, moved))


@pytest.mark.parametrize("compiled_before", [False, True])
def test_a_tangent_from_outside_a_compiled_call(compiled_before: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    if compiled_before:
        compiled(Q)
    with forward_ad.dual_level():
        refused(
            "query: must have no tangent inside torch.compile (compile what calls torch.func.jvp instead), got one",
            lambda: compiled(forward_ad.make_dual(Q, TQ)),
        )


def test_derivatives_that_are_not_computed() -> None:
    def energy(q: Any) -> Any:
        return attend(q).sin().sum()

    refused(
        "rootdk: the derivative forward of a forward derivative (jacfwd of jacfwd; jacfwd of jacrev works) "
        "is not computed",
        lambda: func.jacfwd(func.jacfwd(attend))(Q),
    )
    refused(
        "rootdk: the derivative of a second derivative here (torch.autograd.grad with create_graph=True has it) "
        "is not computed",
        lambda: func.grad(lambda q: func.grad(lambda q: func.grad(energy)(q).sum())(q).sum())(Q),
    )
    refused(
        "rootdk: the derivative forward of a second derivative is not computed",
        lambda: func.jvp(func.grad(lambda q: func.grad(energy)(q).sum()), (Q,), (TQ,)),
    )
