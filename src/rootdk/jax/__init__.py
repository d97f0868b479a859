"""rootdk for jax: jax's own signature, the same with a Reading, and Flax's.

    from rootdk.jax import dot_product_attention             jax.nn.dot_product_attention, on the CPU
    from rootdk.jax import measured_dot_product_attention    and a Reading of the same pass
    from rootdk.jax import flax_attention                    attention_fn of the layers of Flax, nnx and linen

rootdk.attention, measure, read and weights take arrays of jax with or without this import, under jit, grad, vmap and
shard_map as well.

jax.nn and Flax put heads inside rows: (batch, n, heads, d). The kernel reads such arrays in place, so nothing is
transposed.
"""

from typing import Any, Literal, overload

from ..errors import ArgumentError, ExtraMissingError

try:
    import jax
    import jax.numpy as jnp
except ImportError as _error:
    raise ExtraMissingError("rootdk.jax", "jax") from _error

from ..backends import jax as adapter
from ..options import Options, check_shapes
from ..reading import Reading

__all__ = ["dot_product_attention", "flax_attention", "measured_dot_product_attention"]


@overload
def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    scale: float | jax.Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: jax.Array | None = None,
    key_value_seq_lengths: jax.Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: None = None,
    return_residual: Literal[False] = False,
) -> jax.Array: ...


@overload
def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    scale: float | jax.Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: jax.Array | None = None,
    key_value_seq_lengths: jax.Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: None = None,
    return_residual: Literal[True],
) -> tuple[jax.Array, jax.Array]: ...


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    scale: float | jax.Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: jax.Array | None = None,
    key_value_seq_lengths: jax.Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: None = None,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """jax.nn.dot_product_attention, on rootdk: the same arguments, the same meaning, (B, T, N, H) or (T, N, H).

    key, value              (B, S, K, H), where N is a multiple of K
    bias, mask              broadcast to (B, N, T, S); a mask is bool, and True takes part
    scale                   None is 1/sqrt(H); also an array without axes, which then has a gradient
    is_causal               query i sees key j <= i, counted from the top left (rootdk.attention aligns at the end)
    query_seq_lengths       (B,): rows from there on are 0          key_value_seq_lengths   (B,): keys likewise hidden
    local_window_size       (left, right), or one int for both
    implementation          None; jax's own names are refused
    return_residual         also the log of every row's denominator, (B, T, N), without a gradient

    A row in which every key is hidden is 0; jax.nn gives the mean of all values there. Half types are added up in
    float32 and rounded once, at the end.

    >>> import jax, jax.numpy as jnp
    >>> from rootdk.jax import dot_product_attention
    >>> query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 16, 4, 8))
    >>> ours = jax.jit(lambda *a: dot_product_attention(*a, is_causal=True))(query, key, value)
    >>> theirs = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    >>> bool(jnp.allclose(ours, theirs, atol=1e-5))
    True
    """
    if implementation is not None:
        raise ArgumentError(f"implementation: must be None, which is rootdk's own, got {implementation!r}")
    options = _options(bias, mask, scale, is_causal, key_value_seq_lengths, local_window_size)
    problem = _problem(query, key, value, options)
    if not return_residual:
        return _first_rows(adapter.forward(problem, rows_first=True), query_seq_lengths)
    out, reading = adapter.measure(problem, None, False, rows_first=True)
    residual = jnp.swapaxes(reading.log_sum_exp, -1, -2).astype(out.dtype)
    return _first_rows(out, query_seq_lengths), jax.lax.stop_gradient(residual)


def measured_dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    scale: float | jax.Array | None = None,
    is_causal: bool = False,
    key_value_seq_lengths: jax.Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
) -> tuple[jax.Array, Reading[jax.Array]]:
    """dot_product_attention() and a Reading from the same pass, a pytree whose fields are (B, N, T).

    The Reading has no gradient, as under jax.lax.stop_gradient.

    >>> import jax
    >>> from rootdk.jax import measured_dot_product_attention
    >>> query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 16, 4, 8))
    >>> out, reading = jax.jit(measured_dot_product_attention)(query, key, value)
    >>> out.shape, reading.entropy.shape, len(jax.tree.leaves(reading))
    ((2, 16, 4, 8), (2, 4, 16), 10)
    """
    options = _options(bias, mask, scale, is_causal, key_value_seq_lengths, local_window_size)
    return adapter.measure(_problem(query, key, value, options), None, False, rows_first=True)


