"""The options of the operator: what a caller may set (Options), what follows from it (Problem), and the way between.

Every check and every default is here. Backends, autograd, the registered operators, the ring and the binding read a
Problem, by the names of its fields; none of them decides anything.
"""

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from inspect import cleandoc, signature
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import checks
from .checks import FAR, Integers, shown, type_name
from .errors import ArgumentError, ArgumentTypeError
from .scaling import SQRT, ScaleRule, factor_at, rule

# Far beyond any use. The kernel multiplies the query by it, and for numbers of the same size the product is still a
# float32.
_LARGEST_SCALE = 1e19

# Makes a NamedTuple of its values: Options(*values) takes three times as long, which a small call would notice.
new_record = tuple.__new__

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Options(NamedTuple):
    """What a caller may give besides query, key and value, unchanged: name, meaning, default."""

    scale: Annotated[
        Any,
        """\
        None is 1/sqrt(d_k); a number up to 1e19 is taken as it is; a name ("none", "sqrt", "dk", ...) or a
        rule of rootdk.scaling. On tensors also a tensor without axes, such as a learned temperature.""",
    ] = None
    causal: Annotated[Any, "query i sees key j only if j <= i + query_offset."] = False
    mask: Annotated[Any, "bool, broadcasts to (..., heads, n_query, n_key); True keeps a pair."] = None
    bias: Annotated[
        Any,
        """\
        float, broadcasts likewise; added after scale and softcap. -inf hides a pair, as a mask does.""",
    ] = None
    window: Annotated[
        Any,
        """\
        (left, right) or one int for both: the query at position p = i + query_offset sees key j only if
        p - left <= j <= p + right. None in the pair is no limit on that side.""",
    ] = None
    query_offset: Annotated[
        Any,
        """\
        where the first query stands among the keys: an int, or ints of the leading shape. None aligns the
        last query with the last key: n_key - n_query, or key_lengths - n_query.""",
    ] = None
    key_lengths: Annotated[Any, "ints of the leading shape: keys from there on are padding."] = None
    softcap: Annotated[Any, "a number c > 0: logits become c*tanh(s/c), before bias and mask."] = None
    sinks: Annotated[Any, "one number per query head: a logit that joins the denominator and has no value."] = None
    alibi: Annotated[
        Any,
        """\
        slopes, numbers that broadcast to (..., heads), one per query head as a rule: slope * |p - j| is taken
        from the logit of the query at position p and key j, after scale and softcap.""",
    ] = None
    segments: Annotated[
        Any,
        """\
        packed documents: ints, broadcast to (..., n), for queries and keys alike, or a tuple of two such for
        each. A pair is visible only inside one segment, and positions count its keys: causal, window, alibi and
        query_offset are as if every segment were a call of its own.""",
    ] = None
    dropout: Annotated[Any, "the share of weights that are set to 0, the others grow by 1/(1 - dropout)."] = 0.0
    seed: Annotated[
        Any,
        """\
        0 <= seed < 2**64, for dropout; None draws one, for tensors from torch's default generator. The same
        seed gives the same result on any number of threads.""",
    ] = None


class Problem(NamedTuple):
    """One call as facts: everything is checked, every default is resolved.

    `batch` is the product of the leading axes of `query` (1 if there are none).
    """

    query: Annotated[Any, "(*leading, heads, n_query, d_k)"]
    key: Annotated[
        Any, "(*leading, kv_heads, n_key, d_k); heads % kv_heads == 0; of query's type, or half under float32"
    ]
    value: Annotated[Any, "(*leading, kv_heads, n_key, d_v), of key's type"]
    scale: Annotated[float, "one finite number"]
    row_scale: Annotated[Any, "None, or float64 (batch, n_query): one more factor for each query row"]
    softcap: Annotated[float | None, "None, or a number > 0"]
    left: Annotated[int | None, "the query at position p sees key j only if p - left <= j; None is no limit"]
    right: Annotated[int | None, "and only if j <= p + right"]
    query_offset: Annotated[Any, "int64 (batch,): query i of batch b stands at position i + query_offset[b]"]
    key_lengths: Annotated[Any, "None, or int64 (batch,): keys from there on are padding"]
    query_segments: Annotated[
        Any, "None, or int64 (batch, n_query): a pair is visible only where it is that of the key"
    ]
    key_segments: Annotated[Any, "None, or int64 (batch, n_key)"]
    query_positions: Annotated[Any, "None, or int64 (batch, n_query): where a query stands, in place of the above"]
    key_positions: Annotated[Any, "None, or int64 (batch, n_key): where a key stands; None is its index"]
    mask: Annotated[Any, "None, or a view broadcast to (*leading, heads, n_query, n_key)"]
    bias: Annotated[Any, "likewise"]
    sinks: Annotated[Any, "None, or float64 (heads,)"]
    alibi: Annotated[Any, "None, or float64 (batch, heads): what a logit loses per key between it and the query"]
    dropout: Annotated[float, "0 <= dropout < 1"]
    seed: Annotated[int, "0 <= seed < 2**64"]

    def with_arrays(self, query: Any, key: Any, value: Any) -> "Problem":
        """The same facts about other arrays: what _replace gives, in a fraction of its time."""
        return new_record(Problem, (query, key, value) + self[_FACTS])  # type: ignore[operator]  # a slice of a tuple is one


