"""Tensors that are more than their numbers: some carry a tangent, some stand for many.

torch.autograd.grad(is_grads_batched=True) and torch.autograd.functional.jacobian(vectorize=True) ask for many gradients
at once, in tensors that have no memory of their own. That is an older vmap than torch.func's, which has a rule for
every function (transforms.py); here every entry is computed by itself.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...errors import DerivativeError


def tangents(**tensors: Any) -> dict[str, Tensor]:
    """The tangents of those that carry one, by the names given. Outside forward_ad.dual_level() none does."""
    if forward_ad._current_level < 0:  # noqa: SLF001 -- torch tells it nowhere else in so little time
        return {}
    # Inside an operator torch may have switched off what knows of tangents.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):  # noqa: SLF001
        found = {name: forward_ad.unpack_dual(t).tangent for name, t in tensors.items() if isinstance(t, Tensor)}
    return {name: tangent for name, tangent in found.items() if tangent is not None}


def primal(given: Any) -> Any:
    """A tensor without its tangent; anything else as it is."""
    return forward_ad.unpack_dual(given).primal if isinstance(given, Tensor) else given


def refuse_tangents(where: str, **tensors: Any) -> None:
    """Raise if one of them carries a tangent, which would be lost."""
    for name in tangents(**tensors):
        refuse_tangent(name, where)


def refuse_tangent(name: str, where: str) -> NoReturn:
    raise DerivativeError(f"{name}: must have no tangent {where}, got one")


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
