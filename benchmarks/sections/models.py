"""Whole models of transformers on rootdk's attention and on torch's: an encoder and a decoder on a padded batch.

The layers around the attention are the same for both and take most of the time, so the factor is smaller than that of
the attention alone; it is what a user of the model gets. Weights are random: time does not depend on them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.problems import check_near
from benchmarks.race import Call, interleave, only_right
from benchmarks.section import Row, Setting, Step, at_least, faster, judge_rows, milliseconds, of, of_rows, times_faster

WANTED = 1.05
BATCH, TOKENS, WIDTH, HEADS, LAYERS = 8, 512, 512, 8, 4


def steps(setting: Setting) -> Iterator[Step]:
    """Each model; none without torch."""
    if not setting.torch:
        return
    for name, make in MODELS.items():
        work = partial(race, name, make, TOKENS // 8 if setting.quick else TOKENS, budget=setting.seconds(12.0, 1.0))
        yield Step("models", name, work)


def race(name: str, make: Callable[[int], tuple[Any, Any]], tokens: int, *, budget: float) -> Row:
    """The same weights and the same batch, a third of it padding, under either attention."""
    import torch

    from rootdk.torch import register_transformers

    torch.manual_seed(0)
    model, seen = make(tokens)
    model = model.eval()
    ids = torch.randint(0, model.config.vocab_size, (BATCH, tokens))

    def run(attention: str) -> Any:
        model.set_attn_implementation(attention)
        with torch.no_grad():
            return model(input_ids=ids, attention_mask=seen.long()).last_hidden_state

    def tokens_of(states: Any) -> Any:
        return states[seen].double().numpy()  # what stands in the padding is nobody's

    expected = tokens_of(run_in_float64(model, partial(run, "sdpa")))
    attentions = {"rootdk": register_transformers(), "torch": "sdpa"}
    calls: dict[str, Call] = {side: partial(run, attention) for side, attention in attentions.items()}
    calls, left_out = only_right(calls, lambda _, states: check_near(tokens_of(states), expected))
    return {"name": name, "seconds": interleave(calls, budget), "left_out": left_out}


def run_in_float64(model: Any, run: Call) -> Any:
    """What the model gives with its weights widened; they are narrowed again, to the same bits."""
    model.double()
    try:
        return run()
    finally:
        model.float()


def _lengths(tokens: int) -> Any:
    """A third of all tokens is padding: entries of 2/3 of the length, more or less. (batch, 1)."""
    import torch

    return torch.from_numpy(np.linspace(1 / 3, 1, BATCH) * tokens // 1)[:, None]


def bert(tokens: int) -> tuple[Any, Any]:
    """An encoder, padded on the right, and which tokens are none."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=1000, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH, max_position_embeddings=tokens,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False), torch.arange(tokens) < _lengths(tokens)


def llama(tokens: int) -> tuple[Any, Any]:
    """A decoder, padded on the left, as when several prompts are generated from."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=1000, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2, intermediate_size=2 * WIDTH, max_position_embeddings=tokens, use_cache=False,
    )  # fmt: skip
    return LlamaModel(config), torch.arange(tokens) >= tokens - _lengths(tokens)


MODELS = {
    "BERT, a third padding": bert,
    "Llama, padding on the left": llama,
}
TARGETS = tuple(at_least(name, WANTED, faster("torch"), "rootdk", "torch", counts=of("name", name)) for name in MODELS)
SECTIONS = (
    of_rows(
        "models",
        steps,
        partial(judge_rows, key="models", targets=TARGETS, with_torch=True),
        f"Whole models of {LAYERS} layers, {BATCH} x {TOKENS} tokens, ms",
        {"rootdk": milliseconds("rootdk"), "torch": milliseconds("torch"), "faster": times_faster("torch")},
    ),
)
