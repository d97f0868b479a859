"""The passes of the kernel as primitives of jax: shapes, lowering to a call that XLA makes, vmap, derivatives.

    forward_p     out, row_state, reading, keys      its tangent is tangent_p
    tangent_p     d_out, linear in the tangents      its transpose is backward_p
    backward_p    d_query, d_key, d_value, d_bias, d_alibi, d_sinks
    read_p        reading, keys
    weights_p     the weights of all pairs, or their sum per key

So jvp, grad, linearize, jacfwd and jacrev follow from one rule each, and combine. The derivative of a derivative takes
the formula in plain.py, which holds all scores.

The parameters of a bind are `operands` and `results`, names in order; `facts`, the numbers of the call; and
`pairs_shape`, the shape of a result that lies over pairs. What an operand is, by its name, with *leading first:

    query, key, value, out, d_...   (heads, n, d), or (n, heads, d) if facts.rows_first
    mask, bias, d_bias, weights     (heads, n_query, n_key)
    row_scale, segments, positions  (n,)         alibi, d_alibi   (heads,)        key_lengths, query_offset   ()
    row_state, reading              (fields, *leading, heads, n_query)
    scale, sinks, seed, d_scale, d_sinks          begin with the axes of vmap alone

vmap adds an axis before all others: of size 1 where an operand does not change along it, so nothing is copied.
"""

from functools import cache, partial
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from ...errors import ArgumentTypeError, DerivativeError, KernelMissingError
from ...options import Learnable
from ...reading import FIELDS
from .. import kernel
from . import plain, sharding
from .sharding import PER_CALL, ROW_BLOCKS

_KEPT = ("out", "row_state")
_LOG2_E = 1.4426950408889634


class Facts(NamedTuple):
    """The numbers of a call, fixed when it is compiled.

    scale is used where it is no operand; 0 is no softcap; -1 no limit; vmapped says how many axes vmap has added.
    """

    scale: float
    softcap: float
    left: int
    right: int
    dropout: float
    rows_first: bool
    vmapped: int = 0


class Sizes(NamedTuple):
    """How large a call is."""

    leading: tuple[int, ...]
    heads: int
    kv_heads: int
    n_query: int
    n_key: int
    d_k: int
    d_v: int


def sizes_of(arrays: dict[str, Any], facts: Facts) -> Sizes:
    """From anything with shapes; a leading axis is as long as the longest operand."""
    query, key, value = arrays["query"].shape, arrays["key"].shape, arrays.get("value", arrays["key"]).shape
    leading = [1] * (len(query) - 3)
    for name, array in arrays.items():
        begin = 1 if name in ROW_BLOCKS else 0
        axes = facts.vmapped if name in PER_CALL else len(leading)
        for axis, size in enumerate(array.shape[begin : begin + axes]):
            leading[axis] = size if size != 1 else leading[axis]
    heads, rows = (-2, -3) if facts.rows_first else (-3, -2)
    return Sizes(tuple(leading), query[heads], key[heads], query[rows], key[rows], query[-1], value[-1])


