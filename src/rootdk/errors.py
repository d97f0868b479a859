"""The few errors of rootdk, all worded for a person.

Every message names the argument, what was expected and what came:

    key: last axis must be 64 to match query, got 32 (query (2, 8, 128, 64), key (2, 8, 128, 32))

Both argument errors are also the built-in error that fits, so that `except ValueError` works without knowing rootdk.
"""


class RootdkError(Exception):
    """What every error of this package can be caught as."""


class ArgumentError(RootdkError, ValueError):
    """An argument has the right type and a value or shape that cannot be used."""


class ArgumentTypeError(RootdkError, TypeError):
    """An argument has a type that cannot be used."""


class DerivativeError(RootdkError, NotImplementedError):
    """A derivative was asked for that is not computed; torch says the same of its own functions with this built-in."""


class KernelMissingError(RootdkError, ImportError):
    """The compiled module is not there or does not load."""


class RankError(RootdkError, RuntimeError):
    """Another process of a group died, fell silent or stopped: nothing of the call can be used, on any rank.

    rank   which one, counted in the group; None where it is not known
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank
