"""rootdk: scaled dot-product attention that is fast, exact, and tells what its softmax is doing.

The public surface on one page. Names that need more than NumPy are imported at first use: rootdk.theory and predict()
load SciPy, rootdk.torch and rootdk.distributed load torch, rootdk.jax loads jax.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from . import _starting as _starting  # isort: skip -- first: it is for the time that the others take
from . import scaling
from .attention import attention, attention_jvp, attention_vjp, measure, num_threads, read, set_num_threads, weights
from .errors import ArgumentError, ArgumentTypeError, DerivativeError, KernelMissingError, RootdkError
from .reading import Reading
from .scaling import ScaleRule
from .summary import HeadSummary
from .version import __version__

if TYPE_CHECKING:
    from . import audit as audit
    from . import distributed as distributed
    from . import integrations as integrations
    from . import jax as jax
    from . import lab as lab
    from . import theory as theory
    from . import torch as torch
    from .audit import watch
    from .theory import predict

# Not the rooms: `from rootdk import *` must not need torch and jax.
__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "DerivativeError",
    "HeadSummary",
    "KernelMissingError",
    "Reading",
    "RootdkError",
    "ScaleRule",
    "__version__",
    "attention",
    "attention_jvp",
    "attention_vjp",
    "measure",
    "num_threads",
    "predict",
    "read",
    "scaling",
    "set_num_threads",
    "watch",
    "weights",
]

_LATER = {"predict": "theory", "watch": "audit"}
_ROOMS = ("audit", "distributed", "integrations", "jax", "lab", "theory", "torch")


if not TYPE_CHECKING:  # a type checker has the names from above, and reports one that is misspelt

    def __getattr__(name: str) -> _Any:
        if name in _ROOMS:
            return _import_module(f".{name}", __name__)
        if name in _LATER:
            function = getattr(_import_module(f".{_LATER[name]}", __name__), name)
            globals()[name] = function
            return function
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
