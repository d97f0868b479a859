"""Tensors and the arrays that judge them: the same problem on both sides."""

from typing import Any

import ml_dtypes
import numpy as np
import torch
from problems import option_sets, random_arrays

DTYPES = {
    "float32": (torch.float32, np.float32),
    "float64": (torch.float64, np.float64),
    "float16": (torch.float16, np.float16),
    "bfloat16": (torch.bfloat16, ml_dtypes.bfloat16),
}
NAMES = list(option_sets(np.random.default_rng(0)))


def tensor(array: Any) -> Any:
    """The same bits as a tensor."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def array(tensor: Any) -> Any:
    """The same bits as an array."""
    if tensor.dtype == torch.bfloat16:
        return tensor.detach().contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


def tensor_options(options: dict[str, Any]) -> dict[str, Any]:
    def converted(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(converted(part) for part in value)
        return tensor(value) if isinstance(value, np.ndarray) else value

    return {name: converted(value) for name, value in options.items()}


def problem(rng: np.random.Generator, name: str, dtype: Any, **sizes: Any) -> tuple[Any, Any, dict[str, Any]]:
    """query, key, value, d_out and the named options, as arrays."""
    scores = {key: value for key, value in sizes.items() if key in {"leading", "heads", "n_query", "n_key"}}
    options = option_sets(rng, **scores)[name]
    arrays = random_arrays(rng, **sizes, dtype=dtype)
    if "bias" in options:
        options["bias"] = options["bias"].astype(dtype)
    d_out = rng.standard_normal(arrays[0].shape[:-1] + arrays[2].shape[-1:]).astype(dtype)
    return arrays, d_out, options
