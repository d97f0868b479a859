"""rootdk: scaled dot-product attention that is fast, exact, and tells what its softmax is doing."""

from . import scaling
from .api import attention, attention_vjp, measure, num_threads, set_num_threads
from .errors import ArgumentError, ArgumentTypeError, DerivativeError, KernelMissingError, RootdkError
from .prediction import predict
from .reading import Reading
from .scaling import ScaleRule
from .summary import HeadSummary
from .watching import watch

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "DerivativeError",
    "HeadSummary",
    "KernelMissingError",
    "Reading",
    "RootdkError",
    "ScaleRule",
    "attention",
    "attention_vjp",
    "measure",
    "num_threads",
    "predict",
    "scaling",
    "set_num_threads",
    "watch",
]