def real_type(dtype: Any) -> Any:
    """The type in which the kernel computes."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _shape(name: str, size: Sizes, facts: Facts, pairs_shape: Any) -> tuple[int, ...]:
    def rows(heads: int, n: int, width: int) -> tuple[int, ...]:
        return (*size.leading, n, heads, width) if facts.rows_first else (*size.leading, heads, n, width)

    shapes: dict[str, tuple[int, ...]] = {
        "out": rows(size.heads, size.n_query, size.d_v),
        "d_out": rows(size.heads, size.n_query, size.d_v),
        "d_query": rows(size.heads, size.n_query, size.d_k),
        "d_key": rows(size.kv_heads, size.n_key, size.d_k),
        "d_value": rows(size.kv_heads, size.n_key, size.d_v),
        "row_state": (2, *size.leading, size.heads, size.n_query),
        "reading": (len(FIELDS), *size.leading, size.heads, size.n_query),
        "keys": (*size.leading, size.heads, size.n_query),
        "d_alibi": (*size.leading, size.heads),
        "d_sinks": (*size.leading[: facts.vmapped], size.heads),
        "d_bias": pairs_shape,
        "weights": pairs_shape,
    }
    return shapes[name]


_OF_QUERYS_TYPE = frozenset({"out", "d_out", "d_query", "d_key", "d_value"})


def _result_avals(*avals: Any, operands: Any, results: Any, facts: Facts, pairs_shape: Any) -> list[Any]:
    by_name = dict(zip(operands, avals, strict=True))
    size, dtype = sizes_of(by_name, facts), by_name["query"].dtype
    result_avals = []
    for name in results:
        kind = dtype if name in _OF_QUERYS_TYPE else real_type(dtype)
        kind = jax.dtypes.canonicalize_dtype(np.int64) if name == "keys" else kind
        result_avals.append(sharding.result_aval(avals[0], _shape(name, size, facts, pairs_shape), kind))
    return result_avals


@cache
def register_targets() -> None:
    """Register the kernel's passes with XLA, once; an error if it was compiled without the headers that this needs."""
    targets = kernel().xla_targets()
    if not targets:
        raise KernelMissingError(
            "rootdk._kernel: must be compiled with the headers of jaxlib for arrays of jax, got a build without them; "
            "install jaxlib and build rootdk in that environment (docs/jax.md)"
        )
    for name, handler in targets.items():
        jax.ffi.register_ffi_target(name, handler, platform="cpu")


def _lower(target: str, ctx: Any, *values: Any, operands: Any, results: Any, facts: Facts, pairs_shape: Any) -> Any:
    """One custom call; over several devices each of them computes its part of the batch and of the heads."""
    computed_names = tuple(name for name in results if name != "d_sinks")
    call = partial(_ffi_call, target, operands=operands, results=computed_names, facts=facts)

    def with_sinks(computed: list[Any], arrays: Any) -> list[Any]:
        """Add the gradient of the sinks, which follows from what the kernel kept."""
        by_name = dict(zip(computed_names, computed, strict=True))
        if "d_sinks" in results:
            by_name["d_sinks"] = _sinks_gradient(dict(zip(operands, arrays, strict=True)), facts)
        return [by_name[name] for name in results]

    if not sharding.is_partitioned(ctx):
        return mlir.lower_fun(
            lambda *arrays: with_sinks(call(*arrays, pairs_shape=pairs_shape), arrays), multiple_results=True
        )(ctx, *values)
    spread = pairs_shape
    if pairs_shape is not None:
        # Where devices share one number of a bias, each batch entry and head gets its own gradient; the sum is taken
        # afterwards.
        size = sizes_of(dict(zip(operands, ctx.avals_in, strict=True)), facts)
        spread = (*size.leading, size.heads, *pairs_shape[-2:])
    avals_out = {name: aval for name, aval in zip(results, ctx.avals_out, strict=True) if name in computed_names}
    spread_out = [aval.update(shape=spread) if n in ("d_bias", "weights") else aval for n, aval in avals_out.items()]
    cut = sharding.partitioned(
        partial(call, pairs_shape=spread), operands, computed_names, facts, ctx.avals_in, spread_out
    )

    def summed(*arrays: Any) -> list[Any]:
        pairs = zip(cut(*arrays), avals_out.values(), strict=True)
        return with_sinks([_sum_to(array, aval.shape, aval.dtype) for array, aval in pairs], arrays)

    return mlir.lower_fun(summed, multiple_results=True)(ctx, *values)


