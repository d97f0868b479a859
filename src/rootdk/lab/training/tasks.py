"""Three things to learn, on data that every machine has: generated pairs, Python's own sources, scikit-learn's digits.

Batches depend on the seed and the number of the step alone, so that a run can go on where it was.
"""

import functools
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rootdk.errors import RootdkError

Batch = tuple[Tensor, Tensor]
IGNORED = -100  # cross_entropy passes over this target
_HELD_OUT = 2**32 - 1  # in the place of a step: batches that are never trained on


@dataclass(frozen=True, slots=True)
class Task:
    """What is put in and what is to come out. pooled: one answer per sequence, from the mean over its places."""

    name: str
    length: int
    classes: int
    causal: bool
    pooled: bool
    batch_size: int
    held_out_size: tuple[int, int]  # how many batches for judging, and of how many sequences
    embedding: Callable[[int], nn.Module]
    draw: Callable[[np.random.Generator, int, bool], tuple[Any, Any]]

    def batch(self, seed: int, step: int) -> Batch:
        """The step-th batch of a run."""
        return self._tensors(np.random.default_rng([seed, step]), self.batch_size, False)

    def held_out(self) -> list[Batch]:
        """Batches for judging, the same for every seed."""
        batches, size = self.held_out_size
        return [self._tensors(np.random.default_rng([_HELD_OUT, number]), size, True) for number in range(batches)]

    def _tensors(self, rng: np.random.Generator, count: int, held_out: bool) -> Batch:
        inputs, targets = self.draw(rng, count, held_out)
        return torch.from_numpy(inputs), torch.from_numpy(targets)


def task_named(name: str) -> Task:
    """One of "recall", "text" and "digits"."""
    tasks: dict[str, Callable[[], Task]] = {"recall": _recall, "text": _text, "digits": _digits}
    return tasks[name]()


class PairEmbedding(nn.Module):  # type: ignore[misc]
    """The sum of two embeddings, of a pair's name and of its value; value 0 stands for "asked"."""

    def __init__(self, names: int, values: int, width: int) -> None:
        super().__init__()
        self.name, self.value = nn.Embedding(names, width), nn.Embedding(values, width)

    def forward(self, pairs: Tensor) -> Tensor:
        """pairs is (batch, n, 2)."""
        embedded: Tensor = self.name(pairs[..., 0]) + self.value(pairs[..., 1])
        return embedded


def _recall(pairs: int = 24, asked: int = 24, names: int = 64, values: int = 32) -> Task:
    """A sequence of pairs, each at one place, then names whose values are asked for."""

    def draw(rng: np.random.Generator, count: int, _held_out: bool) -> tuple[Any, Any]:
        name = rng.permuted(np.tile(np.arange(names), (count, 1)), axis=1)[:, :pairs]
        value = rng.integers(1, values + 1, (count, pairs))
        which = rng.integers(0, pairs, (count, asked))
        rows = np.arange(count)[:, None]
        shown = np.stack([name, value], axis=-1)
        question = np.stack([name[rows, which], np.zeros_like(which)], axis=-1)
        targets = np.full((count, pairs + asked), IGNORED)
        targets[:, pairs:] = value[rows, which]
        return np.concatenate([shown, question], axis=1), targets

    embedding = functools.partial(PairEmbedding, names, values + 1)
    return Task("recall", pairs + asked, values + 1, False, False, 32, (2, 64), embedding, draw)


def _text(length: int = 64) -> Task:
    """The next character of Python's standard library."""
    train, held = _sources()

    def draw(rng: np.random.Generator, count: int, held_out: bool) -> tuple[Any, Any]:
        text = held if held_out else train
        start = rng.integers(0, len(text) - length - 1, count)
        windows = text[start[:, None] + np.arange(length + 1)]
        return windows[:, :-1], windows[:, 1:]

    embedding = functools.partial(nn.Embedding, _CHARACTERS)
    return Task("text", length, _CHARACTERS, True, False, 16, (3, 32), embedding, draw)


_CHARACTERS = 98  # printable ASCII, the end of a line, and one for everything else


@functools.cache
def _sources() -> tuple[Any, Any]:
    """Every tenth file is held out. Tabs and whatever is not ASCII become one character."""
    home = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(home.glob("*.py"))
    if len(paths) < 10:
        raise RootdkError(f"text: needs the sources of Python's standard library, and finds {len(paths)} files of them")
    parts: tuple[list[Any], list[Any]] = ([], [])
    for number, path in enumerate(paths):
        raw = np.frombuffer(path.read_bytes(), np.uint8)
        printable = (raw >= 32) & (raw < 127)
        parts[number % 10 == 9].append(np.where(printable, raw - 32, np.where(raw == 10, 95, 96)).astype(np.int64))
    return np.concatenate(parts[0]), np.concatenate(parts[1])


def _digits() -> Task:
    """Images of 8 x 8 pixels in 16 patches of 2 x 2; a quarter of them is held out."""
    patches, labels = _images()
    held = np.arange(len(labels)) % 4 == 3

    def draw(rng: np.random.Generator, count: int, held_out: bool) -> tuple[Any, Any]:
        # What is held out is so little that all of it is looked at.
        which = np.flatnonzero(held) if held_out else rng.choice(np.flatnonzero(~held), count)
        return patches[which], labels[which]

    return Task(
        "digits", 16, 10, False, True, 32, (1, int(held.sum())), functools.partial(nn.Linear, 4, bias=False), draw
    )


@functools.cache
def _images() -> tuple[Any, Any]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise RootdkError(
            "digits: needs scikit-learn, which is not installed; get it with: pip install 'rootdk[train]'"
        ) from error
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) - images.mean()) / images.std()
    patches = images.reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(-1, 16, 4)
    return patches.astype(np.float32), labels.astype(np.int64)
