"""A Reading by the Triton kernel: what rootdk.read runs for tensors on a CUDA or ROCm device, by name.

It also takes tensors on the CPU where Triton interprets kernels (TRITON_INTERPRET=1, set before triton is imported):
slow, and the way in which a machine without a GPU tests it. docs/gpu.md says what was checked, and how.
"""

from typing import Any

from torch import Tensor

from ..attention import read as read_on_any_device
from ..backends.torch import gpu
from ..checks import type_name
from ..errors import ArgumentTypeError
from ..options import given_options, takes
from ..reading import Reading


@takes(read_on_any_device)
def read(arguments: dict[str, Any]) -> Reading[Tensor]:
    """rootdk.read by the Triton kernel. The fields are float32 tensors on the device of query.

    query, key   (..., heads, n_query, d_k) and (..., kv_heads, n_key, d_k): float32, float16 or bfloat16

    The options mean what they mean in rootdk.attention. mask and bias lie on the device of query and are read by their
    strides, never expanded. key_lengths, query_offset, sinks, alibi, scale and rows may lie there too: then nothing
    waits for the device, the call can be captured in a CUDA graph, and their values are not checked. segments lie on
    the CPU.

    >>> import torch, rootdk
    >>> from rootdk.torch import triton
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"     # "cpu" where Triton interprets
    >>> query, key = torch.randn(2, 1, 2, 20, 8, device=device).unbind(0)
    >>> triton.read(query, key, causal=True).keys[0, 0, :4].tolist()
    [1, 2, 3, 4]
    """
    query = arguments["query"]
    if not isinstance(query, Tensor):
        raise ArgumentTypeError(f"query: must be a torch tensor, got {type_name(query)}")
    if not (query.is_cuda or (query.is_cpu and gpu.interpreted())):
        raise ArgumentTypeError(
            f"query: must be on a CUDA or ROCm device, got one on device '{query.device}' "
            "(tensors on the CPU: rootdk.read, or set TRITON_INTERPRET=1 before triton is imported)"
        )
    return gpu.read(query, arguments["key"], given_options(arguments), arguments["rows"])
