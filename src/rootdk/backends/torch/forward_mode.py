"""Tensors that carry a tangent: which calls they are followed in, and where one line says that they are not."""

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
