"""Random problems of the operator: arrays, and every option for them."""

from typing import Any

import numpy as np

from rootdk import scaling


def random_arrays(
    rng: np.random.Generator,
    leading: tuple[int, ...] = (2,),
    heads: int = 4,
    kv_heads: int = 2,
    n_query: int = 7,
    n_key: int = 9,
    d_k: int = 8,
    d_v: int = 5,
    dtype: Any = np.float64,
) -> tuple[Any, Any, Any]:
    """query, key, value with standard normal components."""
    shapes = ((*leading, heads, n_query, d_k), (*leading, kv_heads, n_key, d_k), (*leading, kv_heads, n_key, d_v))
    query, key, value = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return query, key, value


def option_sets(
    rng: np.random.Generator, leading: tuple[int, ...] = (2,), heads: int = 4, n_query: int = 7, n_key: int = 9
) -> dict[str, dict[str, Any]]:
    """Every option of the operator once, and all of them together, for arrays of random_arrays()."""
    scores = (*leading, heads, n_query, n_key)
    mask = rng.random((n_query, n_key)) < 0.7
    bias = rng.standard_normal((heads, 1, n_key))
    lengths = rng.integers(n_key // 2, n_key + 1, leading)
    packed = np.sort(rng.integers(0, 3, n_query)), np.sort(rng.integers(0, 3, n_key))
    every = {
        "causal": True,
        "mask": rng.random(scores) < 0.8,
        "bias": rng.standard_normal(scores),
        "window": (4, 3),
        "key_lengths": lengths,
        "softcap": 3.0,
        "sinks": rng.standard_normal(heads),
        "alibi": rng.standard_normal(heads),
        "segments": (np.sort(rng.integers(0, 2, (*leading, n_query))), np.sort(rng.integers(0, 2, (*leading, n_key)))),
        "scale": scaling.llama4(2, 0.5),
        "dropout": 0.3,
        "seed": 11,
    }
    return {
        "nothing": {},
        "scale": {"scale": 0.7},
        "scale zero": {"scale": 0.0},
        "scale negative": {"scale": -0.4},
        "scale by length": {"scale": "entropy_invariant", "key_lengths": lengths},
        "causal": {"causal": True},
        "causal top-left": {"causal": True, "query_offset": 0},
        "offset per batch": {"causal": True, "query_offset": rng.integers(-3, n_key, leading)},
        "mask": {"mask": mask},
        "bias": {"bias": bias},
        "window": {"window": 2},
        "window one side": {"window": (None, 1), "query_offset": 1},
        "lengths": {"key_lengths": lengths},
        "causal lengths": {"causal": True, "key_lengths": lengths},
        "softcap": {"softcap": 1.5, "scale": 1.0},
        "sinks": {"sinks": rng.standard_normal(heads)},
        "alibi": {"alibi": rng.standard_normal(heads)},
        "alibi per batch, causal": {"alibi": rng.random((*leading, heads)), "causal": True, "key_lengths": lengths},
        "segments": {"segments": packed},
        "segments, causal": {"segments": packed, "causal": True, "alibi": rng.random(heads)},
        "segments, mixed": {
            "segments": (rng.integers(0, 3, (*leading, n_query)), rng.integers(0, 3, (*leading, n_key))),
            "window": (3, 1),
            "scale": "entropy_invariant",
            "alibi": rng.random(heads),
        },
        "segments, top-left": {"segments": packed, "causal": True, "query_offset": 0, "key_lengths": lengths},
        "dropout": {"dropout": 0.4, "seed": 2**63 + 5},
        "everything": every,
    }
