"""Models of the transformers library on rootdk: logits, gradients, generation, and what they ask of their attention.

Numbers and tokens are those of their own attention, with a key cache too; an option is carried out or refused.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import whole_models
from transformers_zoo import (
    FAMILIES,
    ROUTES,
    built,
    inputs,
    judged,
    on_rootdk,
    outcome,
    own_errors,
    paddings,
    transformers,
)
from whole_models import UNITS, assert_within, budget, errors

import rootdk.torch
from rootdk.torch import functional

pytestmark = pytest.mark.usefixtures("one_thread")
PADDED_ROUTES = [(name, padding, route) for name, route in ROUTES for padding in paddings(name)]
TYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def assert_judged(result: dict[str, Any], name: str, padding: str, dtype: torch.dtype) -> None:
    assert_within(errors(result, judged(name, padding)), own_errors(name), dtype)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_judge_is_the_model(name: str) -> None:
    """float64 next to the model's own float32: no more apart than a thousand roundings, far less than any option."""
    assert max(own_errors(name)) < 1000 * UNITS[torch.float32]
    if "sdpa" in FAMILIES[name].own:
        for padding in paddings(name):
            assert_judged(outcome(built(name, "sdpa"), name, padding), name, padding, torch.float64)


@TYPES
@pytest.mark.parametrize(("name", "padding", "route"), PADDED_ROUTES)
def test_logits_and_gradients(routed: list[dict[str, Any]], name: str, padding: str, route: str, dtype: Any) -> None:
    with on_rootdk(name, route, dtype) as model:
        result = outcome(model, name, padding)
    assert len(routed) == FAMILIES[name].attentions
    assert_judged(result, name, padding, dtype)


@pytest.mark.parametrize(("name", "route"), ROUTES)
def test_recomputed_in_the_backward_pass(routed: list[dict[str, Any]], name: str, route: str) -> None:
    with on_rootdk(name, route) as model:
        model.gradient_checkpointing_enable()
        result = outcome(model, name, "none")
    assert len(routed) == 2 * FAMILIES[name].attentions
    assert_judged(result, name, "none", torch.float64)


STEPS = 8
GENERATORS = [(name, route) for name, route in ROUTES if FAMILIES[name].generates]
DECODERS = [(name, route) for name, route in GENERATORS if name != "t5"]


def generated(model: Any, name: str, padding: str, cache: str) -> tuple[Any, Any]:
    """The tokens, and the logits that each new one was picked from, (rows, steps, vocabulary)."""
    given, _ = inputs(name, padding)
    given.pop("decoder_input_ids", None)
    options = {
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
        "cache_implementation": cache,
    }
    out = model.eval().generate(**given, **options, min_new_tokens=STEPS, max_new_tokens=STEPS)
    return out.sequences, torch.stack(out.logits, dim=1)


def assert_close(logits: Any, expected: Any, name: str) -> None:
    error = float((logits - expected).abs().max() / expected.abs().max())
    allowed = budget(own_errors(name)[0], torch.float64)
    assert error <= allowed, f"logits: error {error:.3g} above the budget {allowed:.3g}"


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize(("name", "route"), GENERATORS)
def test_greedy_tokens(routed: list[dict[str, Any]], name: str, route: str, padding: str, cache: str) -> None:
    expected, expected_logits = generated(built(name, "textbook"), name, padding, cache)
    assert not routed
    with on_rootdk(name, route) as model:
        tokens, logits = generated(model, name, padding, cache)
    # T5 runs its encoder once, two of the six calls.
    once = 2 if name == "t5" else 0
    assert len(routed) == once + STEPS * (FAMILIES[name].attentions - once)
    assert torch.equal(tokens, expected)
    assert_close(logits, expected_logits, name)


@torch.no_grad()
@pytest.mark.parametrize(("name", "route"), DECODERS)
@pytest.mark.parametrize("padding", ["none", "left"])
def test_a_prompt_in_two_parts(routed: list[dict[str, Any]], name: str, route: str, padding: str) -> None:
    """Several queries over a cache that is not empty: neither the whole is causal nor each row sees everything."""
    given, real = inputs(name, padding)
    tokens = given["input_ids"]
    mask = given.get("attention_mask", torch.ones_like(tokens))
    cut = 6
    with on_rootdk(name, route) as model:
        model.eval()
        first = model(input_ids=tokens[:, :cut], attention_mask=mask[:, :cut], use_cache=True)
        past = first.past_key_values
        second = model(input_ids=tokens[:, cut:], attention_mask=mask, past_key_values=past)
    assert len(routed) == 2 * FAMILIES[name].attentions
    logits = torch.cat([first.logits, second.logits], dim=1)[real]
    assert_close(logits, judged(name, padding)["logits"], name)


