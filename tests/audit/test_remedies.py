"""Remedies: after qk_clip_ the next forward's largest logit is tau, whatever the layout; after recommend_scale too."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import rootdk
from rootdk.audit import qk_clip_, recommend_scale, recommend_tau
from rootdk.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH, HEADS, D, N = 32, 4, 8, 24
TAU = 30.0


class Attention(nn.Module):
    """Attention with its projections in one of the known layouts.

    split, fused    two linear layers and one for v, or all three in one
    by_key_head     fused, key head by key head
    norm            "head": a norm over each head with one gain for all; "all": over all heads; "layer": with a bias
    """

    def __init__(self, kv_heads: int = HEADS, layout: str = "split", norm: str = "", bias: bool = True) -> None:
        super().__init__()
        self.kv_heads, self.layout = kv_heads, layout
        q, kv = HEADS * D, kv_heads * D
        if layout == "split":
            self.q_proj, self.k_proj = nn.Linear(WIDTH, q, bias=bias), nn.Linear(WIDTH, kv, bias=bias)
            self.v_proj = nn.Linear(WIDTH, kv, bias=bias)
        elif layout == "fused":
            self.qkv = nn.Linear(WIDTH, q + 2 * kv, bias=bias)
        else:
            self.query_key_value = nn.Linear(WIDTH, q + 2 * kv, bias=bias)
        if norm:
            kind = nn.LayerNorm if norm == "layer" else nn.RMSNorm
            sizes = (q, kv) if norm == "all" else (D, D)
            self.q_norm, self.k_norm = (kind(size) for size in sizes)
        self.norm = norm
        for parameter in self.parameters():
            parameter.data.normal_(std=0.5)

    def forward(self, x: Any) -> Any:
        kv = self.kv_heads * D
        if self.layout == "split":
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        elif self.layout == "fused":
            q, k, v = self.qkv(x).split([HEADS * D, kv, kv], dim=-1)
        else:
            group = HEADS // self.kv_heads
            whole = self.query_key_value(x).unflatten(-1, (self.kv_heads, group + 2, D))
            q, k, v = (part.flatten(2) for part in whole.split([group, 1, 1], dim=-2))
        if self.norm == "all":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.unflatten(-1, (-1, D)).transpose(1, 2) for part in (q, k, v))
        if self.norm in ("head", "layer"):
            q, k = self.q_norm(q), self.k_norm(k)
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)


class MultiHead(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)
        for parameter in self.parameters():
            parameter.data.normal_(std=0.5)
        self.other = options.get("kdim", WIDTH)

    def forward(self, x: Any) -> Any:
        return self.attn(x, x[..., : self.other], x[..., : self.other], need_weights=False)[0]


class Twice(nn.Module):
    """One module that runs twice, with a larger input the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()

    def forward(self, x: Any) -> Any:
        return self.attn(2 * x) + self.attn(x)


MODELS: dict[str, Any] = {
    "split": Attention,
    "split, no bias": lambda: Attention(bias=False),
    "split, grouped": lambda: Attention(2),
    "split, one key head": lambda: Attention(1),
    "fused": lambda: Attention(layout="fused"),
    "fused, grouped": lambda: Attention(2, "fused"),
    "by key head": lambda: Attention(layout="by key head"),
    "by key head, grouped": lambda: Attention(2, "by key head"),
    "nn.MultiheadAttention": MultiHead,
    "nn.MultiheadAttention, one more key": lambda: MultiHead(add_bias_kv=True),
    "nn.MultiheadAttention, apart": lambda: MultiHead(kdim=20, vdim=20),
    "norm of a head": lambda: Attention(norm="head"),
    "norm of a head, grouped": lambda: Attention(2, norm="head"),
    "norm of all heads": lambda: Attention(norm="all"),
    "norm of all heads, grouped": lambda: Attention(2, norm="all"),
    "norm with a bias": lambda: Attention(norm="layer"),
    "shared": Twice,
}


