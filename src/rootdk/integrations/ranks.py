"""Several processes that train one model: who writes, and what they have to agree on before weights are changed."""

from typing import Any

import numpy as np

from rootdk.audit.remedies import Largest
from rootdk.errors import ArgumentError


def writes() -> bool:
    """Whether this process writes: rank 0, or the only one.

    >>> writes()
    True
    """
    distributed = _distributed()
    return distributed is None or distributed.get_rank() == 0


def several() -> bool:
    """Whether there are other processes."""
    distributed = _distributed()
    return distributed is not None and distributed.get_world_size() > 1


def over_ranks(largest: Largest, group: Any = None) -> Largest:
    """The largest scores over all processes of a group, the same in each of them; all of them have to call this."""
    distributed = _distributed()
    return largest if distributed is None else merged(_gathered(distributed, largest, group))


def merged(parts: list[Largest]) -> Largest:
    """The largest score of each head over all parts.

    >>> merged([{"a": (np.array([1.0, 5.0]), 8)}, {"a": (np.array([2.0, 3.0]), 8)}])
    {'a': (array([2., 5.]), 8)}
    """
    found: Largest = {}
    for part in parts:
        for path, (scores, d_k) in part.items():
            found[path] = (np.fmax(found[path][0], scores) if path in found else scores, d_k)
    return found


def check_whole(model: Any) -> None:
    """Weights that are spread over processes cannot be clipped head by head."""
    import torch

    if not torch.distributed.is_available():
        return
    from torch.distributed.tensor import DTensor

    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise ArgumentError(
                f"clip_tau: must be None where weights are sharded, got a model whose {name} is a DTensor"
            )


def _distributed() -> Any:
    """torch.distributed where it has been initialised, else None."""
    import torch

    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed if there else None


def _gathered(distributed: Any, largest: Largest, group: Any) -> list[Largest]:
    # As objects, not as one tensor: with dropped layers or experts the processes need not have read the same layers.
    parts: list[Largest] = [{}] * distributed.get_world_size(group)
    distributed.all_gather_object(parts, largest, group=group)
    return parts