DROPOUT = {"bert": "attention_probs_dropout_prob", "gpt2": "attn_pdrop", "t5": "dropout_rate",
           "vit": "attention_probs_dropout_prob"}  # fmt: skip
CARRIED = {"attention_mask", "dropout", "scaling", "is_causal", "softcap", "s_aux", "position_bias",
           "cu_seq_lens_q", "cu_seq_lens_k"}  # fmt: skip
# The window is in the mask, and the others say how to compute and not what.
WITHOUT_EFFECT = {"sliding_window", "max_length_q", "max_length_k", "position_ids", "deterministic"}


@pytest.mark.parametrize(("name", "route"), [(n, r) for n, r in ROUTES if n not in {"bert", "t5", "vit"}])
def test_sequences_packed_into_one_row(routed: list[dict[str, Any]], name: str, route: str) -> None:
    """Positions that start again and no mask: transformers tells the sequences apart in the mask that it makes."""
    given, real = inputs(name, "none")
    positions = torch.cat([torch.arange(6), torch.arange(real.shape[1] - 6)])
    given |= {"position_ids": positions.expand(real.shape), "use_cache": False}
    judge = built(name, "textbook")
    expected = whole_models.outcome(judge, judge(**given).logits[real])
    assert errors(expected, judged(name, "none"))[0] > 0.01, "the sequences were not told apart"
    with on_rootdk(name, route) as model:
        result = whole_models.outcome(model, model(**given).logits[real])
    assert len(routed) == FAMILIES[name].attentions
    assert_within(errors(result, expected), own_errors(name), torch.float64)


@torch.no_grad()
@pytest.mark.parametrize(("name", "route"), ROUTES)
def test_dropout_is_that_of_the_config_and_only_in_training(
    routed: list[dict[str, Any]], name: str, route: str
) -> None:
    given, _ = inputs(name, "none")
    with on_rootdk(name, route, torch.float32, **{DROPOUT.get(name, "attention_dropout"): 0.25}) as model:
        model(**given)
        assert [call["dropout"] for call in routed] == [0.25] * FAMILIES[name].attentions
        routed.clear()
        model.eval()(**given)
    assert [call["dropout"] for call in routed] == [0.0] * FAMILIES[name].attentions


def test_every_option_that_some_model_hands_over_is_known() -> None:
    """A new one, ignored, would give an answer to another question without a word."""
    handed = set()
    for file in Path(transformers.__file__).parent.glob("models/*/modeling_*.py"):
        for call in re.findall(r"\battention_interface(\(\n.*?\n +\).*?)\n", file.read_text("utf-8"), re.DOTALL):
            handed |= set(re.findall(r"^ +(\w+)=", call, re.MULTILINE))
    assert handed > CARRIED
    assert handed <= CARRIED | WITHOUT_EFFECT | functional.REFUSED.keys() | {"query", "key", "value", "dim"}


def test_keys_that_an_indexer_picks() -> None:
    """DeepSeek V3.2 puts them into the mask of sdpa and hands them over to any implementation that it does not know."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 23, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16}
    widths = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    indexer = {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 16}
    layers = {"num_hidden_layers": 2, "first_k_dense_replace": 2, "initializer_range": 0.25}
    config = transformers.DeepseekV32Config(**sizes, **heads, **widths, **indexer, **layers)
    model = transformers.DeepseekV32ForCausalLM(config).eval()
    tokens = torch.arange(1, 12)[None]
    own = model(tokens).logits
    with rootdk.torch.use():
        torch.testing.assert_close(model(tokens).logits, own, rtol=1e-4, atol=1e-5)
    model.set_attn_implementation(rootdk.torch.register_transformers())
    with pytest.raises(
        rootdk.ArgumentError, match=r"^indices: must be None, got Tensor: for keys that an indexer picks"
    ):
        model(tokens)


@pytest.mark.parametrize("option", [{"output_attentions": True}, {"cu_seq_lens_q": torch.tensor([0, 4, 11])}])
def test_what_a_caller_asks_of_the_model_reaches_the_refusal(option: dict[str, Any]) -> None:
    with (
        on_rootdk("llama", "registered") as model,
        pytest.raises(rootdk.ArgumentError, match=f"^{next(iter(option))}:"),
    ):
        model(**inputs("llama", "none")[0], **option)