def looked_at(model: nn.Module, x: Any) -> Any:
    with torch.no_grad(), rootdk.watch(model) as watch:
        model(x)
    assert watch.unread == {}
    return watch


def inputs() -> Any:
    return 3 * torch.randn(2, N, WIDTH, generator=torch.Generator().manual_seed(0))


def largest(seen: Any) -> Any:
    return np.max([reading.metrics["max_score"] for reading in seen.readings.values()], axis=0)


@pytest.mark.parametrize("name", MODELS)
def test_the_next_forward_obeys(name: str) -> None:
    torch.manual_seed(1)
    model, x = MODELS[name](), inputs()
    before = largest(looked_at(model, x))
    tau = float(np.sort(before)[1] * 1.01)  # so that two heads are clipped and two are not
    values = {key: value.clone() for key, value in model.state_dict().items() if "v_proj" in key or "out_proj" in key}
    changed = qk_clip_(model, looked_at(model, x), tau=tau)
    after = largest(looked_at(model, x))
    # The weights are float32: a few dozen roundings on the way to a score.
    assert after.max() == pytest.approx(tau, rel=1e-5)
    (gamma,) = changed.values()
    one_gain = name.startswith("norm of a head") or name == "norm with a bias"
    expected = np.full(HEADS, tau / before.max()) if one_gain else np.minimum(1, tau / before)
    np.testing.assert_allclose(gamma, expected)
    np.testing.assert_allclose(after, expected * before, rtol=1e-4)
    for key, value in values.items():
        assert torch.equal(model.state_dict()[key], value)
    assert qk_clip_(model, looked_at(model, x), tau=tau * 1.0001) == {}


@pytest.mark.parametrize(
    "name", ["split, grouped", "fused, grouped", "by key head, grouped", "norm of all heads, grouped"]
)
def test_where_every_head_is_clipped_each_comes_out_at_tau(name: str) -> None:
    """Then the two key heads shrink by different factors, and each query head has to make up for its own."""
    torch.manual_seed(1)
    model, x = MODELS[name](), inputs()
    seen = looked_at(model, x)
    tau = float(largest(seen).min() / 4)
    roots = np.sqrt(qk_clip_(model, seen, tau=tau)["Attention"]).reshape(2, -1).max(axis=1)
    assert roots[0] != pytest.approx(roots[1], rel=1e-3)
    np.testing.assert_allclose(largest(looked_at(model, x)), tau, rtol=1e-4)


def test_both_sides_share_the_clip() -> None:
    torch.manual_seed(1)
    model, x = Attention(), inputs()
    q, k = model.q_proj.weight.clone(), model.k_proj.weight.clone()
    seen = looked_at(model, x)
    gamma = qk_clip_(model, seen, tau=largest(seen).min() / 4)["Attention"]
    roots = torch.from_numpy(np.sqrt(gamma)).float().repeat_interleave(D)[:, None]
    torch.testing.assert_close(model.q_proj.weight, q * roots)
    torch.testing.assert_close(model.k_proj.weight, k * roots)


