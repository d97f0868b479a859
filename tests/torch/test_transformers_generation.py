"""Generation with a key cache on rootdk: the same tokens, and the logits of every step within the budget."""

from typing import Any

import pytest
import torch
from transformers_zoo import FAMILIES, ROUTES, built, inputs, judged, on_rootdk, own_errors
from whole_models import budget

pytestmark = pytest.mark.usefixtures("one_thread")
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


def assert_close(found: Any, expected: Any, name: str) -> None:
    error = float((found - expected).abs().max() / expected.abs().max())
    allowed = budget(own_errors(name)[0], torch.float64)
    assert error <= allowed, f"logits: error {error:.3g} above the budget {allowed:.3g}"


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize(("name", "route"), GENERATORS)
def test_greedy_tokens(routed: list[dict[str, Any]], name: str, route: str, padding: str, cache: str) -> None:
    expected, expected_logits = generated(built(name, "textbook"), name, padding, cache)
    assert not routed
    with on_rootdk(name, route) as model:
        found, logits = generated(model, name, padding, cache)
    # T5 runs its encoder once, two of the six calls.
    once = 2 if name == "t5" else 0
    assert len(routed) == once + STEPS * (FAMILIES[name].attentions - once)
    assert torch.equal(found, expected)
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