def _ffi_call(target: str, *values: Any, operands: Any, results: Any, facts: Facts, pairs_shape: Any) -> Any:
    arrays = dict(zip(operands, values, strict=True))
    if "out" in arrays and target == "rootdk_attention_tangent":  # kept for the transpose
        arrays = {name: array for name, array in arrays.items() if name not in _KEPT}
    if pairs_shape is not None:  # on one of several devices a result is as long as its operands there, or 1
        size = sizes_of(arrays, facts)
        whole = (*size.leading, size.heads, size.n_query, size.n_key)
        pairs_shape = tuple(1 if wanted == 1 else length for wanted, length in zip(pairs_shape, whole, strict=True))
    avals = _result_avals(
        *arrays.values(), operands=tuple(arrays), results=results, facts=facts, pairs_shape=pairs_shape
    )
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return jax.ffi.ffi_call(target, shapes)(
        *arrays.values(),
        operands=" ".join(arrays), results=" ".join(results),
        rows_first=np.int64(facts.rows_first), vmapped=np.int64(facts.vmapped),
        scale=np.float64(facts.scale), softcap=np.float64(facts.softcap), dropout=np.float64(facts.dropout),
        left=np.int64(facts.left), right=np.int64(facts.right),
    )  # fmt: skip


def _refuse_platform(ctx: Any, *_: Any, **__: Any) -> NoReturn:
    platforms = ", ".join(repr(name) for name in ctx.module_context.platforms)
    raise ArgumentTypeError(
        f"query: must be on a CPU device, got a program for {platforms} "
        "(rootdk computes on the CPU only: jax.nn.dot_product_attention runs there)"
    )


def _batch(
    primitive: Any, arrays: Any, axes: Any, *, operands: Any, results: Any, facts: Facts, pairs_shape: Any
) -> tuple[Any, Any]:
    moved, size = [], 1
    for name, array, axis in zip(operands, arrays, axes, strict=True):
        place = 1 if name in ROW_BLOCKS else 0
        if axis is None:
            moved.append(jnp.expand_dims(array, place))
        else:
            size = array.shape[axis]
            moved.append(jnp.moveaxis(array, axis, place))
    outputs = primitive.bind(
        *moved, operands=operands, results=results, facts=facts._replace(vmapped=facts.vmapped + 1),
        pairs_shape=None if pairs_shape is None else (size, *pairs_shape),
    )  # fmt: skip
    return outputs, [1 if name in ROW_BLOCKS else 0 for name in results]


