"""rootdk: scaled dot-product attention that is fast, exact, and tells what its softmax is doing."""

from . import _starting as _starting  # isort: skip -- first: it is for the time that the others take
from . import scaling
from .api import attention, attention_vjp, measure, num_threads, set_num_threads
from .errors import ArgumentError, ArgumentTypeError, KernelMissingError, RootdkError
from .prediction import predict
from .reading import Reading
from .scaling import ScaleRule
from .summary import HeadSummary
from .watching import watch

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
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
