"""rootdk for torch: the drop-in function, the module, and the switch for whole models.

    from rootdk.torch import scaled_dot_product_attention     torch's signature and meaning
    rootdk.torch.MultiHeadAttention                           nn.MultiheadAttention with a scale rule, QK-norm, groups
    with rootdk.torch.use(): ...                              every F.scaled_dot_product_attention in any model
    rootdk.torch.register_transformers()                      attn_implementation="rootdk" in transformers

rootdk.attention and rootdk.measure take tensors with or without this import, inside torch.compile as well.
"""

import torch as _torch

from . import _backends
from ._torch.calls import attention as _attention  # registers the operators
from ._torch.functional import scaled_dot_product_attention
from ._torch.hugging_face import register_transformers
from ._torch.module import MultiHeadAttention
from ._torch.routing import use

# Found now, so that what torch.compile makes before the first plain call is still valid after it.
for _kind in (_torch.empty(0, device="cpu"), _torch.nn.Parameter(_torch.empty(0, device="cpu"))):
    _backends.backend_of("query", _kind)
del _attention, _kind

__all__ = ["MultiHeadAttention", "register_transformers", "scaled_dot_product_attention", "use"]
