"""The libraries that rootdk is held against. None is needed; the report says who is absent and why.

A peer is one function here and its name in OPEN.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.problems import Inputs, Shape
from benchmarks.race import Call, UnsupportedError


@dataclass(frozen=True, slots=True)
class Peer:
    """One library, set to the run's number of threads.

    `prepare` does everything that a user of the library would do once (layout, graph, compilation); the call that it
    returns does the attention, waits for the result and returns it as something that NumPy reads, (batch, heads, n, d).
    `prepare_backward` likewise for forward and gradient in one call, or None where the bench does not compare it.
    """

    name: str
    version: str
    prepare: Callable[[Inputs], Call]
    prepare_backward: Callable[[Inputs], Call] | None = None


def open_peers(names: Sequence[str], threads: int) -> tuple[list[Peer], dict[str, str]]:
    """Peers that are ready, and for each of the others why it is not."""
    ready: list[Peer] = []
    absent: dict[str, str] = {}
    for name in names:
        try:
            ready.append(OPEN[name](threads))
        except ImportError as error:
            absent[name] = f"not installed ({error})"
        except (OSError, RuntimeError) as error:
            absent[name] = f"does not start ({error})"
    return ready, absent


def _torch(threads: int) -> Peer:
    """torch: its fused CPU attention, forward alone and with its gradient."""
    import torch

    torch.set_num_threads(threads)
    return Peer("torch", torch.__version__, torch_forward, torch_backward)


def torch_forward(inputs: Inputs) -> Call:
    """Share the arrays' memory; no copy, no gradient."""
    import torch

    return torch_attention([torch.from_numpy(array) for array in inputs.arrays], inputs.shape)


def torch_attention(tensors: Sequence[Any], shape: Shape) -> Call:
    """torch's function on query, key and value, of any type."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    query, key, value = tensors
    causal, grouped = shape.causal, shape.grouped

    def call() -> Any:
        with torch.no_grad():
            return scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)

    return call


def torch_backward(inputs: Inputs) -> Call:
    """Forward and the gradient to query, key and value in one call."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    leaves = [torch.from_numpy(array).requires_grad_() for array in inputs.arrays]
    d_out = torch.from_numpy(inputs.d_out)
    causal, grouped = inputs.shape.causal, inputs.shape.grouped

    def call() -> Any:
        out = scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=grouped)
        return torch.autograd.grad(out, leaves, d_out)

    return call


def _onnxruntime(threads: int) -> Peer:
    """onnxruntime: the standard's own Attention operator (opset 23), in a graph of one node; needs onnx to write it.

    Beside it the runtime has MultiHeadAttention in a domain of its own; where both apply the standard one was as fast
    or faster.
    """
    import onnxruntime
    from onnx import TensorProto, helper

    def prepare(inputs: Inputs) -> Call:
        feeds = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
        node = helper.make_node("Attention", list(feeds), ["out"], is_causal=int(inputs.shape.causal))
        graph = helper.make_graph(
            [node],
            "attention",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()],
            [helper.make_tensor_value_info("out", TensorProto.FLOAT, inputs.query.shape)],
        )
        # Intermediate version 10 is the oldest that knows opset 23: any runtime that has the operator reads it.
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, feeds)[0]

    return Peer("onnxruntime", onnxruntime.__version__, prepare)


def _jax(threads: int) -> Peer:  # noqa: ARG001 - XLA takes the CPUs that the process may use; children.py narrows those
    """jax: its attention function, compiled for the CPU even where an accelerator is present: the others run there."""
    import jax

    jax.config.update("jax_platforms", "cpu")

    def prepare(inputs: Inputs) -> Call:
        # As jax wants them, (batch, n, heads, d), before the clock starts.
        arrays = [jax.numpy.asarray(np.ascontiguousarray(array.swapaxes(1, 2))) for array in inputs.arrays]
        causal = inputs.shape.causal
        attention = jax.jit(lambda query, key, value: jax.nn.dot_product_attention(query, key, value, is_causal=causal))
        # np.asarray waits for the result, and shares its memory on the CPU.
        return lambda: np.asarray(attention(*arrays)).swapaxes(1, 2)

    return Peer("jax", jax.__version__, prepare)


def _openvino(threads: int) -> Peer:
    """openvino: its scaled_dot_product_attention operator, in a model of one node."""
    import openvino
    from openvino import opset13

    core = openvino.Core()
    # Without the precision hint it would compute in bfloat16 on CPUs that have it.
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}

    def prepare(inputs: Inputs) -> Call:
        if inputs.shape.grouped:
            raise UnsupportedError("its operator takes no grouped heads")
        parameters = [opset13.parameter(list(array.shape), np.float32) for array in inputs.arrays]
        node = opset13.scaled_dot_product_attention(*parameters, causal=inputs.shape.causal)
        request = core.compile_model(openvino.Model([node], parameters), "CPU", settings).create_infer_request()
        for index, array in enumerate(inputs.arrays):
            request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))

        def call() -> Any:
            request.infer()
            return request.get_output_tensor(0).data

        return call

    return Peer("openvino", openvino.__version__.partition("-")[0], prepare)


def _numpy(threads: int) -> Peer:  # noqa: ARG001 - BLAS reads its number once, at start: children.py sets the environment
    """Plain NumPy in float32: the formula as most people write it first, with the whole n x n array of scores."""

    def prepare(inputs: Inputs) -> Call:
        # The query heads stand beside their key head, so that broadcasting does the repetition.
        shape = inputs.shape
        group = shape.heads // shape.kv_heads
        query = inputs.query.reshape(shape.batch, shape.kv_heads, group, shape.n, shape.d)
        key, value = inputs.key[:, :, None], inputs.value[:, :, None]
        hidden = np.triu(np.ones((shape.n, shape.n), dtype=bool), 1) if shape.causal else None
        scale = np.float32(1 / np.sqrt(shape.d))

        def call() -> Any:
            scores = query @ key.swapaxes(-1, -2)
            scores *= scale
            if hidden is not None:
                scores[..., hidden] = -np.inf
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            out = scores @ value
            out /= scores.sum(axis=-1, keepdims=True)
            return out.reshape(inputs.query.shape)

        return call

    return Peer("numpy", np.__version__, prepare)


OPEN: dict[str, Callable[[int], Peer]] = {
    "torch": _torch,
    "onnxruntime": _onnxruntime,
    "jax": _jax,
    "openvino": _openvino,
    "numpy": _numpy,
}