_FACTS = slice(Problem._fields.index("value") + 1, None)


def _rows_of_view(array: Any, rows: Any, n_rows: int) -> Any:
    # An axis along which it was broadcast has stride 0: one entry of it is taken, and broadcast again.
    in_numpy = isinstance(array, np.ndarray)
    strides = array.strides if in_numpy else array.stride()
    distinct = array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]
    distinct = distinct if strides[-2] == 0 else distinct[..., rows, :]
    shape = (*array.shape[:-2], n_rows, array.shape[-1])
    return np.broadcast_to(distinct, shape) if in_numpy else distinct.expand(shape)


def with_rows(problem: Problem, rows: Any, rows_of_pairs: Callable[..., Any] = _rows_of_view) -> Problem:
    """The problem of some of its query rows, each at its old position; rows are ints or a slice.

    rows_of_pairs(array, rows, n_rows) is these rows of a mask or a bias.
    """
    if problem.query_positions is None:
        position = np.arange(problem.query.shape[-2], dtype=np.int64) + problem.query_offset[:, None]
        problem = problem._replace(query_positions=position)
    query = problem.query[..., rows, :]
    changed = {"query": query}
    for name in ("query_positions", "query_segments", "row_scale"):
        if (array := getattr(problem, name)) is not None:
            changed[name] = np.ascontiguousarray(array[:, rows]) if isinstance(array, np.ndarray) else array[:, rows]
    for name in ("mask", "bias"):
        if (array := getattr(problem, name)) is not None:
            changed[name] = rows_of_pairs(array, rows, query.shape[-2])
    return problem._replace(**changed)


class Learnable(NamedTuple):
    """A field for each input that has a derivative: tensors, their gradients or tangents; None where there is none.

    The annotation says which axes an input has; its checks, the shape of its gradient and its vmap rule follow from
    that.

    rows      has the shape of the same array in the Problem
    number    one number; in a Problem a float
    heads     (heads,); in a Problem float64
    entries   broadcasts to (*leading, heads); in a Problem float64 (batch, heads)
    pairs     broadcasts to (*leading, heads, n_query, n_key); in a Problem broadcast like its own
    """

    query: Annotated[Any, "rows"] = None
    key: Annotated[Any, "rows"] = None
    value: Annotated[Any, "rows"] = None
    sinks: Annotated[Any, "heads"] = None
    scale: Annotated[Any, "number"] = None
    bias: Annotated[Any, "pairs"] = None
    alibi: Annotated[Any, "entries"] = None


# The names of the inputs that lie in one of these ways.
ROWS, NUMBERS, HEADS, ENTRIES, PAIRS = (
    tuple(name for name, hint in Learnable.__annotations__.items() if hint.__metadata__[0] == lies)
    for lies in ("rows", "number", "heads", "entries", "pairs")
)
# Which options may be tensors with a gradient.
LEARNED = tuple(name for name in Learnable._fields if name not in ROWS)


def option_meanings() -> str:
    """The options and what they mean, as a docstring shows them."""
    lines = []
    for name, hint in Options.__annotations__.items():
        meaning = cleandoc(hint.__metadata__[0]).replace("\n", "\n" + " " * 18)
        lines.append(f"    {name:<13} {meaning}")
    return "\n".join(lines).lstrip()


