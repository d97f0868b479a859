"""Models of transformers, watched: nothing changes, every layer is read, and the numbers are those of their weights."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers_zoo
from attention_families import FAMILIES, RUNS, built, enlarge_query_, inputs, layer_of

import rootdk

transformers = pytest.importorskip("transformers")
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
PHASES = ("init", "trained", "any")


def trained_once(model: Any, given: dict[str, Any]) -> tuple[Any, ...]:
    torch.manual_seed(4)
    out = model(**given)[0]
    out.square().mean().backward()
    return out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(("name", "implementation"), RUNS)
def test_nothing_changes_and_every_layer_is_read(name: str, implementation: str) -> None:
    model, given = built(name, implementation), inputs(name)
    expected = trained_once(copy.deepcopy(model), given)
    before = AttentionInterface.get_interface, dict(ALL_ATTENTION_FUNCTIONS)
    with rootdk.watch(model) as watch:
        state = trained_once(model, given)
    assert all(torch.equal(a, b) for a, b in zip(state, expected, strict=True))
    assert (AttentionInterface.get_interface, dict(ALL_ATTENTION_FUNCTIONS)) == before
    assert model.config._attn_implementation == implementation
    assert watch.unread == {}
    assert len(watch.readings) == FAMILIES[name].attentions
    assert [layer_of(name, number) for number in range(3)] == list(watch.readings)[:3]
    assert {reading.route for reading in watch.readings.values()} == {FAMILIES[name].route or implementation}


def looked_at(model: Any, name: str, **options: Any) -> Any:
    with torch.no_grad(), rootdk.watch(model, **options) as watch:
        model(**inputs(name))
    assert watch.unread == {}
    return watch


@pytest.mark.parametrize("name", FAMILIES)
def test_healthy_at_first_then_one_layer_is_flagged_and_cleared(name: str) -> None:
    model = built(name).eval()
    fresh = looked_at(model, name)
    for phase in ("init", "any"):
        assert fresh.report(phase).verdict == "healthy", fresh.report(phase).findings
    changed = enlarge_query_(model, name)
    for options in ({}, {"rows": 32}):
        seen = looked_at(model, name, **options)
        for phase in PHASES:
            assert seen.report(phase).flagged == [changed]
    # The remedy that the findings name.
    seen = looked_at(model, name)
    assert all(
        "rootdk.audit." in finding.remedy for finding in seen.report("init").findings if finding.severity != "note"
    )
    reading = seen.readings[changed]
    tau = rootdk.audit.recommend_tau(reading)
    rootdk.audit.qk_clip_(model, {changed: reading}, tau=tau)
    after = looked_at(model, name)
    for phase in ("init", "any"):
        assert after.report(phase).verdict == "healthy", after.report(phase).findings
    largest = after.readings[changed].metrics["max_score"]
    if FAMILIES[name].route != "softmax":  # there the logits hold a position bias that is not clipped
        # float32 weights and activations: some hundred roundings on the way.
        assert largest.max() == pytest.approx(tau, rel=1e-4)


@pytest.mark.parametrize(("name", "implementation"), RUNS)
def test_the_second_of_two_reports_on_one_model_is_the_first(name: str, implementation: str) -> None:
    """On sdpa and on eager the same numbers, to the rounding of their scores."""
    if len(FAMILIES[name].own) == 1 or implementation == "sdpa":
        return
    first, second = (looked_at(built(name, way).eval(), name) for way in ("sdpa", "eager"))
    for layer, reading in first.readings.items():
        other = second.readings[layer]
        assert reading.scale == other.scale
        assert reading.mismatch < 1e-5
        assert other.mismatch < 1e-5
        for metric, values in reading.metrics.items():
            np.testing.assert_allclose(
                values, other.metrics[metric], rtol=1e-3, atol=1e-4, err_msg=f"{layer}, {metric}"
            )


EAGER = [(name, padding) for name in transformers_zoo.FAMILIES for padding in transformers_zoo.paddings(name)]


@torch.no_grad()
@pytest.mark.parametrize(("name", "padding"), EAGER)
def test_readings_are_those_of_the_weights_that_the_model_returns(name: str, padding: str) -> None:
    """Caps, sinks, position biases, windows, groups and padding: eager models hand out what they computed."""
    model = transformers_zoo.built(name, "eager", torch.float32).eval()
    given, _ = transformers_zoo.inputs(name, padding)
    with rootdk.watch(model) as watch:
        out = model(**given, output_attentions=True)
    assert watch.unread == {}
    if name == "t5":
        parts = zip(out.decoder_attentions, out.cross_attentions, strict=True)
        weights = [*out.encoder_attentions, *(weight for pair in parts for weight in pair)]
    else:
        weights = list(out.attentions)
    assert len(weights) == len(watch.readings) == transformers_zoo.FAMILIES[name].attentions
    for reading, p in zip(watch.readings.values(), weights, strict=True):
        rows = reading.reading.keys > 0  # a row of padding may see nothing, and the model then gives equal weights
        assert (reading.reading.has_sinks) == (name == "gpt_oss")
        wide = p.double()
        torch.testing.assert_close(
            reading.reading.p_squared.double()[rows], wide.square().sum(-1)[rows], rtol=1e-4, atol=1e-6
        )
        torch.testing.assert_close(
            reading.reading.top_probability.double()[rows], wide.amax(-1)[rows], rtol=1e-4, atol=1e-6
        )
        torch.testing.assert_close(
            reading.reading.sink_mass.double()[rows], (1 - wide.sum(-1))[rows], rtol=1e-4, atol=1e-5
        )
        first = int((wide[-1][:, rows[-1, 0]].sum(dim=(0, 1)) > 0).int().argmax())
        last = rows[-1, 0, -1]
        torch.testing.assert_close(
            reading.first_weight[-1, :, -1].double() * last, wide[-1, :, -1, first] * last, rtol=1e-4, atol=1e-6
        )
    if name == "gemma2":
        assert all((reading.metrics["cap_ratio"] > 0.5).all() for reading in watch.readings.values())
        reading = next(iter(watch.readings.values()))
        assert (reading.metrics["max_score"] > reading.metrics["max_logit"]).all()
        assert (reading.metrics["max_logit"] < reading.softcap).all()


def test_generation_with_a_cache_is_read_step_by_step() -> None:
    model = built("llama").eval()
    given = {"input_ids": inputs("llama")["input_ids"][:, :9]}
    expected = model.generate(**given, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    with rootdk.watch(model) as watch:
        tokens = model.generate(**given, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert torch.equal(tokens, expected)
    assert watch.step == 5
    reading = watch.readings[layer_of("llama")]
    assert (reading.n_query, reading.n_key) == (1, 13)
    assert reading.reading.keys.unique().tolist() == [13]


def test_gradient_checkpointing_of_the_library() -> None:
    model, given = built("llama"), inputs("llama")
    expected = trained_once(copy.deepcopy(model), given)
    model.gradient_checkpointing_enable()
    with rootdk.watch(model) as watch:
        state = trained_once(model, given)
    torch.testing.assert_close(state, expected)
    assert watch.step == 1
    assert len(watch.readings) == 3


def test_a_model_on_rootdk_is_read_too() -> None:
    model = transformers_zoo.built("gemma2", rootdk.torch.register_transformers(), torch.float32).eval()
    eager = transformers_zoo.built("gemma2", "eager", torch.float32).eval()
    given, _ = transformers_zoo.inputs("gemma2", "left")
    readings = []
    for network in (model, eager):
        with torch.no_grad(), rootdk.watch(network) as watch:
            network(**given)
        readings.append(list(watch.readings.values()))
    for ours, theirs in zip(*readings, strict=True):
        assert (ours.route, theirs.route) == ("transformers", "eager")
        assert ours.mismatch < 1e-5
        np.testing.assert_allclose(ours.metrics["max_score"], theirs.metrics["max_score"], rtol=1e-3)