def _primitive(name: str) -> Any:
    primitive = Primitive(f"rootdk_attention_{name}")
    primitive.multiple_results = True
    primitive.def_impl(partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(_result_avals)
    mlir.register_lowering(primitive, _refuse_platform)
    mlir.register_lowering(primitive, partial(_lower, primitive.name), platform="cpu")
    batching.primitive_batchers[primitive] = partial(_batch, primitive)
    sharding.needs_devices(primitive)
    return primitive


forward_p, read_p, tangent_p, backward_p, weights_p = map(
    _primitive, ("forward", "read", "tangent", "backward", "weights")
)


def bind(
    primitive: Any, arrays: dict[str, Any], results: tuple[str, ...], facts: Facts, pairs_shape: Any = None
) -> Any:
    """The results, in the order of their names."""
    register_targets()
    names = tuple(name for name, array in arrays.items() if array is not None)
    values = sharding.alike_varying([arrays[name] for name in names])
    return primitive.bind(*values, operands=names, results=results, facts=facts, pairs_shape=pairs_shape)


_type_of = jax.typeof if hasattr(jax, "typeof") else jax.core.get_aval


def _no_tangent(array: Any) -> Any:
    return ad.Zero(_type_of(array).to_tangent_aval())


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero


def _forward_jvp(primals: Any, tangents: Any, *, operands: Any, results: Any, facts: Facts, pairs_shape: Any) -> Any:
    """The tangent of the output; a Reading and the state of the rows have none, as under stop_gradient."""
    arrays = dict(zip(operands, primals, strict=True))
    wanted = _KEPT + tuple(name for name in results if name not in _KEPT)
    outputs = dict(zip(wanted, bind(forward_p, arrays, wanted, facts, pairs_shape), strict=True))
    given_tangents = {
        f"d_{name}": tangent
        for name, tangent in zip(operands, tangents, strict=True)
        if name in Learnable._fields and not _is_zero(tangent)
    }
    result_tangents = {name: _no_tangent(outputs[name]) for name in results}
    if given_tangents:
        if arrays["key"].dtype != arrays["query"].dtype:
            raise ArgumentTypeError(
                f"key: must be {arrays['query'].dtype} like query for a derivative, got {arrays['key'].dtype}"
            )
        kept = {name: outputs[name] for name in _KEPT}
        (result_tangents["out"],) = bind(tangent_p, given_tangents | arrays | kept, ("d_out",), facts)
    return [outputs[name] for name in results], [result_tangents[name] for name in results]


ad.primitive_jvps[forward_p] = _forward_jvp


def _read_jvp(primals: Any, _tangents: Any, **parameters: Any) -> Any:
    outputs = read_p.bind(*primals, **parameters)
    return outputs, [_no_tangent(array) for array in outputs]


ad.primitive_jvps[read_p] = _read_jvp


def _sum_to(array: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """The sum over axes along which the operand has size 1."""
    axes = tuple(axis for axis, size in enumerate(shape) if size != array.shape[axis])
    return (array.sum(axis=axes, keepdims=True) if axes else array).astype(dtype)


def _tangent_transpose(cotangents: Any, *arguments: Any, operands: Any, facts: Facts, **_: Any) -> Any:
    (d_out,) = cotangents
    arrays = dict(zip(operands, arguments, strict=True))
    linear = {name: undefined.aval for name, undefined in arrays.items() if ad.is_undefined_primal(undefined)}
    if _is_zero(d_out):
        return [ad.Zero(linear[name]) if name in linear else None for name in operands]
    pulled = gradients(d_out, {name: a for name, a in arrays.items() if not name.startswith("d_")}, facts, linear)
    return [pulled.get(name) for name in operands]


ad.primitive_transposes[tangent_p] = _tangent_transpose


def gradients(d_out: Any, arrays: dict[str, Any], facts: Facts, wanted: dict[str, Any]) -> dict[str, Any]:
    """The gradients of sum(d_out * out): one of the shape and type of each that is asked for."""
    results = ("d_query", "d_key", "d_value", *(name for name in ("d_bias", "d_alibi", "d_sinks") if name in wanted))
    shape = wanted["d_bias"].shape if "d_bias" in wanted else None
    pulled = dict(zip(results, bind(backward_p, arrays | {"d_out": d_out}, results, facts, shape), strict=True))
    if "d_scale" in wanted:
        pulled["d_scale"] = _scale_gradient(d_out, arrays, facts)
    return {name: _sum_to(pulled[name], like.shape, like.dtype) for name, like in wanted.items()}


def _sinks_gradient(arrays: dict[str, Any], facts: Facts) -> Any:
    """-sum over rows of sink_weight * <d_out, out>: the sink has no value, it only takes weight from the keys."""
    maximum, total = arrays["row_state"]  # in units of log2
    real = total.dtype
    sinks = arrays["sinks"].astype(real)
    own_axes = total.ndim - 2 - facts.vmapped  # leading axes of each call
    sinks = sinks.reshape(*sinks.shape[:-1], *(1,) * own_axes, sinks.shape[-1], 1)
    largest = jnp.finfo(real).max
    weight = jnp.exp2(jnp.clip(sinks * _LOG2_E, -largest, largest) - maximum) / total
    pulled = (arrays["d_out"].astype(real) * arrays["out"].astype(real)).sum(axis=-1)
    pulled = jnp.swapaxes(pulled, -1, -2) if facts.rows_first else pulled
    axes = (*range(facts.vmapped, facts.vmapped + own_axes), total.ndim - 1)
    return -(weight * pulled).sum(axis=axes)


def _scale_gradient(d_out: Any, arrays: dict[str, Any], facts: Facts) -> Any:
    """<dS K, query>, where d_query is scale * (dS K): computed with the scale in the query, so that no digits are lost.

    d_query alone is not enough: it is rounded to a half type, and is 0 where the scale is 0.
    """
    real = real_type(arrays["query"].dtype)
    scale, query = arrays["scale"].astype(real), arrays["query"].astype(real)
    axes = (1,) * (query.ndim - scale.ndim)
    folded = {name: array for name, array in arrays.items() if name not in ("scale", *_KEPT)}
    folded |= {name: arrays[name].astype(real) for name in ("key", "value")}
    folded["query"] = query * scale.reshape(*scale.shape, *axes)
    facts = facts._replace(scale=1.0)
    out, row_state = bind(forward_p, folded, _KEPT, facts)
    folded |= {"out": out, "row_state": row_state, "d_out": d_out.astype(real)}
    d_query, _d_key, _d_value = bind(backward_p, folded, ("d_query", "d_key", "d_value"), facts)
    # A row that sees no key has gradient 0 and counts for 0, whatever it holds.
    product = jnp.where(d_query == 0, 0.0, d_query * query)
    return product.sum(axis=tuple(range(facts.vmapped, product.ndim)))


def _second(function: Any, primitive: Any, primals: Any, tangents: Any, parameters: Any) -> Any:
    """The derivative of a derivative: values by the kernel, their tangents by the plain formula."""
    facts, operands = parameters["facts"], parameters["operands"]
    outputs = primitive.bind(*primals, **parameters)
    if facts.dropout > 0:
        raise DerivativeError("dropout: must be 0 for a second derivative in jax, got more; it is not computed")
    arrays = dict(zip(operands, primals, strict=True))
    values, directions = {}, {}
    for name, array, tangent in zip(operands, primals, tangents, strict=True):
        if name == "d_out" or name.removeprefix("d_") in Learnable._fields:
            values[name], directions[name] = array, jnp.zeros_like(array) if _is_zero(tangent) else tangent
    _, second = jax.jvp(lambda learned: function(arrays | learned), (values,), (directions,))
    return outputs, [tangent.astype(array.dtype) for array, tangent in zip(outputs, second, strict=True)]


def _tangent_jvp(primals: Any, tangents: Any, **parameters: Any) -> Any:
    facts = parameters["facts"]

    def function(arrays: dict[str, Any]) -> list[Any]:
        given_tangents = {name: arrays[f"d_{name}"] for name in Learnable._fields if f"d_{name}" in arrays}
        learned = {name: arrays[name] for name in given_tangents}
        return [jax.jvp(lambda varied: plain.attention(arrays | varied, facts), (learned,), (given_tangents,))[1]]

    return _second(function, tangent_p, primals, tangents, parameters)


def _backward_jvp(primals: Any, tangents: Any, **parameters: Any) -> Any:
    facts, results = parameters["facts"], parameters["results"]

    def function(arrays: dict[str, Any]) -> list[Any]:
        size = sizes_of(arrays, facts)
        learned = {}
        for result in results:  # one for each result, of its shape: along an axis of vmap every call has its own
            name = result.removeprefix("d_")
            learned[name] = jnp.broadcast_to(arrays[name], _shape(result, size, facts, parameters["pairs_shape"]))
        out, pull = jax.vjp(lambda varied: plain.attention(arrays | varied, facts), learned)
        (pulled,) = pull(arrays["d_out"].astype(out.dtype))
        return [pulled[result.removeprefix("d_")] for result in results]

    return _second(function, backward_p, primals, tangents, parameters)


def _weights_jvp(primals: Any, tangents: Any, **parameters: Any) -> Any:
    facts, shape = parameters["facts"], parameters["pairs_shape"]

    def function(arrays: dict[str, Any]) -> list[Any]:
        weights = plain.weights(arrays, facts)
        return [weights if weights.shape == tuple(shape) else weights.sum(axis=-2, keepdims=True)]

    return _second(function, weights_p, primals, tangents, parameters)


ad.primitive_jvps[tangent_p] = _tangent_jvp
ad.primitive_jvps[backward_p] = _backward_jvp
ad.primitive_jvps[weights_p] = _weights_jvp
