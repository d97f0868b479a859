"""rootdk for torch: the drop-in function, the module, and the switch for whole models.

    from rootdk.torch import scaled_dot_product_attention     torch's signature and meaning
    from rootdk.torch import flash_attn_varlen_func           FlashAttention's, for packed documents
    rootdk.torch.MultiHeadAttention                           nn.MultiheadAttention with a scale rule, QK-norm, groups
    with rootdk.torch.use(): ...                              every F.scaled_dot_product_attention in any model
    rootdk.torch.register_transformers()                      attn_implementation="rootdk" in transformers
    from rootdk.torch import triton                           triton.read: a Reading of tensors on a GPU

rootdk.attention and rootdk.measure take tensors with or without this import, inside torch.compile as well.
"""

try:
    import torch as _torch
except ImportError as _error:
    from ..errors import ExtraMissingError as _Missing

    raise _Missing("rootdk.torch", "torch") from _error

from ..backends import backend_of as _backend_of
from ..backends.torch import call as _call  # registers the operators
from .functional import flash_attn_varlen_func, register_transformers, scaled_dot_product_attention, use
from .module import MultiHeadAttention

# Looked up now, so that what torch.compile makes before the first plain call is still valid after it.
for _kind in (_torch.empty(0, device="cpu"), _torch.nn.Parameter(_torch.empty(0, device="cpu"))):
    _backend_of("query", _kind)
del _call, _kind

__all__ = [
    "MultiHeadAttention",
    "flash_attn_varlen_func",
    "register_transformers",
    "scaled_dot_product_attention",
    "use",
]
