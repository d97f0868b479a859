"""The three passes as operators that torch can carry: rootdk::attention_forward, attention_backward, attention_tangent.

A compiler and torch.func carry tensors and plain numbers, so a call travels as Operands: its options, checked as far as
that goes without looking at a value. Each operator has a function that computes, one that only says shapes (for
torch.compile) and a derivative. Kept for the derivative are the operands, the output and two numbers per row: all of it
grows with n, not with n x n.
"""

from functools import partial
from typing import Annotated, Any, NamedTuple, NoReturn, get_args, get_type_hints

import torch
from torch import Tensor

from ...errors import DerivativeError
from ...options import Options, Problem, Tangents, check_shapes, resolve
from .. import torch as adapter
from . import eager, kernel, second
from .batched import each, is_batched
from .forward_mode import refuse_tangents


class Operands(NamedTuple):
    """A call as torch carries it; None is the default of the option. The second part is the type in torch's schema.

    learned     a scale that is a tensor; scale is None then
    row_scale   one factor per query row, (*leading, n_query); scale and learned are None then
    offset      query_offset where it is one int; query_offset is None then
    query_positions   where each query stands in its segment, (*leading, n_query); None is found anew
    seed        64 signed bits, in a tensor because a compiler must not fix it
    """

    query: Annotated[Any, "Tensor"]
    key: Annotated[Any, "Tensor"]
    value: Annotated[Any, "Tensor"]
    scale: Annotated[Any, "float?"]
    learned: Annotated[Any, "Tensor?"]
    row_scale: Annotated[Any, "Tensor?"]
    softcap: Annotated[Any, "float?"]
    left: Annotated[Any, "SymInt?"]
    right: Annotated[Any, "SymInt?"]
    offset: Annotated[Any, "SymInt?"]
    query_offset: Annotated[Any, "Tensor?"]
    key_lengths: Annotated[Any, "Tensor?"]
    query_segments: Annotated[Any, "Tensor?"]
    key_segments: Annotated[Any, "Tensor?"]
    query_positions: Annotated[Any, "Tensor?"]
    mask: Annotated[Any, "Tensor?"]
    bias: Annotated[Any, "Tensor?"]
    sinks: Annotated[Any, "Tensor?"]
    alibi: Annotated[Any, "Tensor?"]
    dropout: Annotated[Any, "float"]
    seed: Annotated[Any, "Tensor?"]

    def learnable(self) -> dict[str, Any]:
        """What a derivative may be asked in, by the name that the caller knows."""
        return {
            "query": self.query, "key": self.key, "value": self.value,
            "scale": self.learned, "bias": self.bias, "sinks": self.sinks, "alibi": self.alibi,
        }  # fmt: skip

    def tangents(self) -> Tangents:
        """Operands that are tangents, as such."""
        return Tangents(**self.learnable())


_SCHEMA = {name: get_args(hint)[1] for name, hint in get_type_hints(Operands, include_extras=True).items()}
_TENSORS = tuple(name for name, kind in _SCHEMA.items() if kind.startswith("Tensor"))
NOTHING = Operands._make([None] * len(Operands._fields))
_OPERANDS = ", ".join(f"{kind} {name}" for name, kind in _SCHEMA.items())
_GRADIENTS = ", ".join("Tensor" for _ in eager.Gradients._fields)
_TANGENTS = ", ".join(f"Tensor? d_{name}" for name in Tangents._fields)
# Fields that are the option of their name as it was given; problem_of() puts the others together again.
_CHANGED = ("scale", "query_offset", "seed")
AS_SAID = tuple(name for name in Options._fields if name in Operands._fields and name not in _CHANGED)


def problem_of(call: Operands) -> Problem:
    """Everything checked and resolved, as for a NumPy call."""
    options = Options(
        scale=1.0 if call.row_scale is not None else call.scale if call.learned is None else call.learned,
        window=None if call.left is None and call.right is None else (call.left, call.right),
        query_offset=call.query_offset if call.offset is None else call.offset,
        seed=None if call.seed is None else int(call.seed) % 2**64,
        segments=None if call.query_segments is None else (call.query_segments, call.key_segments),
        **{name: getattr(call, name) for name in AS_SAID},
    )
    problem, _ = resolve(adapter, call.query, call.key, call.value, options)
    rows = (len(problem.query_offset), call.query.shape[-2])
    if call.row_scale is not None:
        problem = problem._replace(row_scale=call.row_scale.detach().double().reshape(rows).contiguous().numpy())
    if call.query_positions is not None:
        problem = problem._replace(query_positions=call.query_positions.reshape(rows).contiguous().numpy())
    return problem


