"""The function, the module and the switch, each beside torch's own."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from budgets import assert_within, forward_budget, gradient_budget
from problems import random_arrays
from tensors import DTYPES, array, tensor
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

import rootdk
import rootdk.torch
from rootdk import RootdkError
from rootdk.backends import problem_of
from rootdk.torch import MultiHeadAttention, functional, scaled_dot_product_attention

TORCHS_OWN = F.scaled_dot_product_attention


def torch_math(*tensors: Any, **options: Any) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        return TORCHS_OWN(*tensors, **options)


def cases(rng: np.random.Generator, dtype: Any) -> dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """name -> sizes, torch's arguments, and rootdk.attention's for the judge."""
    mask = rng.random((2, 1, 33, 40)) < 0.6
    mask[:, :, 3] = False
    bias = np.where(rng.random((4, 33, 40)) < 0.8, rng.standard_normal((4, 33, 40)), -np.inf).astype(dtype)
    end = {"causal": True, "query_offset": 0}
    return {
        "full": ({}, {}, {}),
        "causal": ({}, {"is_causal": True}, end),
        "causal, more queries": ({"n_query": 40, "n_key": 33}, {"is_causal": True}, end),
        "bool mask": ({}, {"attn_mask": tensor(mask)}, {"mask": mask}),
        "float mask": ({}, {"attn_mask": tensor(bias)}, {"bias": bias}),
        "scale": ({}, {"scale": 0.3}, {"scale": 0.3}),
        "scale zero": ({}, {"scale": 0.0}, {"scale": 0.0}),
        "grouped": ({"kv_heads": 2}, {"enable_gqa": True, "is_causal": True}, end),
        "d_v": ({"d_v": 5}, {}, {}),
    }


NAMES = list(cases(np.random.default_rng(0), np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_function_equals_torch(rng: np.random.Generator, name: str, dtype: str) -> None:
    kind = DTYPES[dtype][1]
    sizes, torchs, options = cases(rng, kind)[name]
    every: dict[str, Any] = {"kv_heads": 4, "n_query": 33, "n_key": 40, "d_k": 16, "d_v": 16} | sizes
    arrays = random_arrays(rng, **every, dtype=kind)
    d_out = rng.standard_normal(arrays[0].shape[:-1] + arrays[2].shape[-1:]).astype(kind)
    judged = problem_of(*arrays, **options)
    forward, backward = forward_budget(judged), gradient_budget(judged, d_out)
    for who, function in (("rootdk", scaled_dot_product_attention), ("torch", torch_math)):
        if who == "torch" and kind not in (np.float32, np.float64):
            continue  # its math path rounds the scores of half types, which the budget does not allow anyone
        tensors = [tensor(a).requires_grad_() for a in arrays]
        out = function(*tensors, **torchs)
        assert_within(array(out), *forward, f"{who}'s output")
        gradients = torch.autograd.grad(out, tensors, tensor(d_out))
        for what, gradient, budget in zip("qkv", gradients, backward, strict=True):
            assert_within(array(gradient), *budget, f"{who}'s gradient of {what}")


@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 8), (7, 8), (7, 6)),
        ((3, 5, 8), (3, 7, 8), (3, 7, 8)),
        ((2, 3, 4, 5, 8), (2, 3, 4, 7, 8), (2, 3, 4, 7, 8)),
        ((2, 4, 5, 8), (1, 4, 7, 8), (4, 7, 8)),
        ((2, 4, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8)),
        ((1, 4, 5, 8), (3, 4, 7, 8), (3, 4, 7, 8)),
        ((4, 5, 8), (3, 4, 7, 8), (3, 4, 7, 8)),
    ],
)
def test_shapes_broadcast_as_in_torch(shapes: Any) -> None:
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    ours, theirs = scaled_dot_product_attention(*tensors), torch_math(*tensors)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    gradients = (torch.autograd.grad(out.sin().sum(), tensors) for out in (ours, theirs))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_mask_and_causal_hold_together_as_on_the_fused_path(kind: str, grad: bool) -> None:
    q, k, v = (torch.randn(2, 3, n, 8, requires_grad=grad) for n in (5, 7, 7))
    mask = torch.rand(5, 7) < 0.7 if kind == "bool" else torch.randn(5, 7)
    ours, theirs = (
        function(q, k, v, attn_mask=mask, is_causal=True)
        for function in (scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention)
    )
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(ours, scaled_dot_product_attention(q, k, v, attn_mask=mask), atol=0.1)
    if grad:
        for mine, other in zip(*(torch.autograd.grad(o.sin().sum(), (q, k, v)) for o in (ours, theirs)), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_what_torch_refuses_is_refused() -> None:
    q = torch.randn(2, 4, 5, 8)
    refused: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((q, q, q), {"attn_mask": torch.ones(5, 5, dtype=torch.int64)}),
    ]
    for tensors, options in refused:
        for function in (torch_math, scaled_dot_product_attention):
            with pytest.raises(RuntimeError):
                function(*tensors, **options)
    with pytest.raises(RootdkError, match=r"heads that share keys need enable_gqa=True"):
        scaled_dot_product_attention(q, q[:, :2], q[:, :2])
    with pytest.raises(RootdkError, match=r"query: must have at least 3 axes \(heads, n, d\) with enable_gqa=True"):
        scaled_dot_product_attention(q[0, 0], q[0, 0, :3], q[0, 0, :3], enable_gqa=True)
    with pytest.raises(RootdkError, match=r"^key: must be a torch tensor"):
        scaled_dot_product_attention(q, q.numpy()[0], q)


def test_dropout_follows_manual_seed_and_has_the_right_mean() -> None:
    q = torch.zeros(1, 8, 200, 8)
    v = torch.ones(1, 8, 200, 8)
    torch.manual_seed(1)
    first = scaled_dot_product_attention(q, q, v, dropout_p=0.25)
    torch.manual_seed(1)
    assert torch.equal(first, scaled_dot_product_attention(q, q, v, dropout_p=0.25))
    # Each output is the mean of 200 numbers of variance 1/3; 1600 rows: 5 standard deviations.
    assert abs(first[..., 0].mean() - 1) < 5 * (1 / 3 / 200 / 1600) ** 0.5


MODULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "other widths": {"kdim": 12, "vdim": 20},
    "key bias": {"add_bias_kv": True},
    "zero key": {"add_zero_attn": True},
    "both keys, float64": {"add_bias_kv": True, "add_zero_attn": True, "dtype": torch.float64},
}
CLOSE = {"rtol": 1e-5, "atol": 2e-6}


@pytest.mark.parametrize("masks", ["none", "bool", "float", "per head", "causal"])
@pytest.mark.parametrize("name", MODULES)
def test_module_equals_torch_and_exchanges_checkpoints(name: str, masks: str) -> None:
    options = MODULES[name]
    torch.manual_seed(4)
    theirs = nn.MultiheadAttention(16, 4, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = MultiHeadAttention(16, 4, **options)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    ours.load_state_dict(theirs.state_dict())
    nn.MultiheadAttention(16, 4, **options).load_state_dict(ours.state_dict())

    dtype = options.get("dtype", torch.float32)
    shape = (lambda n: (3, n)) if options.get("batch_first") else (lambda n: (n, 3))
    widths = (16, options.get("kdim", 16), options.get("vdim", 16))
    lengths = (5, 7, 7) if masks != "causal" else (7, 7, 7)
    inputs = [torch.randn(*shape(n), w, dtype=dtype) for n, w in zip(lengths, widths, strict=True)]
    given: dict[str, Any] = {}
    if masks == "bool":
        given = {"attn_mask": torch.rand(5, 7) < 0.3, "key_padding_mask": torch.rand(3, 7) < 0.3}
        given["attn_mask"][:, 0] = given["key_padding_mask"][:, 0] = False
    elif masks == "float":
        given = {"attn_mask": torch.randn(5, 7, dtype=dtype), "key_padding_mask": torch.randn(3, 7, dtype=dtype)}
    elif masks == "per head":
        given = {"attn_mask": torch.randn(12, 5, 7, dtype=dtype)}
    elif masks == "causal":
        given = {"attn_mask": torch.ones(7, 7, dtype=torch.bool).triu(1), "is_causal": True}
    for more in ({"need_weights": True}, {"average_attn_weights": False}, {"need_weights": False}):
        if masks == "causal" and more == {"need_weights": False} and "key" in name:
            continue  # torch then hides the appended keys, and only then
        results, gradients = [], []
        for module in (ours, theirs):
            leaves = [x.clone().requires_grad_() for x in inputs]
            out, weights = module(*leaves, **given, **more)
            wanted = [*leaves, *module.parameters()]
            gradients.append(torch.autograd.grad(out.sin().sum(), wanted))
            results.append((out, weights))
        torch.testing.assert_close(results[0][0], results[1][0], **CLOSE)
        assert (results[0][1] is None) == (results[1][1] is None)
        if results[0][1] is not None:
            torch.testing.assert_close(results[0][1], results[1][1], **CLOSE)
        for mine, other in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=2e-5)


def test_module_starts_like_torchs() -> None:
    torch.manual_seed(9)
    theirs = nn.MultiheadAttention(16, 4)
    torch.manual_seed(9)
    ours = MultiHeadAttention(16, 4)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_module_without_a_batch() -> None:
    theirs, ours = nn.MultiheadAttention(16, 4), MultiHeadAttention(16, 4)
    ours.load_state_dict(theirs.state_dict())
    x, padding = torch.randn(5, 16), torch.tensor([False, False, True, False, True])
    for mine, other in zip(
        ours(x, x, x, key_padding_mask=padding), theirs(x, x, x, key_padding_mask=padding), strict=True
    ):
        torch.testing.assert_close(mine, other, **CLOSE)


def test_module_options() -> None:
    x = torch.randn(2, 6, 16)
    module = MultiHeadAttention(
        16, 4, batch_first=True, kv_heads=2, scale="dk", softcap=5.0, qk_norm=True, measure=True, add_bias_kv=True
    )
    out, weights = module(x, x, x)
    assert module.k_proj_weight.shape == (8, 16)
    assert module.last_reading is not None
    assert module.last_reading.shape == (2, 4, 6)
    assert not module.last_reading.entropy.requires_grad

    q, k, v = module._heads(x, x, x)
    assert k.shape == (2, 2, 7, 4)
    torch.testing.assert_close(q.square().mean(-1), torch.ones(2, 4, 6), rtol=1e-4, atol=1e-4)
    by_hand = rootdk.attention(q, k, v, scale="dk", softcap=5.0)
    torch.testing.assert_close(out, module.out_proj(by_hand.transpose(1, 2).flatten(2)))
    by_hand = weights[:, None] @ v.mean(dim=1, keepdim=True)  # weights are averaged over heads
    assert by_hand.shape == (2, 1, 6, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 6))
    out.sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    copy = MultiHeadAttention(
        16, 4, batch_first=True, kv_heads=2, scale="dk", softcap=5.0, qk_norm=True, add_bias_kv=True
    )
    copy.load_state_dict(module.state_dict())
    assert torch.equal(copy(x, x, x)[0], out)
    with pytest.raises(RootdkError, match=r"kv_heads: must divide num_heads = 4, got 3"):
        MultiHeadAttention(16, 4, kv_heads=3)
    with pytest.raises(RuntimeError, match="attn_mask: must be the causal mask"):
        module(x, x, x, is_causal=True)


WHOLE = "must be an int from 1 to 2147483647, got"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_heads": 4.0}, f"num_heads: {WHOLE} 4.0"),
        ({"num_heads": True}, f"num_heads: {WHOLE} True"),
        ({"num_heads": "4"}, f"num_heads: {WHOLE} '4'"),
        ({"num_heads": 0}, f"num_heads: {WHOLE} 0"),
        ({"num_heads": 3}, "num_heads: must divide embed_dim = 16, got 3"),
        ({"embed_dim": 16.0}, f"embed_dim: {WHOLE} 16.0"),
        ({"embed_dim": 10**30}, f"embed_dim: {WHOLE} {10**30}"),
        ({"kdim": 3.0}, f"kdim: {WHOLE} 3.0"),
        ({"vdim": True}, f"vdim: {WHOLE} True"),
        ({"kv_heads": 2.0}, f"kv_heads: {WHOLE} 2.0"),
        ({"kv_heads": 3}, "kv_heads: must divide num_heads = 4, got 3"),
        ({"d_k": True}, f"d_k: {WHOLE} True"),
        ({"d_k": 0}, f"d_k: {WHOLE} 0"),
    ],
    ids=str,
)
def test_module_sizes_are_whole_numbers(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(rootdk.RootdkError) as caught:
        rootdk.torch.MultiHeadAttention(**({"embed_dim": 16, "num_heads": 4} | sizes))
    assert str(caught.value) == message


def test_module_dropout_shows_the_weights_it_used() -> None:
    module = MultiHeadAttention(16, 2, dropout=0.5, batch_first=True)
    x = torch.randn(1, 30, 16)
    torch.manual_seed(2)
    out, weights = module(x, x, x, average_attn_weights=False)
    _, _, v = module._heads(x, x, x)
    torch.testing.assert_close(out, module.out_proj((weights @ v).transpose(1, 2).flatten(2)), **CLOSE)
    assert 0.3 < (weights == 0).float().mean() < 0.7
    module.eval()
    assert (module(x, x, x)[1] > 0).all()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Notes every call that use() routes."""
    seen: list[Any] = []

    def noted(*arguments: Any, **options: Any) -> Any:
        seen.append(arguments[0].shape)
        return scaled_dot_product_attention(*arguments, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", noted)
    return seen


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("model", ["encoder", "multi-head", "by name"])
def test_use_reaches_the_model(calls: list[Any], model: str, training: bool) -> None:
    x = torch.randn(2, 6, 16)
    if model == "encoder":
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        module: Any = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        call: Any = lambda: module(x)  # noqa: E731
    elif model == "multi-head":
        module = nn.MultiheadAttention(16, 4, batch_first=True)
        call = lambda: module(x, x, x, need_weights=False)[0]  # noqa: E731
    else:
        module = nn.Linear(16, 16)
        call = lambda: F.scaled_dot_product_attention(module(x), x, x, is_causal=True)  # noqa: E731
    module.train(training)
    with torch.set_grad_enabled(training):
        before = call()
        assert not calls
        with rootdk.torch.use():
            inside = call()
    assert len(calls) == (2 if model == "encoder" else 1)
    torch.testing.assert_close(before, inside, **CLOSE)
    call()
    assert len(calls) == (2 if model == "encoder" else 1), "still routed after the block"


def routes(calls: list[Any]) -> bool:
    """Whether a call goes to rootdk now."""
    before = len(calls)
    F.scaled_dot_product_attention(*torch.randn(3, 1, 1, 2, 4))
    return len(calls) == before + 1


def test_use_restores(calls: list[Any]) -> None:
    for fast in (True, False):
        torch.backends.mha.set_fastpath_enabled(fast)
        try:
            with pytest.raises(KeyError), rootdk.torch.use():  # noqa: PT012
                assert not torch.backends.mha.get_fastpath_enabled()
                with rootdk.torch.use():
                    assert routes(calls)
                assert routes(calls)
                assert not torch.backends.mha.get_fastpath_enabled()
                raise KeyError
            assert F.scaled_dot_product_attention is TORCHS_OWN
            assert torch.backends.mha.get_fastpath_enabled() == fast
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


def test_blocks_in_several_threads_leave_torch_as_it_was(calls: list[Any]) -> None:
    """Blocks that overlap without being nested: the last one out restores."""
    first_in, second_in = threading.Event(), threading.Event()
    left = threading.Event()

    def first() -> None:
        with rootdk.torch.use():
            first_in.set()
            second_in.wait(5)
        left.set()

    thread = threading.Thread(target=first)
    thread.start()
    first_in.wait(5)
    with rootdk.torch.use():
        second_in.set()
        left.wait(5)
        assert routes(calls)
    thread.join()
    assert F.scaled_dot_product_attention is TORCHS_OWN
    assert torch.backends.mha.get_fastpath_enabled()


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 17)

    def forward(self, tokens: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layers(self.embed(tokens), mask=mask, is_causal=True))


def trained(steps: int, dtype: Any) -> list[float]:
    torch.manual_seed(0)
    model = Tiny().to(dtype)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        start = torch.randint(17, (8, 1), generator=data)
        tokens = (start * 3 ** torch.arange(13)) % 17
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def test_training_stays_together() -> None:
    """200 steps from one seed: float64, so that rounding has no time to grow into another path."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine torch's threads wait for each other longer than this takes
    try:
        theirs = trained(200, torch.float64)
        with rootdk.torch.use():
            ours = trained(200, torch.float64)
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert ours[-1] < 0.1 * ours[0]
