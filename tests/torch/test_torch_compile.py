"""The operators under torch's own examination, and torch.compile forward and backward."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from problems import random_arrays
from tensors import tensor
from torch._inductor.utils import fresh_cache
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import rootdk
import rootdk.torch
from rootdk.backends.torch.operators import Facts, attention_backward, attention_forward
from rootdk.options import LEARNED, Learnable


def arguments(grad: bool = True, **changes: Any) -> tuple[Any, ...]:
    """Of attention_forward, in its order."""
    q, k, v = (torch.randn(2, heads, 7, 8, requires_grad=grad) for heads in (4, 2, 2))
    defaults = Learnable(q, k, v)._asdict() | Facts()._asdict() | {"measured": False}
    assert changes.keys() <= defaults.keys()
    return tuple((defaults | changes).values())


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "measured": {"measured": True, "right": 0, "offset": 0},
    "everything": {
        "scale": torch.tensor(0.4, requires_grad=True), "softcap": 2.0, "left": 3, "right": 1,
        "query_offset": torch.tensor([0, 1]), "key_lengths": torch.tensor([5, 7]),
        "query_segments": torch.arange(7) // 4, "key_segments": torch.arange(7) // 3,
        "mask": torch.rand(7, 7) < 0.9, "bias": torch.randn(4, 1, 7, requires_grad=True),
        "sinks": torch.randn(4, requires_grad=True), "alibi": torch.rand(4, requires_grad=True),
        "dropout": 0.2, "seed": torch.tensor([7]),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_opcheck(case: str) -> None:
    given = arguments(**CASES[case])
    torch.library.opcheck(attention_forward, given)
    plain = [t.detach() if isinstance(t, torch.Tensor) else t for t in given]
    out, row_state, _, _ = attention_forward(*plain)
    for pairs_asked in {False, "bias" in CASES[case]}:
        torch.library.opcheck(attention_backward, (torch.randn_like(out), out, row_state, *plain[:-1], pairs_asked))


def test_opcheck_in_the_usual_layout() -> None:
    q, k, v = (torch.randn(2, 7, 4, 8).transpose(1, 2).requires_grad_() for _ in range(3))
    torch.library.opcheck(attention_forward, (q, k, v, *arguments()[3:]))


def test_both_ways_through_autograd_give_the_same_bits() -> None:
    """The dispatcher's way, which compiled code takes, and the direct one of eager calls."""
    given = arguments(**CASES["everything"])
    q, k, v, *_ = given
    options = {name: CASES["everything"][name] for name in ("softcap", "query_offset", "key_lengths", "mask")}
    learned = {name: CASES["everything"][name] for name in LEARNED}
    leaves = (q, k, v, *learned.values())
    options["segments"] = tuple(CASES["everything"][f"{name}_segments"] for name in ("query", "key"))
    direct = rootdk.attention(q, k, v, **options, **learned, window=(3, 1), dropout=0.2, seed=7)
    dispatched = attention_forward(*given)[0]
    assert torch.equal(direct, dispatched)
    for ours, theirs in zip(*(torch.autograd.grad(o.sin().sum(), leaves) for o in (direct, dispatched)), strict=True):
        assert torch.equal(ours, theirs)
    (first,) = torch.autograd.grad(dispatched_again(given).sin().sum(), q, create_graph=True)
    assert torch.autograd.grad(first.sum(), k)[0].isfinite().all()


def dispatched_again(given: tuple[Any, ...]) -> Any:
    return attention_forward(*given)[0]


def test_fake_tensors_see_the_operator() -> None:
    with FakeTensorMode():
        q = torch.empty(2, 4, 10**6, 64)
        assert rootdk.attention(q, q, q, causal=True).shape == q.shape
        _, reading = rootdk.measure(q, q, q)
        assert reading.entropy.shape == q.shape[:-1]


def step(q: Any, k: Any, v: Any) -> Any:
    return rootdk.torch.scaled_dot_product_attention(q.sin(), k, v, is_causal=True).cos()


def compare(compiled: Any, plain: Any, *tensors: Any) -> None:
    ours, theirs = compiled(*tensors), plain(*tensors)
    torch.testing.assert_close(ours, theirs)
    leaves = [t for t in tensors if t.requires_grad]
    gradients = (torch.autograd.grad(out.square().sum(), leaves) for out in (ours, theirs))
    for ours_, theirs_ in zip(*gradients, strict=True):
        torch.testing.assert_close(ours_, theirs_)


@pytest.mark.parametrize("dynamic", [False, True])
def test_fullgraph_without_code_generation(dynamic: bool) -> None:
    """Everything that is rootdk's part: the trace, the shapes, the derivative. inductor itself is in the slow test."""
    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for n in (5, 9) if dynamic else (5,):
        compare(compiled, step, *(torch.randn(2, 4, n, 8, requires_grad=True) for _ in range(3)))


def test_fullgraph_with_every_option() -> None:
    torch.compiler.reset()

    def call(q: Any, k: Any, v: Any, sinks: Any, scale: Any, mask: Any, bias: Any, lengths: Any) -> Any:
        out, reading = rootdk.measure(
            q, k, v, sinks=sinks, scale=scale, mask=mask, bias=bias, key_lengths=lengths, causal=True, window=(4, None),
            softcap=3, dropout=0.2, seed=5,
        )  # fmt: skip
        return out * reading.entropy[..., None] + rootdk.attention(q, k, v, scale="dk", query_offset=1, causal=True)

    tensors = [torch.randn(2, heads, 7, 8, requires_grad=True) for heads in (4, 2, 2)]
    tensors += [torch.randn(4, requires_grad=True), torch.tensor(0.4, requires_grad=True)]
    tensors += [torch.rand(7, 7) < 0.9, torch.randn(4, 7, 7, requires_grad=True), torch.tensor([4, 7])]
    compare(torch.compile(call, fullgraph=True, backend="aot_eager"), call, *tensors)


