"""rootdk.watch: every way of attending is seen once, the forward stays as it is, and nothing is left behind."""

import copy
import pickle
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from watched_models import NAMES, WAYS, WIDTH, MultiHead, by_attribute, by_name, model, tokens, torch_as_it_was

import rootdk
import rootdk.torch

pytestmark = pytest.mark.usefixtures("one_thread")
functional = torch.nn.functional


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """After every test, whatever it did."""
    with torch_as_it_was():
        yield


def hooks(of: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in of.modules())


def state_after_a_step(of: nn.Module, x: Any, **options: Any) -> tuple[Any, ...]:
    """Output, gradients and the next random number."""
    torch.manual_seed(5)
    of.zero_grad()
    out = of(x, **options)
    out.square().sum().backward()
    return out.detach(), *(p.grad.clone() for p in of.parameters() if p.grad is not None), torch.rand(3)


def assert_same_bits(state: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert len(state) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(state, expected, strict=True))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [None, 5])
def test_every_way_is_seen_once_and_trains_the_same(way: str, rows: int | None) -> None:
    watched, x = model(WAYS[way]), tokens()
    expected = state_after_a_step(copy.deepcopy(watched), x)
    with rootdk.watch(watched, rows=rows) as watch:
        state = state_after_a_step(watched, x)
    assert_same_bits(state, expected)
    assert list(watch.readings) == NAMES
    assert watch.unread == {}
    assert watch.step == 1
    assert hooks(watched) == 0
    for reading in watch.readings.values():
        assert reading.reading.shape == (2, 4, rows or 20)
        assert reading.sampled == (rows is not None)
        assert not reading.reading.variance.requires_grad


@pytest.mark.parametrize("watched", [model(), nn.MultiheadAttention(WIDTH, 4, batch_first=True)])
def test_a_pause_counts_and_does_not_read(watched: nn.Module) -> None:
    x = tokens()
    given = (x, x, x) if isinstance(watched, nn.MultiheadAttention) else (x,)
    with rootdk.watch(watched) as watch:
        for paused in (True, False, True):
            watch.paused = paused
            watched(*given)
    assert watch.step == 3
    assert {reading.step for reading in watch.readings.values()} == {1}


@pytest.mark.parametrize("rows", [None, 5])
def test_all_ways_read_the_same_numbers(rows: int | None) -> None:
    readings = {}
    for way, how in WAYS.items():
        with rootdk.watch(model(how), rows=rows) as watch:
            watch.model(tokens())
        readings[way] = watch.readings[NAMES[1]]
    for reading in readings.values():
        for metric in (
            "logit_deviation",
            "max_logit",
            "entropy_ratio",
            "jacobian_trace",
            "min_log_sum_exp",
            "sink_mass",
        ):
            torch.testing.assert_close(
                reading.metrics[metric], readings["attribute"].metrics[metric], rtol=2e-5, atol=2e-6, msg=metric
            )
        assert reading.reading.keys.tolist() == readings["attribute"].reading.keys.tolist()