def test_latent_attention_is_clipped_head_by_head() -> None:
    """The rotated keys are one for all heads: they stay, and a head's rotated queries take the whole factor."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.DeepseekV3Config(
        vocab_size=64, hidden_size=64, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
        topk_group=1, q_lora_rank=32, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
        first_k_dense_replace=2,
    )  # fmt: skip
    model = transformers.DeepseekV3ForCausalLM(config).eval()
    layer = "model.layers.1.self_attn"
    module = model.get_submodule(layer)
    with torch.no_grad():
        module.q_b_proj.weight.mul_(60)
    x = torch.randint(0, 64, (2, 40), generator=torch.Generator().manual_seed(0))
    seen = looked_at(model, x)
    before = seen.readings[layer].metrics["max_score"]
    tau = float(np.sort(before)[1] * 1.01)
    kept = {"shared keys": module.kv_a_proj_with_mqa.weight.clone(), "values": module.kv_b_proj.weight[16:28].clone()}
    gamma = qk_clip_(model, {layer: seen.readings[layer]}, tau=tau)[layer]
    after = looked_at(model, x).readings[layer].metrics["max_score"]
    np.testing.assert_allclose(gamma, np.minimum(1, tau / before))
    np.testing.assert_allclose(after, gamma * before, rtol=1e-5)
    assert torch.equal(module.kv_a_proj_with_mqa.weight, kept["shared keys"])
    assert torch.equal(module.kv_b_proj.weight[16:28], kept["values"])
    del config.qk_nope_head_dim, module.qk_nope_head_dim
    with pytest.raises(rootdk.ArgumentError, match=r"model: model.layers.1.self_attn must have 4 heads of qk_nope"):
        qk_clip_(model, {layer: seen.readings[layer]}, tau=0.1)


def test_cross_attention_of_gpt2_keeps_its_values() -> None:
    """Its queries have a projection of their own, and c_attn holds keys and values alone."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=64, n_head=4, n_layer=1, vocab_size=50, add_cross_attention=True)
    torch.manual_seed(0)
    model = transformers.GPT2Model(config).eval()
    cross = model.h[0].crossattention
    cross.q_attn.weight.data.mul_(300.0)
    tokens, encoded = torch.randint(0, 50, (1, 40)), torch.randn(1, 40, 64)
    weights = {name: cross.get_parameter(f"{name}.weight").detach().clone() for name in ("q_attn", "c_attn")}

    def scores() -> Any:
        with torch.no_grad(), rootdk.watch(model) as seen:
            model(tokens, encoder_hidden_states=encoded)
        return seen, seen.readings["h.0.crossattention"].metrics["max_score"]

    seen, before = scores()
    assert (before > 5.0).all()
    qk_clip_(model, seen, tau=5.0, layers=["h.0.crossattention"])
    assert scores()[1] == pytest.approx(5.0, rel=1e-4)
    assert torch.equal(cross.c_attn.weight[:, 64:], weights["c_attn"][:, 64:])
    assert not torch.equal(cross.q_attn.weight, weights["q_attn"])


def test_a_fused_projection_of_another_size_is_refused() -> None:
    """Too few rows for 16 heads, or one too many: which of them are keys is not known."""

    class Other(nn.Module):
        def __init__(self, rows: int) -> None:
            super().__init__()
            self.in_proj = nn.Linear(8, rows)

        def forward(self, x: Any) -> Any:
            return torch.softmax(100 * self.in_proj(x)[:, None, :, :1] * torch.randn(1, 16, 40, 40), dim=-1)

    for rows in (8, 49):
        model = nn.Sequential(Other(rows))
        seen = looked_at(model, torch.randn(1, 40, 8))
        assert "weight_size" not in seen.report().layers[0].facts
        with pytest.raises(ArgumentError, match=r"^model: 0 must have projections of 16 heads of one size, got"):
            qk_clip_(model, seen, tau=1.0)


def test_a_gain_that_is_one_plus_the_weight() -> None:
    """Gemma's norm multiplies by 1 + weight."""

    class Gemma3RMSNorm(nn.RMSNorm):
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.rms_norm(x, self.normalized_shape) * (1 + self.weight)

    torch.manual_seed(1)
    model, x = Attention(norm="head"), inputs()
    model.q_norm, model.k_norm = Gemma3RMSNorm(D), Gemma3RMSNorm(D)
    for norm in (model.q_norm, model.k_norm):
        norm.weight.data.normal_()
    seen = looked_at(model, x)
    bound = seen.report().layers[0].facts["gain_bound"]
    assert bound == pytest.approx(
        D**0.5 * float((1 + model.q_norm.weight.data).abs().max() * (1 + model.k_norm.weight.data).abs().max())
    )
    tau = largest(seen).max() / 3
    qk_clip_(model, seen, tau=tau)
    assert largest(looked_at(model, x)).max() == pytest.approx(tau, rel=1e-5)


