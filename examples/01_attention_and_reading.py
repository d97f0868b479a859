"""Attention on NumPy arrays, and what its softmax did: without a scale, and with 1/sqrt(d_k)."""

import numpy as np

import rootdk

rng = np.random.default_rng(0)
query, key, value = rng.standard_normal((3, 8, 256, 64), dtype=np.float32)  # each (heads, tokens, d_k)

for scale in ("none", "sqrt"):
    out, reading = rootdk.measure(query, key, value, causal=True, scale=scale)
    heads = reading.by_head(min_keys=32)  # rows that see few keys say little
    print(
        f"scale {scale:4}: variance of the scores {heads.median_variance.mean():6.2f}, "
        f"effective keys {heads.median_effective_keys.mean():5.1f}, "
        f"rows where one key takes 99 % {heads.saturated.mean():.0%}"
    )