def test_the_reading_is_that_of_measure() -> None:
    """Bit by bit what rootdk.measure says of the q and k that the layer computes."""
    watched, x = model(), tokens()
    with rootdk.watch(watched) as watch, torch.no_grad():
        watched(x)
        inner = watched.blocks[0]
        query, key, value = inner.attention.qkv(inner.norm(x)).unflatten(-1, (3, 4, -1)).transpose(1, 3).unbind(2)
    expected = rootdk.measure(query, key, value, causal=True, scale=8**-0.5)[1]
    reading = watch.readings[NAMES[0]]
    for field in ("log_sum_exp", "max", "min", "mean", "variance", "entropy", "p_squared", "p_cubed", "keys"):
        assert torch.equal(getattr(reading.reading, field), getattr(expected, field)), field
    assert reading.scale == reading.scale_given == 8**-0.5
    assert reading.mismatch < 1e-6
    logits = query @ key.transpose(-1, -2) * reading.scale
    weights = torch.softmax(logits.masked_fill(torch.ones(20, 20).triu(1).bool(), -torch.inf), dim=-1)
    torch.testing.assert_close(reading.first_weight, weights[..., 0])


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("masks", ["none", "padding", "both"])
@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}, {"dropout": 0.3}], ids=str)
def test_multi_head_attention(need_weights: bool, training: bool, masks: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    watched, x = MultiHead(need_weights, **options).train(training), tokens()
    given: dict[str, Any] = {}
    if masks != "none":
        given["key_padding_mask"] = torch.arange(20).expand(2, 20) >= torch.tensor([[20], [13]])
    if masks == "both":
        given["attn_mask"] = torch.ones(20, 20, dtype=torch.bool).triu(1)
    expected = state_after_a_step(copy.deepcopy(watched), x, **given)
    with torch.no_grad():
        evaluated = watched(x, **given) if not training else None
    with rootdk.watch(watched) as watch:
        state = state_after_a_step(watched, x, **given)
        if not training:
            with torch.no_grad():
                assert torch.equal(watched(x, **given), evaluated)
    assert_same_bits(state, expected)
    assert list(watch.readings) == ["attn"]
    assert watch.unread == {}
    more = 2 if "add_bias_kv" in options else 0
    keys = watch.readings["attn"].reading.keys[:, 0, -1]
    assert keys.tolist() == [20 + more, (20 if masks == "none" else 13) + more]
    assert watch.readings["attn"].reading.keys[0, 0, 0] == (1 if masks == "both" else 20) + more


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_the_fused_path_of_the_encoder_stays_and_is_read(norm_first: bool, padded: bool) -> None:
    """Switched off, padding would come out as numbers in place of zeros."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 48, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    for parameter in encoder.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    x = tokens()
    padding = torch.arange(20).expand(2, 20) >= torch.tensor([[20], [13]]) if padded else None
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)
        with rootdk.watch(encoder) as watch:
            out = encoder(x, src_key_padding_mask=padding)
    assert torch.equal(out, expected)
    fused = {reading.route for reading in watch.readings.values()}
    assert fused == {"fused"}
    assert list(watch.readings) == ["layers.0.self_attn", "layers.1.self_attn"]
    # The same layers, not fused: with a gradient torch takes the other path.
    with rootdk.watch(encoder) as slow:
        encoder(x, src_key_padding_mask=padding)
    for name, reading in watch.readings.items():
        assert slow.readings[name].route == "sdpa"
        seen_keys = reading.reading.keys > 0
        other = slow.readings[name].reading
        assert int(seen_keys.sum()) == (4 * 33 if padded and not norm_first else 4 * 40)
        torch.testing.assert_close(reading.reading.entropy[seen_keys], other.entropy[seen_keys], rtol=1e-4, atol=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("norm_first", [True, False])
def test_nested_tensors_in_the_fused_path(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 48, batch_first=True, norm_first=norm_first).eval()
    x = tokens()
    nested = torch.nested.nested_tensor([x[0], x[1, :13]])
    with torch.no_grad(), rootdk.watch(layer) as watch:
        layer(nested)
        whole = watch.readings["self_attn"].reading
        layer(x[1:, :13])
    assert watch.unread == {}
    assert whole.keys[:, 0, 0].tolist() == [20, 13]
    alone = watch.readings["self_attn"].reading
    torch.testing.assert_close(whole.entropy[1:, :, :13], alone.entropy)


def test_a_lone_encoder_layer_keeps_its_fused_path() -> None:
    torch.manual_seed(0)
    layer, x = nn.TransformerEncoderLayer(WIDTH, 4, 48, batch_first=True).eval(), tokens()
    with torch.no_grad():
        expected = layer(x)
        with rootdk.watch(layer) as watch:
            assert hooks(layer) == 0  # with one, torch would leave the path
            assert torch.equal(layer(x), expected)
            assert torch.equal(layer(x), expected)
    assert watch.step == 2
    assert watch.readings["self_attn"].route == "fused"


@pytest.mark.parametrize("training", [True, False])
def test_decoder_with_cross_attention(training: bool) -> None:
    torch.manual_seed(0)
    whole = nn.Transformer(WIDTH, 4, 1, 1, 48, batch_first=True).train(training)
    x, y = tokens(), tokens(n=7)
    torch.manual_seed(2)
    expected = whole(x, y)
    torch.manual_seed(2)
    with rootdk.watch(whole) as watch:
        assert torch.equal(whole(x, y), expected)
    names = ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"]
    assert list(watch.readings) == names
    assert [watch.readings[name].n_key for name in names] == [20, 7, 20]


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_is_counted_once(reentrant: bool) -> None:
    watched, x = model(saved=reentrant), tokens().requires_grad_()
    expected = state_after_a_step(copy.deepcopy(watched), x)
    heard = []
    with rootdk.watch(watched) as watch:
        keep = watch._read
        watch._read = lambda *call: heard.append(call[0]) or keep(*call)  # type: ignore[method-assign]
        state = state_after_a_step(watched, x)
    assert_same_bits(state, expected)
    assert heard == NAMES
    assert watch.step == 1


def test_every_kth_forward_is_read() -> None:
    watched = model()
    with rootdk.watch(watched, every=3) as watch:
        for step in range(7):
            watched(tokens())
            assert watch.readings[NAMES[0]].step == step // 3 * 3
    assert watch.step == 7
    assert [step for step, *_ in watch.trend.points[NAMES[0]]] == [0, 3, 6]


def test_between_the_steps_nothing_is_done() -> None:
    watched = model(by_name)
    with rootdk.watch(watched, every=100) as watch:
        watched(tokens())
        spent = watch.seconds
        assert spent > 0
        for _ in range(5):
            watched(tokens())
            assert torch._C._len_torch_function_stack() == 0
        assert watch.seconds == spent


def test_a_part_that_is_called_alone_is_read_too() -> None:
    watched, x = model(), tokens()
    with rootdk.watch(watched) as watch:
        for _ in range(2):
            for block in watched.blocks:
                block(x)
    assert list(watch.readings) == NAMES
    assert watch.step == 2


def test_other_models_are_not_read() -> None:
    watched, other = model(), model()
    with rootdk.watch(watched) as watch:
        other(tokens())
    assert watch.readings == {}
    assert watch.step == 0


def test_shared_layers_are_told_apart() -> None:
    watched = model()
    watched.blocks = nn.ModuleList([watched.blocks[0]] * 3)
    with rootdk.watch(watched) as watch:
        watched(tokens())
    assert list(watch.readings) == [NAMES[0], f"{NAMES[0]}#2", f"{NAMES[0]}#3"]
    assert [reading.name for reading in watch.readings.values()] == list(watch.readings)


@pytest.mark.parametrize("way", WAYS)
def test_nested_watches_each_read_once(way: str) -> None:
    watched = model(WAYS[way])
    with rootdk.watch(watched) as outer:
        with rootdk.watch(watched) as inner, rootdk.watch(watched.blocks[1]) as part:
            watched(tokens())
        watched(tokens())
    assert list(outer.readings) == list(inner.readings) == NAMES
    assert list(part.readings) == ["attention"]
    assert (outer.step, inner.step, part.step) == (2, 1, 1)


def test_watches_may_end_in_any_order() -> None:
    watched = model()
    first, second = rootdk.watch(watched), rootdk.watch(watched)
    first.close()
    watched(tokens())
    assert (first.step, second.step) == (0, 1)
    second.close()
    second.close()
    assert hooks(watched) == 0


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_forward_that_fails(error: type[BaseException]) -> None:
    """An interrupt runs no hook, so the next forward and the end of the block must clear up."""
    failing = True

    def how(query: Any, key: Any, value: Any) -> Any:
        if failing:
            raise error("no")
        return by_attribute(query, key, value)

    watched = model(how)
    with rootdk.watch(watched) as watch:
        with pytest.raises(error, match="no"):
            watched(tokens())
        failing = False
        watched(tokens())
        assert list(watch.readings) == NAMES
        failing = True
        with pytest.raises(error, match="no"):
            watched(tokens())
    assert hooks(watched) == 0


def test_a_failing_block_closes_the_watch() -> None:
    watched = model()
    seen = rootdk.watch(watched)

    def block() -> None:
        with seen:
            watched(tokens())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert not seen.open
    assert list(seen.readings) == NAMES


def test_a_copy_of_the_model_is_another_model() -> None:
    watched, x = model(), tokens()
    with rootdk.watch(watched) as watch:
        watched(x)
        for other in (copy.deepcopy(watched), pickle.loads(pickle.dumps(watched))):
            assert torch.equal(other(x), watched(x))
        assert watch.step == 3
        assert repr(watch) == "Watch(Model, 3 layers, step 3, open)"
        assert list(watch.readings) == NAMES


def test_together_with_use_in_any_order() -> None:
    """The model runs on rootdk and is read, whichever block is outside."""
    watched, x = model(), tokens()
    with rootdk.torch.use():
        expected = watched(x)
        with rootdk.watch(watched) as inside:
            assert torch.equal(watched(x), expected)
    with rootdk.watch(watched) as outside:
        with rootdk.torch.use():
            assert torch.equal(watched(x), expected)
        assert not torch.equal(watched(x), expected)
    assert list(inside.readings) == list(outside.readings) == NAMES


class Bare(nn.Module):
    """Attention and nothing else."""

    def forward(self, *given: Any, **options: Any) -> Any:
        return functional.scaled_dot_product_attention(*given, **options)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast_is_honoured(low: torch.dtype) -> None:
    """The reading is of q and k as the operator itself rounds them."""
    q, k, v = torch.randn(3, 2, 4, 20, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    bare = Bare()
    with torch.autocast("cpu", dtype=low):
        expected = bare(q, k, v)
        with rootdk.watch(bare) as watch:
            assert torch.equal(bare(q, k, v), expected)
    reading = watch.readings["Bare"]
    assert reading.dtype == str(low).removeprefix("torch.")
    assert ("bf16_spacing" in reading.metrics) == (low == torch.bfloat16)
    rounded = rootdk.measure(q.to(low), k.to(low), v.to(low))[1]
    assert torch.equal(reading.reading.max, rounded.max)
    assert reading.mismatch < 0.01


@pytest.fixture
def disguised(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put another function in the place of torch's, before a watch wraps it."""
    true = functional.scaled_dot_product_attention

    def put(make: Any) -> None:
        monkeypatch.setattr(functional, "scaled_dot_product_attention", make(true))

    yield put
    monkeypatch.undo()


def test_the_scale_is_measured(disguised: Any) -> None:
    """A function that is called with one scale and multiplies by another."""
    disguised(lambda true: lambda *given, **options: true(*given, **options | {"scale": 0.9}))
    watched = model()
    with rootdk.watch(watched) as watch:
        watched(tokens())
    for reading in watch.readings.values():
        assert reading.scale == pytest.approx(0.9, rel=1e-4)
        assert reading.scale_given == 8**-0.5
        assert reading.mismatch < 1e-5
        assert {"scale_doubt"} == {
            finding.metric for finding in watch.report().findings if finding.layer == reading.name
        }


def test_the_output_must_be_explained(disguised: Any) -> None:
    """A reading that is not what the layer computes says so: here the values are those of other keys."""
    disguised(lambda true: lambda q, k, v, is_causal: true(q, k, v.flip(-2), is_causal=is_causal))
    with rootdk.watch(model()) as watch:
        watch.model(tokens())
    assert {finding.metric for finding in watch.report().findings} == {"output_mismatch"}


def test_what_cannot_be_read_is_told_and_does_no_harm() -> None:
    watched = model().to("meta")
    with rootdk.watch(watched) as watch:
        assert watched(tokens().to("meta")).shape == (2, 20, WIDTH)
    assert watch.readings == {}
    assert set(watch.unread) == set(NAMES)
    assert watch.report().to_dict()["unread"][NAMES[0]] == "its tensors are meta"
    watched = model()
    with rootdk.watch(watched) as watch:
        torch.func.vmap(watched)(tokens()[None])
    assert watch.unread[NAMES[0]] == "a transform of torch.func is at work"


def test_a_reading_that_fails_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    from rootdk.audit.watching import handle

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("no numbers")

    monkeypatch.setattr(handle, "read", broken)
    watched, x = model(), tokens()
    expected = watched(x)
    with rootdk.watch(watched) as watch:
        assert torch.equal(watched(x), expected)
    assert watch.unread[NAMES[0]] == "ZeroDivisionError: no numbers"
    assert [finding.metric for finding in watch.report().findings] == ["layers_read"], (
        "a gate must not pass what was not read"
    )
    assert NAMES[0] in watch.report().to_dict()["unread"]


def test_a_model_that_runs_in_another_thread() -> None:
    watched, x = model(by_name), tokens()
    with rootdk.watch(watched) as watch:
        thread = threading.Thread(target=watched, args=(x,))
        thread.start()
        thread.join()
        assert torch._C._len_torch_function_stack() == 0
    assert list(watch.readings) == NAMES


def test_inference_mode_and_masks_that_layers_share() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Bare(), Bare()

        def forward(self, x: Any, mask: Any) -> Any:
            x = self.first(x, x, x, attn_mask=mask)
            if not mask.is_inference():
                mask[..., 5:] = -torch.inf
            return self.second(x, x, x, attn_mask=mask)

    x = torch.randn(2, 4, 20, 8)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode(), rootdk.watch(Masked()) as watch:
            mask = torch.zeros(20, 20).masked_fill(torch.ones(20, 20).triu(1).bool(), -torch.inf)
            watch.model(x, mask)
        assert watch.unread == {}
        keys = [reading.reading.keys[0, 0, -1].item() for reading in watch.readings.values()]
        assert keys == ([20, 20] if mode is torch.inference_mode else [20, 5])


def test_shapes_without_heads_or_batch() -> None:
    for shape in ((12, 8), (3, 12, 8), (2, 3, 12, 8), (2, 2, 3, 12, 8)):
        with rootdk.watch(Bare()) as watch:
            watch.model(*torch.randn(3, *shape).unbind(0))
        assert watch.readings["Bare"].heads == (shape[-3] if len(shape) > 2 else 1)


class Noisy(nn.Module):
    """Attention between a dropout and a running mean: a forward that is made twice must leave no trace."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(40)

    def forward(self, x: Any, cache: list[Any] | None = None) -> Any:
        x = nn.functional.dropout(self.norm(x), 0.1)
        if cache is not None:
            cache.append(1)
        return self.attn(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("way", ["whole", "in place", "a part"])
def test_a_compiled_model_is_read_and_its_forward_stays(way: str) -> None:
    def made() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(Noisy())
        if way == "whole":
            return torch.compile(model, backend="eager")
        if way == "in place":
            model.compile(backend="eager")
        else:
            model[0] = torch.compile(model[0], backend="eager")
        return model

    x = torch.randn(2, 40, 16, requires_grad=True)
    plain, watched = made(), made()
    for training in (True, False):
        plain.train(training), watched.train(training)
        torch.manual_seed(1)
        expected = plain(x)
        torch.manual_seed(1)
        with rootdk.watch(watched) as watch:
            out = watched(x)
        assert torch.equal(out, expected)
        assert out.requires_grad
        for name, buffer in plain.state_dict().items():
            assert torch.equal(buffer, watched.state_dict()[name]), name
        assert list(watch.readings) == ["0.attn"]
        assert (watch.step, watch.unread) == (1, {})
    assert set(rootdk.audit.qk_clip_(watched, watch, tau=1e-3)) == {"0.attn"}


def test_an_argument_that_a_forward_changes_is_changed_once() -> None:
    model, cache = torch.compile(Noisy(), backend="eager"), []
    with rootdk.watch(model) as watch:
        model(torch.randn(2, 40, 16), cache)
    assert cache == [1]
    assert list(watch.readings) == ["attn"]


def test_a_watch_that_read_nothing_says_so() -> None:
    inside = model()
    compiled = torch.compile(inside, backend="eager")
    unseen = "no attention was read: .* did not run .* watch what torch.compile returned"
    with pytest.warns(RuntimeWarning, match=unseen), rootdk.watch(inside):
        compiled(tokens())
    unknown = "no attention was read: Linear attends in no way that is known"
    with pytest.warns(RuntimeWarning, match=unknown), rootdk.watch(nn.Linear(2, 2)) as watch:
        watch.model(torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with rootdk.watch(inside):
            inside(tokens())
        with pytest.raises(KeyError), rootdk.watch(inside):  # the error is what counts
            raise KeyError


def test_arguments() -> None:
    bad: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (3, {}, rootdk.ArgumentTypeError, "model: must be a torch.nn.Module, got int"),
        (model(), {"every": 0}, rootdk.ArgumentError, "every: must be an int from 1 to 2147483647, got 0"),
        (model(), {"rows": 2.5}, rootdk.ArgumentTypeError, "rows: must be an int from 1 to 2147483647, got 2.5"),
    ]
    for given, options, kind, message in bad:
        with pytest.raises(kind, match=message):
            rootdk.watch(given, **options)
    with (
        rootdk.watch(model()) as watch,
        pytest.raises(rootdk.ArgumentError, match="phase: must be 'init', 'trained' or"),
    ):
        watch.report("old")
