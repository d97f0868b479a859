"""Second derivatives follow the rules of first ones: what is hidden has no effect, and what is empty gives zeros."""

import math
from typing import Any

import pytest
import torch

import rootdk
import rootdk.torch

WIDE = torch.float64


def second_derivatives(options: dict[str, Any], *tensors: Any) -> list[Any]:
    """Of sum(sin(all first derivatives)), in d_out and in every tensor: query, key, value and what is learned."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    learned = dict(zip(("sinks", "scale", "bias"), leaves[3:], strict=False))
    out = rootdk.attention(*leaves[:3], **options, **learned)
    d_out = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape).requires_grad_()
    firsts = torch.autograd.grad(out, leaves, d_out, create_graph=True)
    return [*firsts, *torch.autograd.grad(sum(first.sin().sum() for first in firsts), (d_out, *leaves))]


def inputs() -> tuple[Any, ...]:
    draw = torch.Generator().manual_seed(5)
    shapes = ((2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 2), (4,), (), (5, 6))
    return tuple(torch.randn(shape, generator=draw, dtype=WIDE) for shape in shapes)


HIDDEN: dict[str, dict[str, Any]] = {
    "lengths": {"key_lengths": torch.tensor([4, 4])},
    "mask": {"mask": torch.arange(6) < 4},
    "causal": {"causal": True, "query_offset": -1},  # the first row sees nothing
    "window": {"window": (6, 0), "query_offset": -1},
    "softcap and dropout": {"key_lengths": torch.tensor([4, 4]), "softcap": 2.0, "dropout": 0.3, "seed": 4},
    "a rule by row": {"key_lengths": torch.tensor([4, 4]), "scale": "llama4"},
}


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("case", HIDDEN)
def test_hidden_numbers_have_no_effect(case: str, garbage: float) -> None:
    options = HIDDEN[case]
    clean = inputs()[: 4 if "scale" in options else 6]
    broken = [t.clone() for t in clean]
    if case in {"causal", "window"}:
        broken[1][..., 5, :], broken[2][..., 4:, :] = garbage, garbage  # past the reach of the last row
        broken[0][..., 0, :] = garbage
    else:
        broken[1][..., 4:, 0], broken[2][..., 4:, 1] = garbage, garbage
    expected, results = second_derivatives(options, *clean), second_derivatives(options, *broken)
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_nan_that_some_rows_see_stays_in_those_rows() -> None:
    query, key, value = (t.requires_grad_() for t in inputs()[:3])
    broken = torch.where(torch.arange(6)[:, None] == 3, math.nan, key)
    out = rootdk.attention(query, broken, value, causal=True, query_offset=0)
    (first,) = torch.autograd.grad(out.sin().sum(), query, create_graph=True)
    d_query, d_value = torch.autograd.grad(first.sin().sum(), (query, value))
    assert first[..., 3:, :].isnan().all()
    assert d_query[..., 3:, :].isnan().all()
    assert first[..., :3, :].isfinite().all()
    assert d_query[..., :3, :].isfinite().all()
    assert d_value[:, :, 4].isnan().all(), "the last row sees it with a weight of NaN"
    assert d_value[:, :, 5].eq(0).all(), "no row sees it"


def test_third_derivatives_with_hidden_numbers() -> None:
    clean = inputs()[:3]
    broken = [t.clone() for t in clean]
    broken[1][..., 4:, :], broken[2][..., 4:, :] = math.nan, math.inf

    def third(tensors: Any) -> Any:
        leaves = [t.clone().requires_grad_() for t in tensors]
        out = rootdk.attention(*leaves, key_lengths=torch.tensor([4, 4]))
        for _ in range(2):
            out = sum(g.sin().sum() for g in torch.autograd.grad(out.sum(), leaves, create_graph=True))
        return torch.autograd.grad(out, leaves)

    for ours, theirs in zip(third(broken), third(clean), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("sizes", [(0, 4, 3, 3), (2, 0, 3, 3), (2, 4, 0, 3), (2, 4, 3, 0)])
def test_empty(sizes: tuple[int, int, int, int], sinks: bool) -> None:
    batch, heads, n_query, n_key = sizes
    tensors = [torch.randn(batch, heads, n, 8, dtype=WIDE) for n in (n_query, n_key, n_key)]
    tensors += [torch.randn(heads, dtype=WIDE)] if sinks else []
    for derivative in second_derivatives({"causal": True}, *tensors):
        assert not derivative.any()


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("sizes", [(0, 3, 3), (2, 0, 3), (2, 3, 0)])
def test_an_empty_layer(sizes: tuple[int, int, int], need_weights: bool) -> None:
    batch, n_query, n_key = sizes
    layer = rootdk.torch.MultiHeadAttention(8, 2, batch_first=True)
    query, key = (torch.randn(batch, n, 8, requires_grad=True) for n in (n_query, n_key))
    out, weights = layer(query, key, key, need_weights=need_weights)
    assert out.shape == (batch, n_query, 8)
    assert weights is None or weights.shape == (batch, n_query, n_key)
    if n_key == 0:  # nothing is seen: what is left is the bias of the last projection
        torch.testing.assert_close(out, layer.out_proj.bias.expand(out.shape))
    (first,) = torch.autograd.grad(out.square().sum(), query, create_graph=True)
    assert not torch.autograd.grad(first.sum(), query)[0].any()
