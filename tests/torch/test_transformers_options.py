"""What models of the transformers library ask of their attention beyond scores and masks: carried out or refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import whole_models
from transformers_zoo import FAMILIES, ROUTES, built, inputs, judged, on_rootdk, own_errors, transformers
from whole_models import assert_within, errors

import rootdk.torch
from rootdk.torch import functional

pytestmark = pytest.mark.usefixtures("one_thread")
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
        found = whole_models.outcome(model, model(**given).logits[real])
    assert len(routed) == FAMILIES[name].attentions
    assert_within(errors(found, expected), own_errors(name), torch.float64)


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
