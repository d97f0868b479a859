"""The weights themselves, row by row, where a Reading is not enough."""

import math

import numpy as np

from rootdk.api import attention

from .draw import generator, groups, normal, over_groups
from .ledger import Setting

_ROWS = 4  # per group: a row has n x n derivatives


def live_entries(setting: Setting, d_k: int, keys: int, scale: float, threshold: float = 1e-3) -> tuple[float, float]:
    """The share of the entries of diag(p) - p p' that reach the threshold in size, and its standard error."""
    rng, count = generator(setting, d_k, keys, 15), groups(setting)
    query, key = normal(rng, (count, _ROWS, d_k)), normal(rng, (count, keys, d_k))
    value = np.broadcast_to(np.eye(keys, dtype=np.float32), (count, keys, keys))
    shares = []
    for weights in np.sort(attention(query, key, value, scale=scale), axis=-1):
        diagonal = (weights * (1 - weights) >= threshold).sum(axis=-1)
        # p_i p_j >= threshold needs both of at least the threshold, and there are at most 1/threshold such keys.
        top = weights[:, -min(keys, math.ceil(1 / threshold)) :]
        pairs = (top[:, :, None] * top[:, None, :] >= threshold).sum(axis=(-1, -2)) - (top * top >= threshold).sum(-1)
        shares.append((diagonal + pairs) / keys**2)
    return over_groups(shares)