def flax_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    broadcast_dropout: bool = False,  # noqa: ARG001 -- every pair has its own draw, whatever this says
    dropout_rng: Any = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    is_causal: bool = False,
) -> jax.Array:
    """The attention_fn for Flax: flax.nnx.MultiHeadAttention(..., attention_fn=flax_attention), and linen's layer.

    query, key, value   (..., n, heads, d)
    mask                bool, or numbers that are not 0 where a pair takes part, as Flax makes them
    dropout_rng         a key of jax.random, where dropout_rate > 0 and not deterministic
    dtype               what the three are converted to; None leaves them
    precision           None: there is one precision
    module              given by sow_weights=True: a Reading is sown, as `attention_reading`, not n x n weights;
                        nnx.capture(layer, nnx.Intermediate) and linen's mutable=["intermediates"] bring it out

    Dropout is drawn for every pair, whatever broadcast_dropout says.

    >>> import jax
    >>> from rootdk.jax import flax_attention
    >>> query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 16, 4, 8))
    >>> flax_attention(query, key, value, deterministic=True).shape
    (2, 16, 4, 8)
    """
    if precision is not None:
        raise ArgumentError(f"precision: must be None, there is one precision, got {precision!r}")
    if dtype is not None:
        query, key, value = (jnp.asarray(array, dtype) for array in (query, key, value))
    if mask is not None:
        mask = jnp.asarray(mask)
        mask = mask if mask.dtype == jnp.bool_ else mask != 0
    options = _options(bias, mask, None, is_causal, None, None)
    if dropout_rate > 0.0 and not deterministic:
        if dropout_rng is None:
            raise ArgumentError(f"dropout_rng: must be a key of jax.random for dropout_rate {dropout_rate}, got None")
        options = options._replace(dropout=dropout_rate, seed=jax.random.bits(dropout_rng, (), jnp.uint32))
    problem = _problem(query, key, value, options)
    if module is None:
        return adapter.forward(problem, rows_first=True)
    out, reading = adapter.measure(problem, None, False, rows_first=True)
    if any(kind.__module__.startswith("flax.nnx") for kind in type(module).__mro__):
        from flax import nnx

        module.sow(nnx.Intermediate, "attention_reading", reading)
    else:
        module.sow("intermediates", "attention_reading", reading)
    return out


def _options(bias: Any, mask: Any, scale: Any, is_causal: bool, key_lengths: Any, window: Any) -> Options:
    if bias is not None:
        bias = jnp.asarray(bias)
        bias = bias if jnp.issubdtype(bias.dtype, jnp.floating) else bias.astype(jnp.float32)
    return Options(
        scale=scale, causal=is_causal, mask=None if mask is None else jnp.asarray(mask), bias=bias,
        window=window, query_offset=0 if is_causal or window is not None else None, key_lengths=key_lengths,
    )  # fmt: skip


def _problem(query: Any, key: Any, value: Any, options: Options) -> Any:
    query, key, value = adapter.inputs(*(jnp.asarray(array) for array in (query, key, value)))
    shapes = [(*a.shape[:-3], a.shape[-2], a.shape[-3], a.shape[-1]) if a.ndim >= 3 else a.shape
              for a in (query, key, value)]  # fmt: skip
    if query.ndim < 3:
        raise ArgumentError(f"query: must have at least 3 axes (n, heads, d), got {query.ndim} (query {query.shape})")
    check_shapes(*shapes)
    return adapter.facts(shapes[0], shapes[1][-2], False, options).with_arrays(query, key, value)


def _first_rows(out: Any, lengths: Any) -> Any:
    """The output, 0 from each entry's length on."""
    if lengths is None:
        return out
    row = jnp.arange(out.shape[-3]).reshape(*(1,) * (out.ndim - 3), out.shape[-3], 1, 1)
    return jnp.where(row < jnp.asarray(lengths)[..., None, None, None], out, 0)