def takes(
    template: Callable[Arguments, Any],
) -> Callable[[Callable[[dict[str, Any]], Result]], Callable[Arguments, Result]]:
    """Let a function of a dictionary be called like `template`, which alone lists its arguments and their defaults."""
    arguments = signature(template)

    def called_alike(function: Callable[[dict[str, Any]], Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            try:
                bound = arguments.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            bound.apply_defaults()
            return function(bound.arguments)

        returned = signature(function).return_annotation
        call.__signature__ = arguments.replace(return_annotation=returned)  # type: ignore[attr-defined]
        return call

    return called_alike


def given_options(arguments: dict[str, Any]) -> Options:
    """The options among the arguments of a call, which is its locals(). Options that are missing get their defaults."""
    return new_record(Options, map(arguments.get, Options._fields, Options._field_defaults.values()))


def resolve(backend: Any, query: Any, key: Any, value: Any, options: Options) -> tuple[Problem, bool]:
    """The Problem, and whether the caller's arrays had no head axis (so that the result has none)."""
    query, key, value = backend.inputs(query, key, value)
    try:
        shape, key_shape, value_shape = query.shape, key.shape, value.shape
    except RuntimeError:  # checking every array first would take time in every call
        backend.refuse_shapeless(query=query, key=key, value=value)
        raise
    if not (shape == key_shape == value_shape) or len(shape) < 2 or shape[-1] == 0:
        check_shapes(tuple(shape), tuple(key_shape), tuple(value_shape))
    one_head = len(shape) == 2
    if one_head:
        query, key, value = query[None], key[None], value[None]
        shape, key_shape = query.shape, key.shape
    n_key = key_shape[-2]
    scale, causal, mask, bias, window, query_offset, key_lengths, softcap, sinks, alibi, segments, dropout, seed = (
        options
    )
    if (
        mask is bias is window is key_lengths is softcap is sinks is alibi is segments is seed is None
        and (scale is None or (type(scale) is float and scale != 0.0))  # -0.0 == 0.0: one key, two scales
        and (causal is False or causal is True)
        and (query_offset is None or type(query_offset) is int)
        and type(dropout) is float
        and dropout == 0.0
    ):
        problem = usual_facts(backend, shape, n_key, scale, causal, query_offset)
    else:
        own_facts = getattr(backend, "facts", None)  # of a library whose numbers may not be known yet
        if own_facts is not None:
            problem = own_facts(shape, n_key, one_head, options)
        else:
            problem = facts(backend, shape, n_key, one_head, options)
    return problem.with_arrays(query, key, value), one_head


@lru_cache(maxsize=256)
def usual_facts(
    backend: Any, shape: tuple[int, ...], n_key: int, scale: float | None, causal: bool, query_offset: int | None
) -> Problem:
    """The facts of nearly every call: numbers only, and the same ones again and again, so they are kept."""
    return facts(backend, shape, n_key, False, Options(scale=scale, causal=causal, query_offset=query_offset))


def facts(backend: Any, shape: tuple[int, ...], n_key: int, one_head: bool, options: Options) -> Problem:
    """A Problem without its arrays."""
    leading, n_query = tuple(shape)[:-3], shape[-2]
    lengths = None
    if options.key_lengths is not None:
        lengths = checks.integers("key_lengths", backend.plain("key_lengths", options.key_lengths), leading, 0, n_key)
    query_offset = options.query_offset
    if type(query_offset) is int and abs(query_offset) <= FAR // 2:
        offset = np.full(math.prod(leading), query_offset, np.int64)
    elif query_offset is not None:
        given = backend.plain("query_offset", query_offset)
        offset = checks.integers("query_offset", given, leading, -FAR // 2, FAR // 2)
    elif lengths is not None:
        offset = lengths - n_query
    else:
        offset = np.full(math.prod(leading), n_key - n_query, np.int64)

    packed = _NO_SEGMENTS
    keys: Any = n_key if lengths is None else lengths[:, None]
    if options.segments is not None:
        of_queries, of_keys = segment_pair(options.segments, n_query, n_key)
        ids = _segment_ids(backend.plain("segments", of_queries), leading, n_query)
        key_ids = ids if of_keys is of_queries else _segment_ids(backend.plain("segments", of_keys), leading, n_key)
        packed, keys = _segments(ids, key_ids, lengths, None if query_offset is None else offset)

    left, right = limits(options)
    row_scale = None
    if options.scale is None:
        scale: Any = SQRT.factor(shape[-1], None, None)
    else:
        position = packed.query_positions
        if position is None:
            position = np.arange(n_query, dtype=np.int64) + offset[:, None]
        scale, row_scale = _scale(backend.plain("scale", options.scale), shape[-1], keys, position)

    sinks, alibi, heads = options.sinks, options.alibi, shape[-3]
    rate, seed = checks.share("dropout", options.dropout), options.seed
    scores = () if options.mask is None and options.bias is None else (*shape[:-1], n_key)
    return Problem(
        query=None,
        key=None,
        value=None,
        scale=scale,
        row_scale=row_scale,
        softcap=None if options.softcap is None else checks.positive("softcap", options.softcap),
        left=left,
        right=right,
        query_offset=offset,
        key_lengths=lengths,
        **packed._asdict(),
        mask=None if options.mask is None else backend.broadcast("mask", options.mask, scores, True),
        bias=None if options.bias is None else backend.broadcast("bias", options.bias, scores, False),
        sinks=None if sinks is None else _sinks("sinks", backend.plain("sinks", sinks), heads, one_head),
        alibi=None if alibi is None else _alibi("alibi", backend.plain("alibi", alibi), (*leading, heads)),
        dropout=rate,
        seed=checks.whole_seed(seed) if seed is not None else 0 if rate == 0.0 else backend.new_seed(),
    )


def resolve_tangents(
    backend: Any, problem: Problem, options: Options, one_head: bool, tangents: Learnable
) -> Learnable:
    """The tangents of a Problem, each checked against its input."""
    checked_tangents: dict[str, Any] = {}
    for name, tangent in tangents._asdict().items():
        if tangent is None:
            continue
        argument, of = f"d_{name}", getattr(problem, name)
        if of is None:
            raise ArgumentError(f"{argument}: must be None without {name}, got {type_name(tangent)}")
        if name in ROWS:
            shape = tuple(of.shape[1:] if one_head else of.shape)
            checked = fitting(backend, argument, tangent, problem.query, name, shape)
            checked_tangents[name] = checked[None] if one_head else checked
        elif name in PAIRS:
            checked_tangents[name] = spread = backend.broadcast(argument, tangent, tuple(of.shape), False)
            if spread.dtype != of.dtype:
                wanted, got = (str(kind).removeprefix("torch.") for kind in (of.dtype, spread.dtype))
                raise ArgumentTypeError(f"{argument}: must be {wanted} to match {name}, got {got}")
        elif name in HEADS:
            checked_tangents[name] = _sinks(
                argument, backend.plain(argument, tangent), problem.query.shape[-3], one_head
            )
        elif name in ENTRIES:
            checked_tangents[name] = _alibi(argument, backend.plain(argument, tangent), tuple(problem.query.shape[:-2]))
        else:
            checked_tangents[name] = checks.real(argument, backend.plain(argument, tangent), "None or a number")
    if tangents.scale is not None and problem.row_scale is not None:
        raise ArgumentError(f"d_scale: must be None where the scale is a rule by row, got {shown(options.scale)}")
    return Learnable(**checked_tangents)


class _Segments(NamedTuple):
    """The fields of a Problem that say which keys belong together, and where each of them stands."""

    query_segments: Any = None
    key_segments: Any = None
    query_positions: Any = None
    key_positions: Any = None


_NO_SEGMENTS = _Segments()


def fitting(backend: Any, argument: str, array: Any, query: Any, of: str, shape: tuple[int, ...]) -> Any:
    """A gradient or a tangent, checked for the type of query and for the shape of the array that `of` names."""
    checked = backend.floats(argument, array, query.dtype)
    if tuple(checked.shape) != tuple(shape):
        raise ArgumentError(f"{argument}: must have the shape of {of} {tuple(shape)}, got {tuple(checked.shape)}")
    return checked


def check_one_type(query: Any, key: Any, purpose: str) -> None:
    """A cache of half types with float32 queries works forward only: other uses are an error in one line."""
    if key.dtype != query.dtype:
        ours, theirs = (str(array.dtype).removeprefix("torch.") for array in (query, key))
        raise ArgumentTypeError(f"key: must be {ours} like query for {purpose}, got {theirs}")


def segment_pair(given: Any, n_query: int, n_key: int) -> tuple[Any, Any]:
    """The segments of the queries and those of the keys, as they were given."""
    if not isinstance(given, tuple):
        if n_query != n_key:
            lengths = f"{n_query} queries and {n_key} keys"
            raise ArgumentError(f"segments: must be a tuple of two (queries, keys) for {lengths}, got one array")
        return given, given
    if len(given) != 2:
        raise ArgumentError(f"segments: must be one array or a tuple of two (queries, keys), got {len(given)}")
    return given


def _segment_ids(given: Any, leading: tuple[int, ...], n: int) -> Integers:
    array = checks.numbers("segments", given)
    if array.dtype.kind not in "iu" and array.size:
        raise ArgumentTypeError(f"segments: must be integers of at most 64 bits, got {shown(given)}")
    try:
        full = np.broadcast_to(array.astype(np.int64), (*leading, n))
    except ValueError:
        raise ArgumentError(
            f"segments: must broadcast to (..., n) = {(*leading, n)}, got shape {array.shape}"
        ) from None
    return np.ascontiguousarray(full).reshape(math.prod(leading), n)


def _segments(
    of_queries: Integers, of_keys: Integers, lengths: Integers | None, offset: Integers | None
) -> tuple[_Segments, Integers]:
    """The facts, and how many keys the segment of every query has, (batch, n_query), at least 1."""
    position, key_position, keys = (np.empty_like(like) for like in (of_queries, of_keys, of_queries))
    one_array = of_queries is of_keys
    for b in range(len(of_queries)):
        length = of_keys.shape[1] if lengths is None else int(lengths[b])
        key_position[b], keys_here = _ranks(of_keys[b])
        position[b], queries_here = (key_position[b], keys_here) if one_array else _ranks(of_queries[b])
        if one_array and length == len(keys_here):
            keys[b] = keys_here
        else:
            keys[b] = _counts(of_queries[b], of_keys[b, :length])
        if offset is None:  # the last query of a segment stands at its last key
            position[b] += keys[b] - queries_here
    if offset is not None:
        position += offset[:, None]
    return _Segments(of_queries, of_keys, position, key_position), np.maximum(keys, 1)  # a rule may take its logarithm


def _ranks(ids: Integers) -> tuple[Integers, Integers]:
    """For each id the number of equal ones before it, and how many there are in all."""
    order = np.argsort(ids, kind="stable")
    begins = np.append(True, np.diff(ids[order]) != 0)[: len(ids)]
    starts = np.flatnonzero(begins)
    counts = np.diff(np.append(starts, len(ids)))
    rank, count = np.empty_like(ids), np.empty_like(ids)
    rank[order] = np.arange(len(ids)) - np.repeat(starts, counts)
    count[order] = np.repeat(counts, counts)
    return rank, count


def _counts(ids: Integers, among: Integers) -> Integers:
    """How many of the others each id is equal to."""
    known, counts = np.unique(among, return_counts=True)
    place = np.searchsorted(known, ids)
    matches = np.append(known, 0)[place] == ids
    return np.where(matches & (place < len(known)), np.append(counts, 0)[place], 0)


def limits(options: Options) -> tuple[int | None, int | None]:
    """How far a query sees to the left and to the right of its position; None is no limit."""
    left, right = (None, None) if options.window is None else checks.window_limits(options.window)
    return left, 0 if checks.truth("causal", options.causal) else right


def check_shapes(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]) -> None:
    """An error that names the array whose shape does not fit the others."""
    rank = len(query)
    if rank < 2:
        raise ArgumentError(f"query: must have at least 2 axes (n_query, d_k), got {rank} (query {query})")
    if query[-1] == 0:
        raise ArgumentError(f"query: last axis must be at least 1, got 0 (query {query})")
    for name, shape in (("key", key), ("value", value)):
        if len(shape) != rank:
            problem = f"must have {rank} axes like query, got {len(shape)}"
        elif shape[:-3] != query[:-3]:
            problem = f"leading axes must be {query[:-3]} to match query, got {shape[:-3]}"
        else:
            continue
        raise ArgumentError(f"{name}: {problem} (query {query}, {name} {shape})")
    if key[-1] != query[-1]:
        problem = f"key: last axis must be {query[-1]} to match query, got {key[-1]} (query {query}, key {key})"
    elif rank > 2 and (query[-3] % key[-3] if key[-3] else query[-3]):
        problem = f"key: heads must divide the {query[-3]} of query, got {key[-3]} (query {query}, key {key})"
    elif value[-3:-2] != key[-3:-2]:
        problem = f"value: heads must be {key[-3]} to match key, got {value[-3]} (key {key}, value {value})"
    elif value[-2] != key[-2]:
        problem = f"value: must hold {key[-2]} keys to match key, got {value[-2]} (key {key}, value {value})"
    else:
        return
    raise ArgumentError(problem)


def _sinks(argument: str, given: Any, heads: int, one_head: bool) -> NDArray[np.float64]:
    array = _real_numbers(argument, given)
    if one_head and array.ndim == 0:
        array = array[None]
    if array.shape != (heads,):
        raise ArgumentError(f"{argument}: must have shape ({heads},), one per query head, got {array.shape}")
    if not np.isfinite(array).all():
        raise ArgumentError(f"{argument}: must be finite, got {shown(given)}")
    return np.ascontiguousarray(array)


def _alibi(argument: str, given: Any, heads: tuple[int, ...]) -> NDArray[np.float64]:
    array = _real_numbers(argument, given)
    try:
        slopes = np.broadcast_to(array, heads)
    except ValueError:
        raise ArgumentError(f"{argument}: must broadcast to (..., heads) = {heads}, got shape {array.shape}") from None
    if not (np.abs(array) <= _LARGEST_SCALE).all():
        raise ArgumentError(f"{argument}: must be finite and at most {_LARGEST_SCALE:g} in size, got {shown(given)}")
    return np.ascontiguousarray(slopes).reshape(math.prod(heads[:-1]), heads[-1])


def _real_numbers(argument: str, given: Any) -> NDArray[np.float64]:
    array = checks.numbers(argument, given)
    if array.dtype == object:  # ints beyond 64 bits
        array = np.array([checks.real(argument, number, "numbers") for number in array.flat]).reshape(array.shape)
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise ArgumentTypeError(f"{argument}: must be numbers, got {shown(given)}")
    return np.asarray(array, np.float64)


def _scale(given: Any, d_k: int, keys: Any, position: Integers) -> tuple[float, NDArray[np.float64] | None]:
    """One number, or one number per query row where a rule depends on lengths or positions.

    keys       how many there are: of all rows, of each batch entry (batch, 1) or of each row (batch, n_query)
    position   (batch, n_query)
    """
    if isinstance(given, str):
        given = rule(given)
    if not isinstance(given, ScaleRule):
        return scale_number(given), None
    factor = _factors(given.name, factor_at(given, d_k, keys, position))
    if not (np.abs(factor) <= _LARGEST_SCALE).all():
        raise ArgumentError(
            f"scale: the rule {given.name!r} must give finite factors of at most {_LARGEST_SCALE:g} in size, "
            f"got {shown(factor.tolist())}"
        )
    if factor.ndim == 0:
        return float(factor), None
    rows = position.shape
    try:
        return 1.0, np.ascontiguousarray(np.broadcast_to(factor, rows))
    except ValueError:
        raise ArgumentError(
            f"scale: the rule {given.name!r} must give one factor per row {rows}, got shape {factor.shape}"
        ) from None


def scale_number(given: Any) -> float:
    """A scale that is a number."""
    number = checks.real("scale", given, "None, a number, a name or a rule from rootdk.scaling")
    if not abs(number) <= _LARGEST_SCALE:
        raise ArgumentError(f"scale: must be finite and at most {_LARGEST_SCALE:g} in size, got {shown(given)}")
    return number


def _factors(name: str, given: Any) -> NDArray[np.float64]:
    """The result of a rule as numbers; a text is a mistake even if it reads like a number."""
    try:
        array = np.asarray(given)
        lost = given is None or isinstance(given, np.ma.MaskedArray)  # NumPy takes None for a NaN and drops a mask
        if not lost and array.dtype.kind not in "USc":
            return np.asarray(array, np.float64)
    except (ValueError, TypeError, OverflowError):
        pass
    raise ArgumentTypeError(f"scale: the rule {name!r} must give numbers, got {shown(given)}")