def test_a_gain_bound_is_one_and_no_more_than_a_note() -> None:
    torch.manual_seed(1)
    model, x = Attention(norm="head"), inputs()
    for gain in (5.0, 30.0):
        for norm in (model.q_norm, model.k_norm):
            norm.weight.data.fill_(gain)
        seen = looked_at(model, x)
        report = seen.report()
        bound = report.layers[0].facts["gain_bound"]
        assert largest(seen).max() <= bound == pytest.approx(D**0.5 * gain**2)
        findings = [finding for finding in report.findings if finding.metric == "gain_bound"]
        assert [finding.severity for finding in findings] == {5.0: [], 30.0: ["note"]}[gain]
        assert all(f"largest logit of the run is {largest(seen).max():.3g}" in finding.remedy for finding in findings)


@pytest.mark.parametrize("sign", [-1.0, 0.0])
def test_a_largest_logit_of_zero_or_less_clips_nothing(sign: float) -> None:
    torch.manual_seed(1)
    model = Attention(bias=False)
    with torch.no_grad():
        model.q_proj.weight[:D] = sign * model.k_proj.weight[:D]
    x = inputs()[:, :1].expand(2, N, WIDTH)  # every score of a head is alike: sign |k|^2
    seen = looked_at(model, x)
    assert seen.readings["Attention"].metrics["max_score"][0] <= 0
    assert largest(seen).max() > 1
    gamma = qk_clip_(model, seen, tau=1.0)["Attention"]
    assert gamma[0] == 1.0
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert largest(looked_at(model, x)).max() <= 1.0 + 1e-5


def test_training_goes_on_after_a_clip() -> None:
    torch.manual_seed(1)
    model, x = Attention(2), inputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with rootdk.watch(model) as watch:
        for _ in range(3):
            model(x).square().mean().backward()
            optimizer.step()
            qk_clip_(model, watch, tau=TAU)
            optimizer.zero_grad()
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())
    # The clip follows the step and goes by the forward before it, so what the step moves comes on top.
    assert largest(looked_at(model, x)).max() == pytest.approx(TAU, rel=0.05)


