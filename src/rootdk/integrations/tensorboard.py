"""TensorBoard: the numbers of a step as scalars of an event file."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

from rootdk.errors import ArgumentTypeError
from rootdk.integrations.needed import needed


class TensorBoard:
    """Scalars under their keys, at the number of the step. Needs torch and the package tensorboard.

    where   a folder, to which an event file is added, or a SummaryWriter that is there already, such as
            `TensorBoardLogger.experiment` of Lightning; that one is flushed and left open

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     sink = TensorBoard(folder)
    ...     sink.open()
    ...     sink.write(100, {"attn/max_logit": 7.5})
    ...     sink.close()
    """

    def __init__(self, where: "str | PathLike[str] | Any") -> None:
        self._make = needed("TensorBoard", "torch.utils.tensorboard", "tensorboard", "SummaryWriter")
        if not isinstance(where, (str, PathLike)) and not hasattr(where, "add_scalar"):
            raise ArgumentTypeError(f"where: must be a folder or a SummaryWriter, got {where!r}")
        self.where = where
        self._writer: Any = None

    def __repr__(self) -> str:
        return f"TensorBoard({str(self.where) if isinstance(self.where, PathLike) else self.where!r})"

    def open(self) -> None:
        """Start an event file, unless a writer was given."""
        if self._writer is None:
            self._writer = self._make(str(self.where)) if isinstance(self.where, (str, PathLike)) else self.where

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add the scalars of one step and bring them to the file, so that a crash does not lose them."""
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file, unless a writer was given."""
        if self._writer is not None and self._writer is not self.where:
            self._writer.close()
        self._writer = None
