"""One attention call as facts: everything is checked, every default is resolved.

The adapters and the reference read a Problem; none of them decides anything. The kernel's bindings read its fields by
their place: bindings/module.cc lists them in the same order.
"""

from typing import Any, NamedTuple


class Problem(NamedTuple):
    """What to compute. `batch` below is the product of the leading axes of `query` (1 if there are none).

    query         (*leading, heads, n_query, d_k)
    key, value    (*leading, kv_heads, n_key, d_k) and (*leading, kv_heads, n_key, d_v); heads % kv_heads == 0
    scale         one finite number
    row_scale     None, or float64 (batch, n_query): one more factor for each query row
    softcap       None, or a number > 0
    left, right   the query at position p sees key j only if p - left <= j <= p + right; None is no limit
    query_offset  int64 (batch,): query i of batch b stands at position i + query_offset[b]
    key_lengths   None, or int64 (batch,): keys from there on are padding
    mask, bias    None, or a view broadcast to (*leading, heads, n_query, n_key)
    sinks         None, or float64 (heads,)
    dropout       0 <= dropout < 1
    seed          0 <= seed < 2**64
    """

    query: Any
    key: Any
    value: Any
    scale: float
    row_scale: Any
    softcap: float | None
    left: int | None
    right: int | None
    query_offset: Any
    key_lengths: Any
    mask: Any
    bias: Any
    sinks: Any
    dropout: float
    seed: int
