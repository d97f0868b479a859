"""onnxruntime: the standard's own Attention operator (opset 23), in a graph of one node.

Beside it the runtime has MultiHeadAttention in a domain of its own; where both apply the standard one was as fast or
faster.
"""

from typing import Any

from rootdk.bench.peers.peer import Peer
from rootdk.bench.shapes import Inputs
from rootdk.bench.timing import Call


def open_peer(threads: int) -> Peer:
    """Needs onnx as well, to write the graph."""
    import onnx  # noqa: F401
    import onnxruntime

    return Peer("onnxruntime", onnxruntime.__version__, lambda inputs: prepare(inputs, threads))


def prepare(inputs: Inputs, threads: int) -> Call:
    """Build the graph for this shape and open a session on the CPU."""
    import onnxruntime
    from onnx import TensorProto, helper

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

    def call() -> Any:
        return session.run(None, feeds)[0]

    return call
