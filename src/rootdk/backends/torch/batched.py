"""torch.autograd.grad(is_grads_batched=True): many gradients at once, in tensors that have no memory of their own.

torch.autograd.functional.jacobian(vectorize=True) asks the same way. This is an older vmap than torch.func's, which has
a rule for every function (transforms.py); here every entry is computed by itself.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_transformed = torch._C._are_functorch_transforms_active  # noqa: SLF001 -- torch tells these nowhere else
_has_memory = torch._C._has_storage  # noqa: SLF001


def is_batched(*tensors: Any) -> bool:
    """Whether one of them stands for many, outside torch.func."""
    return not _transformed() and any(isinstance(t, Tensor) and not _has_memory(t) for t in tensors)


def each(run: Callable[..., tuple[Any, ...]], *tensors: Any) -> tuple[Any, ...]:
    """run(*tensors) for every entry, and the tensors of its results put together as torch expects them."""
    level = torch._C._vmapmode_increment_nesting() - 1  # noqa: SLF001
    torch._C._vmapmode_decrement_nesting()  # noqa: SLF001
    stacked = [torch._remove_batch_dim(t, level, 0, 0) if is_batched(t) else t for t in tensors]  # noqa: SLF001
    many = [is_batched(t) for t in tensors]
    size = next(t.shape[0] for t, batched in zip(stacked, many, strict=True) if batched)
    entries = [run(*(t[i] if batched else t for t, batched in zip(stacked, many, strict=True))) for i in range(size)]
    together = (None if parts[0] is None else torch.stack(parts) for parts in zip(*entries, strict=True))
    return tuple(None if t is None else torch._add_batch_dim(t, 0, level) for t in together)  # noqa: SLF001
