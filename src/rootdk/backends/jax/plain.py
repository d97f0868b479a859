"""The operator in plain jax.numpy, for derivatives of derivatives: it holds the n_query x n_key scores.

It follows the reference line by line, on operands as primitives.py lays them out.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_FAR = 2**30  # further than any key, and an int32


def attention(arrays: dict[str, Any], facts: Any) -> Any:
    """The output, differentiable in every operand that is a float."""
    with jax.numpy_rank_promotion("allow"):  # whatever the caller has set
        sight = _sight(arrays, facts)
        value = _shown(_per_query_head(arrays, facts, "value"), sight.visible.any(axis=-2))
        spoiled = sight.visible.astype(value.dtype) @ (~jnp.isfinite(value)).astype(value.dtype) > 0
        out = _weights(arrays, facts, sight) @ _finite(value) * jnp.where(spoiled, jnp.nan, 1.0)
    return (jnp.swapaxes(out, -2, -3) if facts.rows_first else out).astype(arrays["query"].dtype)


def weights(arrays: dict[str, Any], facts: Any) -> Any:
    """The weights of all pairs, (*leading, heads, n_query, n_key); 0 where hidden."""
    with jax.numpy_rank_promotion("allow"):
        return _weights(arrays, facts, _sight(arrays, facts))


class _Sight(NamedTuple):
    """Where queries and keys stand, (*leading, n) each, and which pairs are visible, (*leading, heads or 1, ...)."""

    position: Any
    key_position: Any
    visible: Any


def _weights(arrays: dict[str, Any], facts: Any, sight: _Sight) -> Any:
    position, key_position, visible = sight
    query = _shown(_wide_rows(arrays, facts, "query"), visible.any(axis=-1))
    key = _shown(_per_query_head(arrays, facts, "key"), visible.any(axis=-2))
    wide = query.dtype
    # NaN and inf count as 0 in the product and the true scores are put back after it: else 0 * NaN would reach rows
    # that do not see them, also in derivatives.
    logits = _finite(query) @ jnp.swapaxes(_finite(key), -1, -2)
    sound = jnp.isfinite(query).all(axis=-1)[..., :, None] & jnp.isfinite(key).all(axis=-1)[..., None, :]
    logits = jnp.where(sound, logits, jax.lax.stop_gradient(query @ jnp.swapaxes(key, -1, -2)))
    logits = jnp.where(visible, logits, 0.0)
    own_axes = query.ndim - 3 - facts.vmapped  # the call's own leading axes, without those of vmap

    def per_call(array: Any, behind: int) -> Any:
        """An operand that begins with the axes of vmap alone, ready to broadcast."""
        shape = array.shape
        return array.reshape(*shape[: facts.vmapped], *(1,) * own_axes, *shape[facts.vmapped :], *(1,) * behind)

    logits = logits * (per_call(arrays["scale"].astype(wide), 3) if "scale" in arrays else facts.scale)
    if "row_scale" in arrays:
        logits = logits * arrays["row_scale"].astype(wide)[..., None, :, None]
    if facts.softcap > 0:
        logits = facts.softcap * jnp.tanh(logits / facts.softcap)
    if "alibi" in arrays:
        distance = jnp.abs(position[..., :, None] - key_position[..., None, :]).astype(wide)
        logits = logits - arrays["alibi"].astype(wide)[..., None, None] * distance[..., None, :, :]
    if "bias" in arrays:
        logits = logits + arrays["bias"].astype(wide)
    visible = jnp.broadcast_to(visible & (logits != -jnp.inf), logits.shape)
    logits = jnp.where(visible, logits, 0.0)
    top = jnp.max(logits, axis=-1, keepdims=True, initial=-jnp.inf, where=visible)
    sink = None
    if "sinks" in arrays:
        sink = per_call(arrays["sinks"].astype(wide), 2)
        top = jnp.maximum(top, sink)
    top = jnp.where(top == -jnp.inf, 0.0, top)
    exponentials = jnp.where(visible, jnp.exp(logits - top), 0.0)
    total = exponentials.sum(axis=-1, keepdims=True)
    total = total if sink is None else total + jnp.exp(sink - top)
    return exponentials / jnp.where(total == 0.0, 1.0, total)


def _shown(array: Any, seen: Any) -> Any:
    """The rows that occur in a visible pair; 0 for the others, in every derivative too, whatever they hold."""
    return jnp.where(seen[..., None], array, 0.0)


def _finite_or_zero(array: Any) -> Any:
    return jnp.where(jnp.isfinite(array), array, 0.0)


# 0 where a number is not finite; its derivative is that of the number.
_finite: Any = jax.custom_jvp(_finite_or_zero)
_finite.defjvp(lambda arrays, tangents: (_finite(*arrays), *tangents))


def _sight(arrays: dict[str, Any], facts: Any) -> _Sight:
    n_query, n_key = (arrays[name].shape[-3 if facts.rows_first else -2] for name in ("query", "key"))
    length = arrays["key_lengths"][..., None] if "key_lengths" in arrays else n_key
    key_position, index = jnp.arange(n_key), jnp.arange(n_key)
    visible = jnp.broadcast_to(index < length, (*jnp.shape(length)[:-1], n_key))[..., None, None, :]
    offset = arrays["query_offset"][..., None] if "query_offset" in arrays else length - n_query
    position = jnp.arange(n_query) + offset
    if "key_segments" in arrays:
        of_queries, of_keys = arrays["query_segments"], arrays["key_segments"]
        same = of_queries[..., :, None] == of_keys[..., None, :]
        key_position = _ranks(of_keys)
        counts = (same & (index < jnp.asarray(length)[..., None])).sum(axis=-1)
        own_counts = (of_queries[..., :, None] == of_queries[..., None, :]).sum(axis=-1)
        position = _ranks(of_queries) + (offset if "query_offset" in arrays else counts - own_counts)
        visible = visible & same[..., None, :, :]
    position = arrays.get("query_positions", position)
    relative = (key_position[..., None, :] - position[..., :, None])[..., None, :, :]
    if facts.left >= 0:
        visible = visible & (relative >= -min(facts.left, _FAR))
    if facts.right >= 0:
        visible = visible & (relative <= min(facts.right, _FAR))
    if "bias" in arrays:
        visible = visible & (arrays["bias"] != -jnp.inf)
    if "mask" in arrays:
        visible = visible & arrays["mask"]
    return _Sight(position, key_position, visible)


def _ranks(segments: Any) -> Any:
    """How many equal entries come before each."""
    same = segments[..., :, None] == segments[..., None, :]
    return jnp.tril(same, -1).sum(axis=-1)


def _wide_rows(arrays: dict[str, Any], facts: Any, name: str) -> Any:
    """Heads first, in the type of the computation."""
    array = jnp.swapaxes(arrays[name], -2, -3) if facts.rows_first else arrays[name]
    return array.astype(jnp.float64 if arrays["query"].dtype == jnp.float64 else jnp.float32)


def _per_query_head(arrays: dict[str, Any], facts: Any, name: str) -> Any:
    array, heads = _wide_rows(arrays, facts, name), arrays["query"].shape[-2 if facts.rows_first else -3]
    return jnp.repeat(array, heads // array.shape[-3], axis=-3)
