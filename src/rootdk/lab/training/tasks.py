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
# In the place of a seed: batches that are never trained on. Choices are made on the first, reports on the second.
TRAIN, VALID, TEST = "train", "valid", "test"
_HELD_OUT = {VALID: 2**32 - 2, TEST: 2**32 - 1}


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
    draw: Callable[[np.random.Generator, int, str], tuple[Any, Any]]

    def batch(self, seed: int, step: int) -> Batch:
        """The step-th batch of a run."""
        return self._tensors(np.random.default_rng([seed, step]), self.batch_size, TRAIN)

    def held_out(self, part: str = TEST) -> list[Batch]:
        """Batches for judging, the same for every seed; part is VALID or TEST."""
        batches, size = self.held_out_size
        rngs = (np.random.default_rng([_HELD_OUT[part], number]) for number in range(batches))
        return [self._tensors(rng, size, part) for rng in rngs]

    def _tensors(self, rng: np.random.Generator, count: int, part: str) -> Batch:
        inputs, targets = self.draw(rng, count, part)
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


def _recall(pairs: int = 12, asked: int = 12, names: int = 24, values: int = 16) -> Task:
    """A sequence of pairs, each at one place, then names whose values are asked for."""

    def draw(rng: np.random.Generator, count: int, _part: str) -> tuple[Any, Any]:
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
    return Task("recall", pairs + asked, values + 1, False, False, 16, (1, 64), embedding, draw)


def _text(length: int = 64) -> Task:
    """The next character of Python's standard library."""
    texts = _sources()

    def draw(rng: np.random.Generator, count: int, part: str) -> tuple[Any, Any]:
        text = texts[part]
        start = rng.integers(0, len(text) - length - 1, count)
        windows = text[start[:, None] + np.arange(length + 1)]
        return windows[:, :-1], windows[:, 1:]

    embedding = functools.partial(nn.Embedding, _CHARACTERS)
    return Task("text", length, _CHARACTERS, True, False, 8, (2, 24), embedding, draw)


_CHARACTERS = 98  # printable ASCII, the end of a line, and one for everything else


@functools.cache
def _sources() -> dict[str, Any]:
    """Of ten files one is for choosing and one for reporting. Tabs and whatever is not ASCII become one character."""
    home = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(home.glob("*.py"))
    if len(paths) < 10:
        raise RootdkError(f"text: needs the sources of Python's standard library, and finds {len(paths)} files of them")
    parts: dict[str, list[Any]] = {TRAIN: [], VALID: [], TEST: []}
    for number, path in enumerate(paths):
        raw = np.frombuffer(path.read_bytes(), np.uint8)
        printable = (raw >= 32) & (raw < 127)
        part = {4: VALID, 9: TEST}.get(number % 10, TRAIN)
        parts[part].append(np.where(printable, raw - 32, np.where(raw == 10, 95, 96)).astype(np.int64))
    return {part: np.concatenate(pieces) for part, pieces in parts.items()}


def _digits() -> Task:
    """Images of 8 x 8 pixels in 16 patches of 2 x 2; an eighth of them is for choosing, an eighth for reporting."""
    patches, labels = _images()
    rest = np.arange(len(labels)) % 8
    parts = {VALID: np.flatnonzero(rest == 3), TEST: np.flatnonzero(rest == 7), TRAIN: np.flatnonzero(rest % 4 != 3)}

    def draw(rng: np.random.Generator, count: int, part: str) -> tuple[Any, Any]:
        # What is held out is so little that all of it is looked at.
        which = rng.choice(parts[part], count) if part == TRAIN else parts[part]
        return patches[which], labels[which]

    embedding = functools.partial(nn.Linear, 4, bias=False)
    return Task("digits", 16, 10, False, True, 16, (1, len(parts[TEST])), embedding, draw)


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
