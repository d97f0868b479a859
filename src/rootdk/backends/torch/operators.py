"""The three passes as operators that torch can carry: rootdk::attention_forward, attention_backward, attention_tangent.

A compiler and torch.func carry tensors and plain numbers, so a call is passed as Operands: its options, checked as far
as possible without reading a value. Each operator has a function that computes, one that only gives shapes (for
torch.compile) and a derivative. The operands, the output and two numbers per row are kept for the derivative: all of it
grows with n, not with n x n.
"""

from functools import partial
from typing import Annotated, Any, NamedTuple, NoReturn, get_args, get_type_hints

import torch
from torch import Tensor

from ...errors import DerivativeError
from ...options import ENTRIES, LEARNED, PAIRS, ROWS, Learnable, Options, Problem, check_shapes, resolve
from .. import torch as adapter
from . import eager, kernel, second
from .kernel import each, is_batched, refuse_tangents


class Facts(NamedTuple):
    """All of a call that is not Learnable, as torch carries it; None is the default of the option.

    The second part of an annotation is the type in torch's schema.

    factor      the scale where it is a number
    row_scale   one factor per query row, (*leading, n_query); there is no other scale then
    offset      query_offset where it is one int; query_offset is None then
    query_positions   where each query stands in its segment, (*leading, n_query); if None, it is computed
    seed        64 signed bits, in a tensor because a compiler must not fix it
    """

    factor: Annotated[Any, "float?"] = None
    row_scale: Annotated[Any, "Tensor?"] = None
    softcap: Annotated[Any, "float?"] = None
    left: Annotated[Any, "SymInt?"] = None
    right: Annotated[Any, "SymInt?"] = None
    offset: Annotated[Any, "SymInt?"] = None
    query_offset: Annotated[Any, "Tensor?"] = None
    key_lengths: Annotated[Any, "Tensor?"] = None
    query_segments: Annotated[Any, "Tensor?"] = None
    key_segments: Annotated[Any, "Tensor?"] = None
    query_positions: Annotated[Any, "Tensor?"] = None
    mask: Annotated[Any, "Tensor?"] = None
    dropout: Annotated[Any, "float"] = 0.0
    seed: Annotated[Any, "Tensor?"] = None


class Operands(NamedTuple):
    """A call as torch carries it. An operator takes its parts in order: *call.given, *call.facts."""

    given: Learnable
    facts: Facts


def operands(arguments: Any) -> Operands:
    """The Operands in the arguments of an operator."""
    count = len(Learnable._fields)
    return Operands(Learnable._make(arguments[:count]), Facts._make(arguments[count:]))


_SCHEMA = {name: "Tensor" if name in ROWS else "Tensor?" for name in Learnable._fields}
_SCHEMA |= {name: get_args(hint)[1] for name, hint in get_type_hints(Facts, include_extras=True).items()}
_OPTIONS = tuple(name for name in Facts._fields if name in Options._fields)
_FACT_TENSORS = tuple(name for name in Facts._fields if _SCHEMA[name] == "Tensor?")
_OPERANDS = ", ".join(f"{kind} {name}" for name, kind in _SCHEMA.items())
_GRADIENTS = ", ".join("Tensor" for _ in Learnable._fields)
_TANGENTS = ", ".join(f"Tensor? d_{name}" for name in Learnable._fields)
# Facts have no derivative.
NO_FACTS = (None,) * len(Facts._fields)


def problem_of(call: Operands) -> Problem:
    """Everything checked and resolved, as for a NumPy call."""
    given, facts = call
    unchanged = {name: getattr(given, name) for name in LEARNED} | {name: getattr(facts, name) for name in _OPTIONS}
    options = Options(**unchanged)._replace(
        scale=1.0 if facts.row_scale is not None else facts.factor if given.scale is None else given.scale,
        window=None if facts.left is None and facts.right is None else (facts.left, facts.right),
        query_offset=facts.query_offset if facts.offset is None else facts.offset,
        segments=None if facts.query_segments is None else (facts.query_segments, facts.key_segments),
        seed=None if facts.seed is None else int(facts.seed) % 2**64,
    )
    problem, _ = resolve(adapter, given.query, given.key, given.value, options)
    rows = (len(problem.query_offset), given.query.shape[-2])
    if facts.row_scale is not None:
        problem = problem._replace(row_scale=facts.row_scale.detach().double().reshape(rows).contiguous().numpy())
    if facts.query_positions is not None:
        problem = problem._replace(query_positions=facts.query_positions.reshape(rows).contiguous().numpy())
    return problem


def asked(given: Learnable, pairs_asked: bool) -> Learnable:
    """The tensors that get a gradient: all that are present, but those over pairs (n x n) only if wanted."""
    return given if pairs_asked else given._replace(**dict.fromkeys(PAIRS))


def among(pulled: Any, of: Learnable) -> Learnable:
    """Gradients, None for each input that is absent."""
    return Learnable._make(None if t is None else gradient for gradient, t in zip(pulled, of, strict=True))


def asks_for_pairs(wanted: Learnable) -> bool:
    """Whether a part of needs_input_grad asks for a gradient over pairs."""
    return any(getattr(wanted, name) for name in PAIRS)


def forward_values(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, the state of every row, and the fields and keys of a Reading (empty if not measured)."""
    *flat_operands, measured = arguments
    call = operands(flat_operands)
    row_state = kernel.empty_row_state(call.given.query)
    reading, keys = _empty_reading(call.given.query, measured)
    filled = (reading, keys) if measured else (None, None)
    return kernel.forward(problem_of(call), row_state, *filled), row_state, reading, keys


def backward_values(d_out: Tensor, out: Tensor, row_state: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """The gradients of Learnable, empty where there are none."""
    *flat_operands, pairs_asked = arguments
    call = operands(flat_operands)
    gradients = eager.gradients(problem_of(call), d_out, out, row_state, asked(call.given, pairs_asked))
    return tuple(out.new_empty(0) if gradient is None else gradient for gradient in gradients)


def tangent_values(*arguments: Any) -> Tensor:
    """The tangent of the output, from tangents and Operands."""
    given_tangents, call = split_tangents(arguments)
    problem = problem_of(call)
    tangents: dict[str, Any] = {}
    for name, tangent in kernel.present(given_tangents, given_tangents._fields):
        if name in ROWS:
            tangents[name] = tangent.to(call.given.query.dtype)
        elif name in PAIRS:
            of = getattr(problem, name)
            tangents[name] = tangent.to(of.dtype).resolve_neg().expand(of.shape)
        elif name in ENTRIES:
            spread = tangent.double().expand(problem.query.shape[:-2])
            tangents[name] = adapter.plain(name, spread.reshape(getattr(problem, name).shape).contiguous())
        else:
            tangents[name] = adapter.plain(name, tangent.double())
    return kernel.tangent(problem, Learnable(**tangents))


def split_tangents(arguments: Any) -> tuple[Learnable, Operands]:
    """Split the arguments of tangent_values."""
    count = len(Learnable._fields)
    return Learnable._make(arguments[:count]), operands(arguments[count:])


def _forward_operator(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *flat_operands, _measured = arguments
    refuse_tangents(_IN_AN_OPERATOR, **operands(flat_operands).given._asdict())
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
    schema=f"(Tensor d_out, Tensor out, Tensor row_state, {_OPERANDS}, bool pairs_asked) -> ({_GRADIENTS})",
)
attention_tangent = _made("rootdk::attention_tangent", tangent_values, schema=f"({_TANGENTS}, {_OPERANDS}) -> Tensor")


@attention_forward.register_fake  # type: ignore[untyped-decorator]
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *flat_operands, measured = arguments
    given = operands(flat_operands).given
    check_shapes(tuple(given.query.shape), tuple(given.key.shape), tuple(given.value.shape))
    reading, keys = _empty_reading(given.query, measured)
    return kernel.empty_out(given.query, given.value), kernel.empty_row_state(given.query), reading, keys


@attention_backward.register_fake  # type: ignore[untyped-decorator]
def _(d_out: Tensor, out: Tensor, row_state: Tensor, *arguments: Any) -> tuple[Tensor, ...]:  # noqa: ARG001
    *flat_operands, pairs_asked = arguments
    query, key, value, *learned = asked(operands(flat_operands).given, pairs_asked)
    empty = (query.new_empty(0) if t is None else t.new_empty(t.shape) for t in learned)
    return (*kernel.empty_gradients(query, key, value), *empty)


@attention_tangent.register_fake  # type: ignore[untyped-decorator]
def _(*arguments: Any) -> Tensor:
    _tangents, call = split_tangents(arguments)
    return kernel.empty_out(call.given.query, call.given.value)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep what pull_back needs."""
    *flat_operands, _measured = inputs
    out, row_state, *of_reading = output
    ctx.mark_non_differentiable(row_state, *of_reading)
    keep_call(ctx, operands(flat_operands), out, row_state)


def pull_back(run: Any, ctx: Any, d_out: Any, *_: Any) -> tuple[Any, ...]:
    """The gradients of the arguments of forward_values; `run` is the operator that computes them."""
    if is_batched(d_out):
        return each(lambda entry: pull_back(run, ctx, entry), d_out)
    gradients = Learnable()
    if d_out is not None:
        (out, row_state), call = kept(ctx)
        *wanted, _measured = ctx.needs_input_grad
        pairs_asked = asks_for_pairs(operands(wanted).given)
        pulled = run(d_out, out, row_state, *call.given, *call.facts, pairs_asked)
        gradients = among(pulled, asked(call.given, pairs_asked))
    return (*gradients, *NO_FACTS, None)


def keep_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG001
    """Keep what pull_back_twice needs."""
    d_out, out, row_state, *flat_operands, ctx.pairs_asked = inputs
    keep_call(ctx, operands(flat_operands), d_out, out, row_state)


def pull_back_twice(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    """The derivative of the derivative, by plain tensor operations that hold all scores at once.

    The output and the state of the rows follow from the rest, so they have no derivative of their own.
    """
    if is_batched(*grads):
        return each(lambda *entry: pull_back_twice(ctx, *entry), *grads)
    (d_out, _out, _row_state), call = kept(ctx)
    _d_out, _out, _row_state, *wanted, _pairs_asked = ctx.needs_input_grad
    given = asked(call.given, asks_for_pairs(operands(wanted).given))
    d_d_out, pulled = second.second_derivative(Learnable._make(grads), d_out, problem_of(call), given)
    return (d_d_out, None, None, *pulled, *NO_FACTS, None)


attention_forward.register_autograd(partial(pull_back, attention_backward), setup_context=keep)
attention_backward.register_autograd(pull_back_twice, setup_context=keep_second)


@attention_tangent.register_autograd  # type: ignore[untyped-decorator]
def _(_ctx: Any, _grad: Any) -> Any:
    refuse_derivative("of a tangent inside torch.compile")


def refuse_derivative(which: str) -> NoReturn:
    raise DerivativeError(f"rootdk: the derivative {which} is not computed")


def keep_call(ctx: Any, call: Operands, *others: Tensor) -> None:
    ctx.set_materialize_grads(False)
    tensors = (*others, *call.given, *(getattr(call.facts, name) for name in _FACT_TENSORS))
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.numbers = call.facts._replace(**dict.fromkeys(_FACT_TENSORS))


def kept(ctx: Any) -> tuple[tuple[Any, ...], Operands]:
    """The others and the operands that keep_call was given."""
    saved = list(ctx.saved_tensors)
    of_facts = [saved.pop() for _ in _FACT_TENSORS][::-1]
    given = Learnable._make([saved.pop() for _ in Learnable._fields][::-1])
    return tuple(saved), Operands(given, ctx.numbers._replace(**dict(zip(_FACT_TENSORS, of_facts, strict=True))))


def _empty_reading(query: Tensor, measured: bool) -> tuple[Tensor, Tensor]:
    if measured:
        return kernel.empty_reading(query)
    return query.new_empty(0), query.new_empty(0, dtype=torch.int64)