def test_dropout_without_a_seed_compiles() -> None:
    torch.compiler.reset()
    q = torch.randn(2, 4, 20, 8)
    compiled = torch.compile(lambda q: rootdk.attention(q, q, q, dropout=0.5), fullgraph=True, backend="aot_eager")
    first, second = compiled(q), compiled(q)
    assert not torch.equal(first, second)


def test_two_calls_draw_two_seeds() -> None:
    """The seeds of the plain calls, in their order."""
    torch.compiler.reset()
    layer = rootdk.torch.MultiHeadAttention(8, 2, dropout=0.5)
    q = torch.randn(2, 20, 8)

    def twice(q: Any) -> Any:
        calls = [rootdk.attention(q, q, q, dropout=0.5) for _ in range(2)]
        return (*calls, *(layer(q, q, q, need_weights=False)[0] for _ in range(2)))

    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")
    torch.manual_seed(3)
    ours = compiled(q)
    torch.manual_seed(3)
    for out, expected in zip(ours, twice(q), strict=True):
        torch.testing.assert_close(out, expected)
    assert not torch.equal(ours[0], ours[1])
    assert not torch.equal(ours[2], ours[3])


def test_the_first_call_of_all_may_be_compiled() -> None:
    """With nothing imported but rootdk, and nothing called before."""
    code = (
        "import rootdk, torch; q = torch.randn(2, 4, 8, requires_grad=True);"
        "f = torch.compile(lambda q: rootdk.attention(q, q, q), fullgraph=True, backend='aot_eager');"
        "out = f(q); out.sum().backward(); assert torch.equal(out, rootdk.attention(q, q, q))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_rule_by_row_does_not_compile_and_says_so() -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda q: rootdk.attention(q, q, q, scale="llama4"), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="a rule must not vary from row to row"):
        compiled(torch.randn(4, 7, 8))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_learned_mask_compiles(dynamic: bool) -> None:
    torch.compiler.reset()

    def call(q: Any, k: Any, v: Any, attn_mask: Any) -> Any:
        return rootdk.torch.scaled_dot_product_attention(q.sin(), k, v, attn_mask=attn_mask.cos())

    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for n in (5, 9) if dynamic else (5,):
        tensors = [torch.randn(2, 4, n, 8, requires_grad=True) for _ in range(3)]
        compare(compiled, call, *tensors, torch.randn(n, n, requires_grad=True))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor(dynamic: bool) -> None:
    def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return rootdk.attention(q.sin(), k, v, bias=bias.cos(), causal=True)

    torch.compiler.reset()
    with fresh_cache():  # not what an earlier version of this operator left on the disk
        compiled, with_bias = (torch.compile(f, fullgraph=True, dynamic=dynamic) for f in (step, biased))
        for n in (5, 9, 70):
            tensors = [torch.randn(2, 4, n, 8, requires_grad=True) for _ in range(3)]
            compare(compiled, step, *tensors)
            compare(with_bias, biased, *tensors, torch.randn(4, 1, n, requires_grad=True))


def test_read_compiled_and_mapped(rng: np.random.Generator) -> None:
    q, k, _ = random_arrays(rng, dtype=np.float32)
    expected = rootdk.read(q, k, causal=True)

    def entropy(query: Any, key: Any) -> Any:
        return rootdk.read(query, key, causal=True).entropy

    for made in (torch.compile(entropy, backend="aot_eager", fullgraph=True), torch.func.vmap(entropy)):
        np.testing.assert_array_equal(made(tensor(q), tensor(k)), expected.entropy)
    with pytest.raises(rootdk.ArgumentError, match="rows: must be None where a compiler or a transform follows"):
        torch.func.vmap(lambda a, b: rootdk.read(a, b, rows=[0]).entropy)(tensor(q), tensor(k))


def test_read_refuses_a_tangent_by_name(rng: np.random.Generator) -> None:
    """It would be lost: the Reading has no derivative, and there is nothing else that could carry it."""
    q, k, _ = map(tensor, random_arrays(rng))
    slopes = torch.rand(q.shape[-3], dtype=q.dtype)
    line = "must have no tangent in read(), whose Reading has no derivative (detach it), got one"
    with forward_ad.dual_level():
        moved = forward_ad.make_dual(q, torch.ones_like(q))
        sloped = forward_ad.make_dual(slopes, slopes)
        for name, call in {
            "query": lambda: rootdk.read(moved, k),
            "key": lambda: rootdk.read(q, forward_ad.make_dual(k, k)),
            "alibi": lambda: rootdk.read(q, k, alibi=sloped),
        }.items():
            with pytest.raises(rootdk.DerivativeError) as caught:
                call()
            assert str(caught.value) == f"{name}: {line}"
        assert torch.equal(rootdk.read(moved.detach(), k).entropy, rootdk.read(q, k).entropy)
    for derivative in (torch.func.jvp, torch.compile(torch.func.jvp, backend="aot_eager")):
        with pytest.raises(Exception, match=r"query: must have no tangent in read\(\)"):
            derivative(lambda x: rootdk.read(x, k).entropy, (q,), (q,))
