"""Several devices: what a primitive must declare under shard_map, and how XLA may split it over batch and heads.

A query sees all keys of its head, and heads and batch entries are independent. So a program over several devices
computes each part on the device that holds it, without a gather, as long as keys are whole and a group of heads stays
with its key.
"""

import math
from typing import Any

import jax
from jax._src import dispatch  # private: jax has no public list of primitives that are lowered for given devices
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from ...errors import ArgumentError

# Operands and results by how they lie; primitives.py has the shapes.
PER_CALL = ("scale", "sinks", "seed", "d_scale", "d_sinks")
ROW_BLOCKS = ("row_state", "reading")
_PAIRS = ("mask", "bias", "d_bias", "weights")
_ROWS = ("query", "key", "value", "out", "d_out", "d_query", "d_key", "d_value")
_OF_HEADS = ("alibi", "d_alibi", "sinks", "d_sinks")
_OF_KEYS = ("key", "value", "d_key", "d_value")


def _varying(array: Any) -> frozenset[Any]:
    """The axes of a shard_map along which its devices may hold different values."""
    aval: Any = getattr(array, "aval", None)  # a tracer has one; anything else is a constant
    if hasattr(aval, "manual_axis_type"):
        return frozenset(aval.manual_axis_type.varying)
    return frozenset(getattr(aval, "vma", ()))


def alike_varying(arrays: list[Any]) -> list[Any]:
    """The arrays as jax's own operators take them: each varies along every axis along which one of them does."""
    if not any(isinstance(array, jax.core.Tracer) for array in arrays):
        return arrays
    axes = [_varying(array) for array in arrays]
    union = frozenset().union(*axes)
    if not union:
        return arrays
    spread = jax.lax.pvary if not hasattr(jax.lax, "pcast") else lambda a, n: jax.lax.pcast(a, n, to="varying")
    return [
        array if varying == union else spread(array, tuple(sorted(union - varying)))
        for array, varying in zip(arrays, axes, strict=True)
    ]


def result_aval(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """The type of a result that varies as the operands do."""
    mesh = getattr(getattr(like, "sharding", None), "mesh", None)
    if mesh is None or mesh.empty:
        return ShapedArray(shape, dtype)
    if any(axis is not None for axis in like.sharding.spec):
        raise ArgumentError(
            f"query: must not be sharded over explicit axes of a mesh, got {like.sharding.spec}; "
            "call it inside jax.shard_map, or make the mesh with axes of type Auto"
        )
    placed = like.sharding.update(spec=PartitionSpec(*(None,) * len(shape)))
    if hasattr(like, "manual_axis_type"):
        return ShapedArray(shape, dtype, sharding=placed, manual_axis_type=like.manual_axis_type)
    return ShapedArray(shape, dtype, sharding=placed, vma=like.vma)


def needs_devices(primitive: Any) -> None:
    """Its lowering is for the present devices, like that of custom_partitioning."""
    known = getattr(dispatch, "prim_requires_devices_during_lowering", None)
    if known is None:
        raise ArgumentError(
            "jax: must be a version whose primitives can ask for devices when they are lowered, "
            f"got {jax.__version__}; docs/jax.md lists versions that were tried"
        )
    known.add(primitive)


def is_partitioned(ctx: Any) -> bool:
    """Whether XLA will split the program that is lowered; inside a shard_map over all axes it is split already."""
    axes = ctx.module_context.axis_context
    mesh = getattr(axes, "mesh", None)
    if mesh is not None:
        return bool(mesh.size > 1 and set(axes.manual_axes) != set(mesh.axis_names))
    return (getattr(axes, "num_devices", None) or 1) > 1


def partitioned(call: Any, operands: Any, results: Any, facts: Any, avals_in: Any, avals_out: Any) -> Any:
    """The call with the rule by which XLA splits it: along leading axes and heads, and nothing else."""
    query_at = operands.index("query")
    leading = avals_in[query_at].ndim - 3
    heads_at = leading + (1 if facts.rows_first else 0)
    kv_heads = avals_in[operands.index("key")].shape[heads_at]
    group = avals_in[query_at].shape[heads_at] // max(kv_heads, 1)

    def roles(name: str, aval: Any) -> list[Any]:
        """For each axis of an operand: which leading axis it is, "heads", or None; None where its size is 1."""
        axes = facts.vmapped if name in PER_CALL else leading
        axis_roles: list[Any] = [None] if name in ROW_BLOCKS else []
        axis_roles += range(axes)
        axis_roles += [None] * (aval.ndim - len(axis_roles))
        if name in _ROWS:
            axis_roles[heads_at] = "heads"
        elif name in (*_PAIRS, "keys", *ROW_BLOCKS, *_OF_HEADS):
            axis_roles[axes + (1 if name in ROW_BLOCKS else 0)] = "heads"
        return [None if size == 1 else role for role, size in zip(axis_roles, aval.shape, strict=True)]

    names = (*operands, *results)
    of = [roles(name, aval) for name, aval in zip(names, (*avals_in, *avals_out), strict=True)]

    def shardings(mesh: Any, arrays: Any) -> list[Any]:
        """One sharding for each operand and result, all like that of the query."""
        spec: dict[Any, Any] = {}
        if not facts.dropout:
            # A spec may be shorter than the array: the axes that it leaves out are not cut.
            spec = dict(zip(of[query_at], arrays[query_at].sharding.spec, strict=False))
        spec[None] = None
        cut = spec.get("heads") or ()
        if kv_heads % math.prod(mesh.shape[axis] for axis in (cut if isinstance(cut, tuple) else (cut,))):
            spec["heads"] = None
        return [NamedSharding(mesh, PartitionSpec(*(spec.get(role) for role in axes))) for axes in of]

    def partition(mesh: Any, arrays: Any, _results: Any) -> Any:
        placed = shardings(mesh, arrays)
        return mesh, call, tuple(placed[len(operands) :]), tuple(placed[: len(operands)])

    def infer(mesh: Any, arrays: Any, _results: Any) -> Any:
        return tuple(shardings(mesh, arrays)[len(operands) :])

    wrapped = custom_partitioning(lambda *values: tuple(call(*values)))
    rule, factors = _rule(names, of, len(operands), group)
    wrapped.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=rule, **factors)
    return wrapped


def _rule(names: Any, of: Any, operands: int, group: int) -> tuple[str, dict[str, int]]:
    """In the notation of Shardy: axes of one name are split alike; a name used once does not constrain other axes."""
    written, once = [], 0
    for name, axes in zip(names, of, strict=True):
        factors = []
        for role in axes:
            if role is None:
                once += 1
                factors.append(f"o{once}")
            elif role == "heads":
                factors.append("h" if group == 1 or name in _OF_KEYS else "(h g)")
            else:
                factors.append(f"l{role}")
        written.append(" ".join(factors))
    rule = f"{', '.join(written[:operands])} -> {', '.join(written[operands:])}"
    return rule, {"g": group} if "(h g)" in rule else {}
