"""Models of the transformers library: same logits and same gradients on rootdk as with their own attention."""

from typing import Any

import pytest
import torch
from transformers_zoo import FAMILIES, ROUTES, built, judged, on_rootdk, outcome, own_errors, paddings
from whole_models import UNITS, assert_within, errors

pytestmark = pytest.mark.usefixtures("one_thread")
PADDED_ROUTES = [(name, padding, route) for name, route in ROUTES for padding in paddings(name)]
TYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def assert_judged(found: dict[str, Any], name: str, padding: str, dtype: torch.dtype) -> None:
    assert_within(errors(found, judged(name, padding)), own_errors(name), dtype)


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
        found = outcome(model, name, padding)
    assert len(routed) == FAMILIES[name].attentions
    assert_judged(found, name, padding, dtype)


@pytest.mark.parametrize(("name", "route"), ROUTES)
def test_recomputed_in_the_backward_pass(routed: list[dict[str, Any]], name: str, route: str) -> None:
    with on_rootdk(name, route) as model:
        model.gradient_checkpointing_enable()
        found = outcome(model, name, "none")
    assert len(routed) == 2 * FAMILIES[name].attentions
    assert_judged(found, name, "none", torch.float64)
