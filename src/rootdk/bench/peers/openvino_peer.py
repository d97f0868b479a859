"""openvino: its scaled_dot_product_attention operator, in a model of one node."""

from typing import Any

import numpy as np

from rootdk.bench.peers.peer import Peer, UnsupportedError
from rootdk.bench.shapes import Inputs
from rootdk.bench.timing import Call


def open_peer(threads: int) -> Peer:
    """Start the CPU plug-in."""
    import openvino

    core = openvino.Core()
    return Peer("openvino", openvino.__version__.partition("-")[0], lambda inputs: prepare(inputs, core, threads))


def prepare(inputs: Inputs, core: Any, threads: int) -> Call:
    """Compile for this shape. Without the precision hint it would compute in bfloat16 on CPUs that have it."""
    import openvino
    from openvino import opset13

    if inputs.shape.heads != inputs.shape.kv_heads:
        raise UnsupportedError("its operator takes no grouped heads")
    arrays = (inputs.query, inputs.key, inputs.value)
    parameters = [opset13.parameter(list(array.shape), np.float32) for array in arrays]
    node = opset13.scaled_dot_product_attention(*parameters, causal=inputs.shape.causal)
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = core.compile_model(openvino.Model([node], parameters), "CPU", settings).create_infer_request()
    for index, array in enumerate(arrays):
        request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))

    def call() -> Any:
        request.infer()
        return request.get_output_tensor(0).data

    return call