def test_recommend_scale() -> None:
    class Scaled(Attention):
        scale = 1.0

        def forward(self, x: Any) -> Any:
            split = [
                layer(x).unflatten(-1, (-1, D)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
            ]
            return scaled_dot_product_attention(*split, scale=self.scale)

    torch.manual_seed(1)
    model, x = Scaled(), inputs()
    for deviation in (1.0, 0.5):
        reading = looked_at(model, x).readings["Scaled"]
        model.scale = recommend_scale(reading, deviation)
        reached = looked_at(model, x).readings["Scaled"].metrics["logit_deviation"]
        assert np.median(reached) == pytest.approx(deviation, rel=1e-4)


def test_recommend_tau_leaves_no_head_wider() -> None:
    torch.manual_seed(1)
    model, x = Attention(), inputs()
    seen = looked_at(model, x)
    assert (seen.readings["Attention"].metrics["logit_deviation"] > 2).any()
    qk_clip_(model, seen, tau=recommend_tau(seen.readings["Attention"], 2.0))
    reached = looked_at(model, x).readings["Attention"].metrics["logit_deviation"]
    assert (reached <= 2.0 * (1 + 1e-5)).all()
    assert reached.max() == pytest.approx(2.0, rel=1e-5)


class Beside(torch.nn.Module):
    """Two layers of the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Attention(), Attention()])

    def forward(self, x: Any) -> Any:
        return [layer(x) for layer in self.layers]


def test_layers_and_the_deviation_that_they_should_have() -> None:
    torch.manual_seed(1)
    model, x = Beside(), inputs()
    seen = looked_at(model, x)
    assert list(qk_clip_(model, seen, 1.0, layers=["layers.1"])) == ["layers.1"]
    again = looked_at(model, x)
    assert (again.readings["layers.0"].metrics["max_score"] == seen.readings["layers.0"].metrics["max_score"]).all()
    assert again.readings["layers.1"].metrics["max_score"].max() == pytest.approx(1.0, rel=1e-4)
    assert list(qk_clip_(model, seen, deviation=2, layers=["layers.0"])) == ["layers.0"]
    assert looked_at(model, x).readings["layers.0"].metrics["logit_deviation"].max() == pytest.approx(2.0, rel=1e-5)


def test_arguments() -> None:
    torch.manual_seed(1)
    model, x = Attention(), inputs()
    seen = looked_at(model, x)
    reading = seen.readings["Attention"]

    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mystery = nn.Linear(D, D)

        def forward(self, x: Any) -> Any:
            return scaled_dot_product_attention(9 * x, 9 * x, x)

    strange = Strange()

    class Adapted(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj.base_layer = nn.Identity()

    class Uneven(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.k_proj = nn.Linear(WIDTH, 12)

    class Whole(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.k_proj.weight = nn.Parameter(torch.ones(32, 32, dtype=torch.int8), requires_grad=False)

    class CodeGenAttention(Attention):
        pass

    unusable = [
        (CodeGenAttention, "model: Attention must keep q, k and v in a known order, got CodeGenAttention"),
        (Adapted, "model: Attention must hold its weights alone, got an adapter on q_proj: merge it first"),
        (Uneven, r"model: Attention must have projections of 4 heads of one size, got \(32, 32\) and \(12, 32\)"),
        (Whole, "model: Attention must have floating point weights, got torch.int8"),
    ]
    for kind, message in unusable:
        other = nn.ModuleDict({"Attention": kind()})
        with pytest.raises(rootdk.ArgumentError, match=message):
            qk_clip_(other, {"Attention": reading}, 1.0)
    heads = torch.randn(1, HEADS, N, D)
    bad: list[tuple[Any, type[Exception], str]] = [
        (lambda: qk_clip_(3, seen), rootdk.ArgumentTypeError, "model: must be a torch.nn.Module, got int"),
        (lambda: qk_clip_(model, [reading]), rootdk.ArgumentTypeError, "readings: must be a Watch or a mapping"),
        (
            lambda: qk_clip_(model, {"a": 1}),
            rootdk.ArgumentTypeError,
            "readings: must hold LayerReadings, got int at 'a'",
        ),
        (lambda: qk_clip_(model, {"a": reading}, 1.0), rootdk.ArgumentError, "readings: every layer must be a module"),
        (lambda: qk_clip_(model, seen, 0), rootdk.ArgumentError, "tau: must be a finite number > 0, got 0"),
        (
            lambda: qk_clip_(model, seen, 9, deviation=1),
            rootdk.ArgumentError,
            "tau: must not be given beside deviation",
        ),
        (lambda: qk_clip_(model, seen, layers=["h.7"]), rootdk.ArgumentError, "layers: must be a list of names"),
        (lambda: qk_clip_(model, seen, layers="Attention"), rootdk.ArgumentError, "layers: must be a list of names"),
        (lambda: qk_clip_(model, seen, "100"), rootdk.ArgumentTypeError, "tau: must be a number > 0, got '100'"),
        (
            lambda: qk_clip_(strange, looked_at(strange, heads), 1.0),
            rootdk.ArgumentError,
            "model: Strange must hold its projections by a known name .* got Strange with mystery",
        ),
        (lambda: recommend_scale(seen), rootdk.ArgumentTypeError, "reading: must be a LayerReading, got Watch"),
        (
            lambda: recommend_tau(reading, -1.0),
            rootdk.ArgumentError,
            "deviation: must be a finite number > 0, got -1.0",
        ),
    ]
    for call, kind, message in bad:
        with pytest.raises(kind, match=message):
            call()
    flat = looked_at(model, torch.zeros(1, N, WIDTH)).readings["Attention"]
    with pytest.raises(rootdk.ArgumentError, match="reading: must have scores that differ inside a row"):
        recommend_scale(flat)
