"""Which tensors of a checkpoint make queries and keys, found by their names. What is not understood is listed.

Split projections say by their names what they are, in any model. A fused one does not say in which order its rows come,
so it is read only where the model type is known to have that order. Every layout leaves the d_k rows of one head
together; a Layout says where they start.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rootdk.errors import ArgumentError

from .limits import MOST_LAYERS

Layout = Literal["split", "blocks", "grouped"]

# Query and key projection under one module: Llama and most others; BERT, ViT; T5; DistilBERT; Llama as first published.
_SPLIT = (("q_proj", "k_proj"), ("query", "key"), ("q", "k"), ("q_lin", "k_lin"), ("wq", "wk"))
_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("q_ln", "k_ln"))
# blocks    all queries, then all keys, then all values
# grouped   the queries that share a key head, that key, its value, then the next group; with a key per query head this
#           is query, key and value of head 0, then of head 1, ...
_FUSED: Mapping[str, Mapping[str, Layout]] = {
    "c_attn": {"gpt2": "blocks"},
    "query_key_value": {"gpt_neox": "grouped", "bloom": "grouped", "falcon": "grouped"},
    "qkv_proj": {"phi3": "blocks"},
    "Wqkv": {"mpt": "blocks", "modernbert": "blocks"},
    "att_proj": {"olmo": "blocks", "hf_olmo": "blocks"},
    "wqkv": {"internlm2": "grouped"},
}
# Parts of an attention module that queries and keys do not pass through, or that leave the scores' spread alone.
_OTHER = frozenset(
    [
        *("v_proj", "value", "v", "v_lin", "wv"),
        *("o_proj", "out_proj", "output", "o", "out_lin", "wo", "Wo", "dense", "c_proj"),
        *("relative_attention_bias", "sinks", "rotary_emb", "bias", "masked_bias", "inner_attn_ln"),
        # OLMo as first published has its whole block in one module.
        *("attn_out", "attn_norm", "ff_norm", "ff_proj", "ff_out"),
    ]
)
_ATTENTION = re.compile(r"attn|attention|mixer|\bqkv|query|\bkey\b", re.IGNORECASE)
_NORM_OF_A_BLOCK = re.compile(r"layer_?norm|_norm\b|\bln_|\bnorm|output\.", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Projections:
    """The tensors of one attention module. Fused projections have the same name as query and as key."""

    module: str
    layout: Layout
    query: str
    key: str
    query_bias: str | None = None
    key_bias: str | None = None
    query_norm: str | None = None
    key_norm: str | None = None

    @property
    def index(self) -> int:
        """The number of its layer: the first number in its path, 0 where there is none."""
        return next((number for part in self.module.split(".") if (number := _number(part)) is not None), 0)

    @property
    def tensors(self) -> tuple[str, ...]:
        """All that queries and keys pass through: weights, and biases and gains where there are any."""
        norms = [f"{norm}.weight" for norm in (self.query_norm, self.key_norm) if norm]
        return tuple(dict.fromkeys([self.query, self.key, *filter(None, (self.query_bias, self.key_bias)), *norms]))


def find_projections(names: Collection[str], *model_types: str) -> tuple[list[Projections], list[str]]:
    """Every attention module whose queries and keys can be told, in the order of layers, and the names left over.

    Left over are the tensors that seem to belong to attention and are not understood. A model of several parts has
    several model types.

    >>> names = ["h.0.attn.q_proj.weight", "h.0.attn.k_proj.weight", "h.0.attn.v_proj.weight"]
    >>> found, unknown = find_projections(names)
    >>> [one.module for one in found], unknown
    (['h.0.attn'], [])
    >>> find_projections([*names, "h.0.attn.temperature"])[1]
    ['h.0.attn.temperature', 'h.0.attn.k_proj.weight', 'h.0.attn.q_proj.weight']
    """
    known, ordered = frozenset(names), sorted(names)
    candidates = [one for name in ordered if (one := _candidate(name, known, model_types)) is not None]
    if len(candidates) > MOST_LAYERS:
        raise ArgumentError(f"path: must have at most {MOST_LAYERS} modules of attention, got {len(candidates)}")
    found: list[Projections] = []
    unknown: set[str] = set()
    read: set[str] = set()
    for one in sorted(candidates, key=lambda one: _order(one.module)):
        used = {*one.tensors, *(f"{norm}.bias" for norm in (one.query_norm, one.key_norm) if norm)}
        inside = set(_inside(one.module, ordered)) if one.module else used
        strange = {name for name in inside - used if not _is_other(name.removeprefix(f"{one.module}."))}
        if strange:
            # A learned temperature or a norm of another kind would change what the numbers mean.
            unknown |= strange | {one.query, one.key}
        else:
            found.append(one)
            read |= inside
    for name in known - unknown - read:
        seems = _ATTENTION.search(name) and not _NORM_OF_A_BLOCK.search(name)
        if seems and not _is_other(name.rpartition(".")[0].rpartition(".")[2] + "."):
            unknown.add(name)
    return found, sorted(unknown, key=lambda name: (_order(name.rpartition(".")[0]), name))


def _inside(module: str, ordered: Sequence[str]) -> Sequence[str]:
    """The names that begin with the module and a dot: they stand together, before those with a slash, dot's next."""
    return ordered[bisect_left(ordered, f"{module}.") : bisect_left(ordered, f"{module}/")]


def _candidate(name: str, known: frozenset[str], model_types: Sequence[str]) -> Projections | None:
    """The module that this name is the query projection of."""
    if name.endswith("in_proj_weight"):  # nn.MultiheadAttention
        bias = name.removesuffix("weight") + "bias"
        here = bias if bias in known else None
        return Projections(name.rpartition(".")[0], "blocks", name, name, here, here)
    place, _, kind = name.rpartition(".")
    module, _, last = place.rpartition(".")
    if kind != "weight" or "linear_attn" in module:
        return None
    orders = _FUSED.get(last, {})
    layout = next((orders[kind] for kind in model_types if kind in orders), None)
    if layout is not None:
        return _with_norms(module, layout, last, last, known)
    for query, key in _SPLIT:
        if last == query and f"{module}.{key}.weight" in known:
            return _with_norms(module, "split", query, key, known)
    return None


def _with_norms(module: str, layout: Layout, query: str, key: str, known: frozenset[str]) -> Projections:
    def there(part: str) -> str | None:
        return f"{module}.{part}" if f"{module}.{part}" in known else None

    norms: tuple[str | None, str | None] = (None, None)
    for one, other in _NORMS:
        if there(f"{one}.weight") and there(f"{other}.weight"):
            norms = (f"{module}.{one}", f"{module}.{other}")
    weights = (f"{module}.{query}.weight", f"{module}.{key}.weight")
    return Projections(module, layout, *weights, there(f"{query}.bias"), there(f"{key}.bias"), *norms)


def _is_other(rest: str) -> bool:
    return rest.partition(".")[0] in _OTHER


def _order(module: str) -> list[tuple[int, int, str]]:
    """Layer 10 after layer 9."""
    numbers = [(_number(part), part) for part in module.split(".")]
    return [(1, 0, part) if number is None else (0, number, "") for number, part in numbers]


def _number(part: str) -> int | None:
    """The number of a layer. Other digits than ours, and more of them than any model has layers, are a word."""
    return int(part) if part.isascii() and part.isdecimal() and len(part) < 10 else None
