"""The operator: attention(), measure(), read(), attention_vjp(), attention_jvp(). Check, resolve defaults, pass on.

    s_ij = scale * <q_i, k_j> -> softcap*tanh(s/softcap) -> + bias_ij -> masked -> softmax over j -> sum_j p_ij v_j

The options are explained once, in options.py, and stand in the docstring of attention(). The other functions take the
same options, and read(), which has no values, those that shape logits.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from .backends import backend_of, kernel
from .checks import count, row_numbers, truth
from .errors import ArgumentError
from .options import (
    Learnable,
    Options,
    check_one_type,
    fitting,
    given_options,
    new_record,
    option_meanings,
    resolve,
    resolve_tangents,
)
from .reading import Reading, without_head_axis
from .scaling import ScaleRule

if TYPE_CHECKING:
    import jax
    import torch
    from numpy.typing import NDArray

    # The result has the type of the input: a NumPy array (of any shape and number type), a torch tensor, a jax array. A
    # library that is not installed is Any for a type checker. NumPy stands last, because mypy takes the last type that
    # fits.
    Array = TypeVar("Array", jax.Array, torch.Tensor, NDArray[Any])
    AnyArray: TypeAlias = jax.Array | torch.Tensor | NDArray[Any]
else:
    Array, AnyArray = TypeVar("Array"), Any


def attention(
    query: Array,
    key: AnyArray,
    value: AnyArray,
    *,
    scale: float | str | ScaleRule | AnyArray | None = None,
    causal: bool = False,
    mask: AnyArray | None = None,
    bias: AnyArray | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    query_offset: Any = None,
    key_lengths: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    alibi: Any = None,
    segments: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Array:
    """softmax(scale * Q K') V, (..., heads, n_query, d_v), in the library and type of `query`.

    query         (..., heads, n_query, d_k). 2-D arrays are one head, 3-D arrays one batch entry; the result has the
                  same number of axes. Types: float32, float64, float16, bfloat16 (half types add up in float32).
    key, value    (..., kv_heads, n_key, d_k) and (..., kv_heads, n_key, d_v). heads % kv_heads == 0: query heads
                  h*g ... h*g + g - 1 share key head h. The type is that of query; or both are float16 or both bfloat16
                  with float32 queries: a cache, read in place, without gradients.
    {options}

    CPU tensors of torch are read in place. The result is differentiable: gradients reach query, key, value, bias,
    sinks, alibi and a tensor `scale`. The gradient of a bias has the shape of the bias: with P the weights and D =
    d_out V',

        d_bias = P * (D - rowsum(P * D))      summed over the axes along which the bias was broadcast

    With 3 queries after 2 cached keys, causal (n_query = 3, n_key = 5) sees

        k0 k1 k2 k3 k4
    q0   x  x  x  .  .
    q1   x  x  x  x  .
    q2   x  x  x  x  x

    Edge cases: a row with every key hidden is 0. A NaN in a visible pair makes that row NaN, and so does a +inf logit;
    NaN or inf in a hidden key or value has no effect. n_key = 0 gives zeros. For input in the other byte order the
    result has the machine's own byte order.

    >>> import numpy as np, rootdk
    >>> q = np.array([[1.0, 0, 1, 0]])
    >>> k = np.array([[0.0, 1, 1, 1], [1, 0, 1, 0]])
    >>> v = np.array([[1.0, 0], [0, 1]])
    >>> rootdk.attention(q, k, v).round(4)
    array([[0.3775, 0.6225]])
    """
    given = scale, causal, mask, bias, window, query_offset, key_lengths, softcap, sinks, alibi, segments, dropout, seed
    options = new_record(Options, given)  # a small call would notice given_options(locals())
    backend = backend_of("query", query)
    problem, one_head = backend.known(query, key, value, options), False
    if problem is None:
        if backend.traced(query, key, value, options):
            return backend.traced_call(query, key, value, options, measured=False)[0]  # type: ignore[no-any-return]
        problem, one_head = resolve(backend, query, key, value, options)
    out: Array = backend.forward(problem, options)
    return out[0] if one_head else out


attention.__doc__ = (attention.__doc__ or "").replace("{options}", option_meanings())


def measure(
    query: Array,
    key: AnyArray,
    value: AnyArray,
    *,
    scale: float | str | ScaleRule | AnyArray | None = None,
    causal: bool = False,
    mask: AnyArray | None = None,
    bias: AnyArray | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    query_offset: Any = None,
    key_lengths: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    alibi: Any = None,
    segments: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    per_key: bool = False,
) -> tuple[Array, Reading[Array]]:
    """attention() and a Reading with one number per query row, from the same pass over the scores.

    The output is that of attention() with the same arguments, (..., heads, n_query, d_v); the fields of the Reading are
    (..., heads, n_query), float32 (float64 for float64 input). No n_query x n_key array exists at any moment. A row
    that sees no key reads log_sum_exp -inf, entropy 0, keys 0.

    per_key       True adds `received` to the Reading, (..., heads, n_key): the sum over query rows of the weight that
                  each key got, before dropout. It takes a second, lighter pass over the scores, because a weight is
                  known only when its row is; the result has the same bits on any number of threads.

    On a CUDA or ROCm device the output is that of torch's own fused attention, differentiable, and the Reading that of
    read(): a second pass over query and key. An option that torch's function lacks is an error there.

    >>> import numpy as np, rootdk
    >>> q = np.zeros((2, 4, 8), np.float32)
    >>> out, reading = rootdk.measure(q, q, q, causal=True)
    >>> reading.keys[0].tolist(), reading.entropy_ratio[0, 1:].round(3).tolist()
    ([1, 2, 3, 4], [1.0, 1.0, 1.0])
    """
    given = scale, causal, mask, bias, window, query_offset, key_lengths, softcap, sinks, alibi, segments, dropout, seed
    options = new_record(Options, given)
    per_key = per_key is not False and truth("per_key", per_key)
    backend = backend_of("query", query)
    if backend.traced(query, key, value, options):
        if per_key:
            raise ArgumentError("per_key: must be False inside torch.compile and torch.func, got True")
        return backend.traced_call(query, key, value, options, measured=True)
    if (device := backend.elsewhere(query)) is not None:
        if per_key:
            raise ArgumentError("per_key: must be False on a GPU, got True")
        return device.measure(query, key, value, options)
    problem, one_head = resolve(backend, query, key, value, options)
    if per_key:
        check_one_type(problem.query, problem.key, "per_key=True")
    out, reading = backend.measure(problem, options, per_key)
    return (out[0], without_head_axis(reading)) if one_head else (out, reading)


def weights(
    query: Array,
    key: AnyArray,
    *,
    rows: Any = None,
    scale: float | str | ScaleRule | AnyArray | None = None,
    causal: bool = False,
    mask: AnyArray | None = None,
    bias: AnyArray | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    query_offset: Any = None,
    key_lengths: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    alibi: Any = None,
    segments: Any = None,
) -> Array:
    """The weights that attention() gives to the keys, for some query rows: (..., heads, rows, n_key).

    rows          which query rows, counted as in `query`: an int, ints or a slice; the axis stays. None is all of them,
                  and then the result is n_query x n_key numbers per head.

    Exact, and before dropout; a hidden pair is 0, a row sums to 1 minus the weight of the sink, a row that sees no key
    is 0. float32, or float64 for float64 input, as in a Reading. The options are those of attention(), for all of
    `query`. No other array is as large as the result, unless a gradient is asked for on tensors: then plain tensor
    operations are used.

    >>> import numpy as np, rootdk
    >>> q = np.zeros((2, 4, 8), np.float32)
    >>> rootdk.weights(q, q, rows=[1, -1], causal=True)[0].tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]
    """
    options = given_options(locals())
    backend = backend_of("query", query)
    if backend.traced(query, key, options):
        backend.refuse_shapeless(query=query, key=key)  # a nested tensor counts as traced
        raise ArgumentError("rootdk.weights: must be called outside torch.compile and torch.func, got a traced call")
    problem, one_head = resolve(backend, query, key, key, options)
    problem = problem.with_arrays(problem.query, problem.key, problem.key[..., :0])
    check_one_type(problem.query, problem.key, "its weights")
    whole = rows is None or (isinstance(rows, slice) and rows.step in (None, 1))  # then a view
    chosen = rows if whole else row_numbers(rows, problem.query.shape[-2])
    weighed: Array = backend.weights(problem, options, chosen)
    return weighed[0] if one_head else weighed


def read(
    query: Array,
    key: AnyArray,
    *,
    scale: float | str | ScaleRule | AnyArray | None = None,
    causal: bool = False,
    mask: AnyArray | None = None,
    bias: AnyArray | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    query_offset: Any = None,
    key_lengths: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    alibi: Any = None,
    segments: Any = None,
    rows: Any = None,
) -> Reading[Array]:
    """The Reading of measure(), bit for bit, from query and key alone: no values, no output, half the work.

    Every option that shapes logits means what it means in attention(); weights are read before dropout, so there is no
    dropout here. The result is not differentiable, and a tensor with a tangent is refused, because the tangent would be
    lost. Tensors on a CUDA or ROCm device are read in place by a Triton kernel: rootdk.torch.triton.read.

    rows    which query rows, as in weights(): an int, ints or a slice. They keep their positions, their rows of mask
            and bias and their scale, and the fields are (..., heads, rows). None is all of them.

    >>> import numpy as np, rootdk
    >>> q, k = np.random.default_rng(0).standard_normal((2, 4, 64, 16), dtype=np.float32)
    >>> rootdk.read(q, k, causal=True).shape
    (4, 64)
    >>> rootdk.read(q, k, causal=True, rows=[0, 9, -1]).keys[0].tolist()
    [1, 10, 64]
    """
    options = Options(scale, causal, mask, bias, window, query_offset, key_lengths, softcap, sinks, alibi, segments)
    backend = backend_of("query", query)
    if backend.traced(query, key, options):
        if rows is not None:
            raise ArgumentError("rows: must be None where a compiler or a transform follows the call, got rows")
        return backend.traced_call(query, key, key, options, measured=True, only_reads=True)[1]  # type: ignore[no-any-return]
    if (device := backend.elsewhere(query)) is not None:
        return device.read(query, key, options, rows)
    problem, one_head = resolve(backend, query, key, key, options)
    chosen = None if rows is None else row_numbers(backend.plain("rows", rows), problem.query.shape[-2])
    reading = backend.read(problem, chosen)
    return without_head_axis(reading) if one_head else reading


def attention_vjp(
    query: Array,
    key: AnyArray,
    value: AnyArray,
    *,
    scale: float | str | ScaleRule | AnyArray | None = None,
    causal: bool = False,
    mask: AnyArray | None = None,
    bias: AnyArray | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    query_offset: Any = None,
    key_lengths: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    alibi: Any = None,
    segments: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
    """attention() and its pull-back: pull_back(d_out) -> d_query, d_key, d_value, the gradient of sum(d_out * out).

    With P the weights, D = d_out V' and ds = P * (D - rowsum(P * D)):

        d_value = P' d_out      d_query = scale * ds K      d_key = scale * ds' Q

    d_out has the shape and type of the output, the gradients those of the inputs; shared key heads add up. A row with
    every key hidden contributes 0. The inputs are kept, not copied: pull back before changing them in place. Only the
    values of tensors are used; with autograd, attention() is all that is needed.

    >>> import numpy as np, rootdk
    >>> q = np.array([[1.0, 0, 1, 0]])
    >>> k = np.array([[0.0, 1, 1, 1], [1, 0, 1, 0]])
    >>> v = np.array([[1.0, 0], [0, 1]])
    >>> out, pull_back = rootdk.attention_vjp(q, k, v)
    >>> d_query, d_key, d_value = pull_back(np.array([[1.0, 0]]))
    >>> d_value.round(4)
    array([[0.3775, 0.    ],
           [0.6225, 0.    ]])
    """
    options = given_options(locals())
    backend = backend_of("query", query)
    problem, one_head = resolve(backend, query, key, value, options)
    check_one_type(problem.query, problem.key, "a gradient")
    out, pull = backend.vjp(problem)
    out = out[0] if one_head else out

    def pull_back(d_out: Array) -> tuple[Array, Array, Array]:
        """d_query, d_key, d_value for one d_out of the shape and type of the output."""
        grad = fitting(backend, "d_out", d_out, problem.query, "the output", out.shape)
        d_query, d_key, d_value = pull(grad[None] if one_head else grad)
        return (d_query[0], d_key[0], d_value[0]) if one_head else (d_query, d_key, d_value)

    return out, pull_back


def attention_jvp(
    query: Array,
    key: AnyArray,
    value: AnyArray,
    d_query: AnyArray | None = None,
    d_key: AnyArray | None = None,
    d_value: AnyArray | None = None,
    *,
    d_bias: AnyArray | None = None,
    d_sinks: Any = None,
    d_alibi: Any = None,
    d_scale: float | None = None,
    scale: float | str | ScaleRule | AnyArray | None = None,
    causal: bool = False,
    mask: AnyArray | None = None,
    bias: AnyArray | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    query_offset: Any = None,
    key_lengths: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    alibi: Any = None,
    segments: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> tuple[Array, Array]:
    """attention() and its derivative along a direction: out, d_out, in one pass and without any n_query x n_key array.

    d_query, d_key, d_value    the direction of each input, in the shape and type of that input; None is no change
    d_bias                     broadcasts like the bias and has its type
    d_sinks, d_scale           one number per query head; one number
    d_alibi                    broadcasts to (..., heads)

    With P the weights (before dropout) and s the logits:

        ds    = d(scale) Q K' + scale * (d_query K' + Q d_key'), through the softcap, - d_alibi |p - j| + d_bias
        d_out = P * (ds - rowsum(P * ds)) V + P d_value

    out + step * d_out is the output for inputs moved a small step in that direction; with dropout, for the same seed.
    Hidden keys have no effect on either, and a row that sees no key has d_out 0. Only the values of tensors are used;
    torch.func.jvp, jacfwd and forward_ad work through attention() itself.

    >>> import numpy as np, rootdk
    >>> q = np.array([[1.0, 0, 1, 0]])
    >>> k = np.array([[0.0, 1, 1, 1], [1, 0, 1, 0]])
    >>> v = np.array([[1.0, 0], [0, 1]])
    >>> out, d_out = rootdk.attention_jvp(q, k, v, d_query=np.array([[0.0, 1, 0, 0]]))
    >>> d_out.round(4)
    array([[ 0.1175, -0.1175]])
    """
    arguments = locals()
    options = given_options(arguments)
    backend = backend_of("query", query)
    problem, one_head = resolve(backend, query, key, value, options)
    check_one_type(problem.query, problem.key, "a derivative")
    tangents = Learnable(**{name: arguments[f"d_{name}"] for name in Learnable._fields})
    out, d_out = backend.jvp(problem, resolve_tangents(backend, problem, options, one_head, tangents))
    return (out[0], d_out[0]) if one_head else (out, d_out)


def num_threads() -> int:
    """How many threads a call may use: ROOTDK_NUM_THREADS, or the CPUs that this process may run on.

    >>> import rootdk
    >>> rootdk.num_threads() >= 1
    True
    """
    return int(kernel().num_threads())


def set_num_threads(n: int) -> None:
    """Let every later call use up to n threads, from 1 to 1024; the results do not change by a bit.

    >>> import rootdk
    >>> before = rootdk.num_threads()
    >>> rootdk.set_num_threads(1); rootdk.num_threads()
    1
    >>> rootdk.set_num_threads(before)
    """
    library = kernel()
    library.set_num_threads(count("n", n, library.most_threads))
