"""Forward-mode derivatives are not computed: a tensor that carries a tangent is refused, so that none is lost."""

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...errors import DerivativeError


def refuse_tangents(**tensors: Any) -> None:
    """Raise if one of them, given by their names, carries a tangent. Outside forward_ad.dual_level() none does."""
    if forward_ad._current_level < 0:  # noqa: SLF001 -- torch tells it nowhere else in so little time
        return
    # Inside an operator torch may have switched off what knows of tangents.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):  # noqa: SLF001
        for name, tensor in tensors.items():
            if isinstance(tensor, Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
                refuse_tangent(name)


def refuse_tangent(name: str) -> NoReturn:
    raise DerivativeError(
        f"{name}: must have no tangent, got one: rootdk has no forward-mode derivatives "
        "(torch.autograd.grad, torch.func.vjp and torch.func.jacrev work)"
    )