def forward_values(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, the state of every row, and the fields and keys of a Reading (empty if not measured)."""
    *operands, measured = arguments
    call = Operands._make(operands)
    row_state = kernel.empty_row_state(call.query)
    reading, keys = _empty_reading(call.query, measured)
    filled = (reading, keys) if measured else (None, None)
    return kernel.forward(problem_of(call), row_state, *filled), row_state, reading, keys


def backward_values(d_out: Tensor, out: Tensor, row_state: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """The fields of Gradients; those of sinks, scale, bias and alibi are empty where nothing is learned."""
    *operands, bias_learned = arguments
    call = Operands._make(operands)
    bias = call.bias if bias_learned else None
    gradients = eager.gradients(problem_of(call), d_out, out, row_state, call.sinks, call.learned, bias, call.alibi)
    return tuple(call.query.new_empty(0) if gradient is None else gradient for gradient in gradients)


def tangent_values(*arguments: Any) -> Tensor:
    """The tangent of the output, out of Tangents and Operands."""
    moved, call = apart(arguments)
    problem, d_bias = problem_of(call), moved.bias
    rows = {name: getattr(moved, name) for name in ("query", "key", "value")}
    return kernel.tangent(
        problem,
        Tangents(
            **{name: None if t is None else t.to(call.query.dtype) for name, t in rows.items()},
            sinks=None if moved.sinks is None else adapter.plain("sinks", moved.sinks.double()),
            scale=None if moved.scale is None else float(moved.scale),
            alibi=None if moved.alibi is None else _slopes(problem, moved.alibi),
            bias=None if d_bias is None else d_bias.to(call.bias.dtype).resolve_neg().expand(problem.bias.shape),
        ),
    )


def _slopes(problem: Problem, tangent: Tensor) -> Any:
    spread = tangent.double().expand(problem.query.shape[:-2])
    return adapter.plain("alibi", spread.reshape(problem.alibi.shape).contiguous())


def apart(arguments: tuple[Any, ...]) -> tuple[Tangents, Operands]:
    """The arguments of tangent_values."""
    count = len(Tangents._fields)
    return Tangents._make(arguments[:count]), Operands._make(arguments[count:])


def _forward_operator(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *operands, _measured = arguments
    refuse_tangents(_IN_AN_OPERATOR, **Operands._make(operands).learnable())
    return forward_values(*arguments)


def _backward_operator(d_out: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    refuse_tangents(_IN_AN_OPERATOR, d_out=d_out)
    return backward_values(d_out, *arguments)


_IN_AN_OPERATOR = "inside torch.compile (compile what calls torch.func.jvp instead)"
_made = partial(torch.library.custom_op, mutates_args=())
attention_forward = _made(
    "rootdk::attention_forward",
    _forward_operator,
    schema=f"({_OPERANDS}, bool measured) -> (Tensor, Tensor, Tensor, Tensor)",
)
attention_backward = _made(
    "rootdk::attention_backward",
    _backward_operator,
    schema=f"(Tensor d_out, Tensor out, Tensor row_state, {_OPERANDS}, bool bias_learned) -> ({_GRADIENTS})",
)
attention_tangent = _made("rootdk::attention_tangent", tangent_values, schema=f"({_TANGENTS}, {_OPERANDS}) -> Tensor")


@attention_forward.register_fake  # type: ignore[untyped-decorator]
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *operands, measured = arguments
    call = Operands._make(operands)
    check_shapes(tuple(call.query.shape), tuple(call.key.shape), tuple(call.value.shape))
    reading, keys = _empty_reading(call.query, measured)
    return kernel.empty_out(call.query, call.value), kernel.empty_row_state(call.query), reading, keys


@attention_backward.register_fake  # type: ignore[untyped-decorator]
def _(d_out: Tensor, out: Tensor, row_state: Tensor, *arguments: Any) -> tuple[Tensor, ...]:  # noqa: ARG001
    *operands, bias_learned = arguments
    call = Operands._make(operands)
    d_query, d_key, d_value = kernel.empty_gradients(call.query, call.key, call.value)
    learned = {"sinks": call.sinks, "scale": call.learned, "bias": call.bias if bias_learned else None}
    learned["alibi"] = call.alibi
    empty = {name: call.query.new_empty(0) if t is None else t.new_empty(t.shape) for name, t in learned.items()}
    return tuple(eager.Gradients(query=d_query, key=d_key, value=d_value, **empty))


@attention_tangent.register_fake  # type: ignore[untyped-decorator]
def _(*arguments: Any) -> Tensor:
    _moved, call = apart(arguments)
    return kernel.empty_out(call.query, call.value)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Note what pull_back needs."""
    *operands, _measured = inputs
    out, row_state, *of_reading = output
    ctx.mark_non_differentiable(row_state, *of_reading)
    keep_call(ctx, Operands._make(operands), out, row_state)


def pull_back(run: Any, ctx: Any, d_out: Any, *_: Any) -> tuple[Any, ...]:
    """The gradients of the arguments of forward_values; `run` is the operator that computes them."""
    if is_batched(d_out):
        return each(lambda entry: pull_back(run, ctx, entry), d_out)
    gradients = NOTHING
    if d_out is not None:
        (out, row_state), call = kept(ctx)
        # The one gradient that may be of size n x n is made only for a bias that asks for it.
        *asked, _measured = ctx.needs_input_grad
        bias_learned = bool(Operands._make(asked).bias)
        pulled = eager.Gradients._make(run(d_out, out, row_state, *call, bias_learned))
        gradients = NOTHING._replace(
            query=pulled.query,
            key=pulled.key,
            value=pulled.value,
            learned=None if call.learned is None else pulled.scale,
            sinks=None if call.sinks is None else pulled.sinks,
            alibi=None if call.alibi is None else pulled.alibi,
            bias=pulled.bias if bias_learned else None,
        )
    return (*gradients, None)


def keep_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG001
    """Note what pull_back_twice needs."""
    d_out, out, row_state, *operands, ctx.bias_learned = inputs
    keep_call(ctx, Operands._make(operands), d_out, out, row_state)


def pull_back_twice(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    """The derivative of the derivative, out of plain tensor operations that hold all scores at once.

    The output and the state of the rows follow from the rest: they have no derivative of their own.
    """
    if is_batched(*grads):
        return each(lambda *entry: pull_back_twice(ctx, *entry), *grads)
    (d_out, _out, _row_state), call = kept(ctx)
    given = call.learnable()
    _d_out, _out, _row_state, *asked, _bias_learned = ctx.needs_input_grad
    if not Operands._make(asked).bias:
        del given["bias"]
    pulled = second.second_derivative(eager.Gradients._make(grads), d_out, problem_of(call), given)
    learned = pulled.pop("scale", None)
    d_d_out = pulled.pop("d_out", None)
    return (d_d_out, None, None, *NOTHING._replace(learned=learned, **pulled), None)


attention_forward.register_autograd(partial(pull_back, attention_backward), setup_context=keep)
attention_backward.register_autograd(pull_back_twice, setup_context=keep_second)


@attention_tangent.register_autograd  # type: ignore[untyped-decorator]
def _(_ctx: Any, _grad: Any) -> Any:
    refuse_derivative("of a tangent inside torch.compile")


def refuse_derivative(which: str) -> NoReturn:
    raise DerivativeError(f"rootdk: the derivative {which} is not computed")


def keep_call(ctx: Any, call: Operands, *others: Tensor) -> None:
    ctx.set_materialize_grads(False)
    tensors = (*others, *(getattr(call, name) for name in _TENSORS))
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.numbers = call._replace(**dict.fromkeys(_TENSORS))


def kept(ctx: Any) -> tuple[tuple[Any, ...], Operands]:
    """The others and the operands that keep_call was given."""
    saved = ctx.saved_tensors
    others, tensors = saved[: -len(_TENSORS)], saved[-len(_TENSORS) :]
    return others, ctx.numbers._replace(**dict(zip(_TENSORS, tensors, strict=True)))


def _empty_reading(query: Tensor, measured: bool) -> tuple[Tensor, Tensor]:
    if measured:
        return kernel.empty_reading(query)
    return query.new_empty(0), query.new_empty(0, dtype=torch.int64)
