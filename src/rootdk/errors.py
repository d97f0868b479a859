"""The few errors of rootdk, all worded for a person.

Every message names the argument, what was expected and what came:

    key: last axis must be 64 to match query, got 32 (query (2, 8, 128, 64), key (2, 8, 128, 32))

Both argument errors are also the built-in error that fits, so that `except ValueError` works without knowing rootdk.
"""


class RootdkError(Exception):
    """The base class of every error of this package.

    >>> import numpy as np, rootdk
    >>> try:
    ...     rootdk.attention(*np.ones((3, 4, 8)), window=-1)
    ... except rootdk.RootdkError as error:
    ...     print(error)
    window: must be an int >= 0 or a pair of them (None for no limit), got -1
    """


class ArgumentError(RootdkError, ValueError):
    """An argument has the right type and a value or shape that cannot be used.

    >>> from rootdk import predict
    >>> predict(64, 1)
    Traceback (most recent call last):
    rootdk.errors.ArgumentError: keys: must be whole numbers from 2 to 1e+12, got 1.0
    """


class ArgumentTypeError(RootdkError, TypeError):
    """An argument has a type that cannot be used.

    >>> from rootdk import scaling
    >>> scaling.rule(3)
    Traceback (most recent call last):
    rootdk.errors.ArgumentTypeError: name: must be the name of a rule, got 3
    """


class DerivativeError(RootdkError, NotImplementedError):
    """A derivative was asked for that is not implemented; torch raises the same built-in error for its own functions.

    >>> issubclass(DerivativeError, NotImplementedError)
    True
    """


class KernelMissingError(RootdkError, ImportError):
    """The compiled module is not there or does not load.

    >>> issubclass(KernelMissingError, ImportError)
    True
    """


class ExtraMissingError(RootdkError, ImportError):
    """A feature needs torch or jax, which are extras; the message says how to get it."""

    def __init__(self, feature: str, library: str) -> None:
        how = f"pip install 'rootdk[{library}]'"
        super().__init__(f"{feature}: needs {library}, which is not installed; get it with: {how}")


def require_torch(feature: str) -> None:
    """An error, if torch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ExtraMissingError(feature, "torch") from error


class RankError(RootdkError, RuntimeError):
    """Another process of a group died, stopped or does not answer: nothing of the call can be used, on any rank.

    rank   which one, counted in the group; None where it is not known
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank
