"""A Transformer on one screen: pre-norm, encoder or decoder, any scale rule, queries and keys of any width.

What it leaves out: dropout, biases, weight tying. Every weight starts normal with variance 1/fan_in, so that
behind a norm queries and keys have unit variance and q.k has variance d_k: the premise that the scale is derived from.

Also additive attention (Bahdanau et al. 2014); the scale was introduced so that dot products do as well.

It learns three tasks on data that every machine has: generated pairs, Python's own sources, scikit-learn's digits.
Batches depend on the seed and the number of the step alone, so that a run can go on where it was.
"""

import functools
import math
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rootdk.attention import attention, measure
from rootdk.errors import RootdkError
from rootdk.reading import Reading
from rootdk.torch import MultiHeadAttention

from .run import ADDITIVE, RunSpec


class AdditiveAttention(nn.Module):  # type: ignore[misc]
    """softmax_j(v . tanh(q_i + k_j)) over values, per head, called as nn.MultiheadAttention is.

    tanh bounds every score by the sum of |v|, whatever d_k is. v starts normal with variance size^2/(c d_k), where
    c = E Var[tanh(q + k) | q] for normal q and k: the scores of one row then have variance size^2, as those of
    size q.k/sqrt(d_k) have. It holds n x n x d_k numbers per head: that is its cost. The scores go to rootdk as the
    bias of queries and keys that are 0, so that they can be measured like those of a dot product.

    >>> import torch
    >>> layer = AdditiveAttention(8, 2, 4)
    >>> x = torch.zeros(1, 3, 8)
    >>> layer(x, x, x)[0].shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, width: int, heads: int, d_k: int, size: float = 1.0) -> None:
        super().__init__()
        self.heads, self.measure, self.size = heads, False, size
        self.last_reading: Reading[Tensor] | None = None
        self.q_proj_weight = nn.Parameter(torch.empty(heads * d_k, width))
        self.k_proj_weight = nn.Parameter(torch.empty(heads * d_k, width))
        self.v_proj_weight = nn.Parameter(torch.empty(width, width))
        self.direction = nn.Parameter(torch.empty(heads, d_k))
        self.out_proj = nn.Linear(width, width, bias=False)
        for weight in (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[1]))
        self.start()

    def start(self) -> None:
        """Draw v."""
        nn.init.normal_(self.direction, std=self.size / math.sqrt(_SPREAD_OF_TANH * self.direction.shape[1]))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        need_weights: bool = False,  # noqa: ARG002 -- there are none to give
        attn_mask: Tensor | None = None,
        is_causal: bool = False,  # noqa: ARG002 -- the mask says it
    ) -> tuple[Tensor, None]:
        """The output; attn_mask is True where a key is hidden."""
        projected = ((query, self.q_proj_weight), (key, self.k_proj_weight), (value, self.v_proj_weight))
        q, k, v = (nn.functional.linear(x, w).unflatten(-1, (self.heads, -1)).transpose(1, 2) for x, w in projected)
        # In pieces: memory for larger ones is taken from the system and given back at every step.
        rows_at_once = max(1, 2**22 // int(k.numel()))
        scores = torch.cat([self._scores(rows, k) for rows in q.split(rows_at_once, dim=2)], dim=2)
        mask = None if attn_mask is None else ~attn_mask
        nothing = q.new_zeros((*q.shape[:-1], 1)), k.new_zeros((*k.shape[:-1], 1))
        if self.measure:
            out, self.last_reading = measure(*nothing, v, bias=scores, mask=mask)
        else:
            out = attention(*nothing, v, bias=scores, mask=mask)
        return self.out_proj(out.transpose(1, 2).flatten(2)), None

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        # Head by head: a product of a matrix and a vector, which is faster than a batch of products of matrices.
        return torch.stack(
            [torch.tanh(q[:, head, :, None] + k[:, head, None]) @ v for head, v in enumerate(self.direction)], dim=1
        )


# E Var[tanh(q + k) | q] for independent standard normal q and k; a test integrates it again.
_SPREAD_OF_TANH = 0.28396841


class TransplantAttention(MultiHeadAttention):
    """rootdk's attention whose queries and keys can be set to a size: sqrt(kappa) x/rms(x), where kappa is given."""

    kappa: float | None = None

    def __init__(self, width: int, heads: int, d_k: int, scale: str, qk_norm: bool = False) -> None:
        super().__init__(width, heads, bias=False, batch_first=True, d_k=d_k, scale=scale, qk_norm=qk_norm)
        if self.in_proj_weight is not None:
            self._project_apart({})

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super()._heads(query, key, value)
        if self.kappa is not None:
            q, k = (self.kappa**0.5 * x * x.square().mean(-1, keepdim=True).rsqrt() for x in (q, k))
        return q, k, v


class Block(nn.Module):  # type: ignore[misc]
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__()
        width, no_bias = spec.width, {"bias": False}
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width, **no_bias), nn.LayerNorm(width, **no_bias)
        self.attention: Any = (
            AdditiveAttention(width, spec.heads, spec.d_k, spec.v_size)
            if spec.rule == ADDITIVE
            else TransplantAttention(width, spec.heads, spec.d_k, spec.rule, spec.qk_norm)
        )
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, **no_bias), nn.GELU(), nn.Linear(4 * width, width, **no_bias)
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x is (batch, n, width); mask, if any, is the causal one."""
        normed = self.attention_norm(x)
        hidden = {"need_weights": False, "attn_mask": mask, "is_causal": mask is not None}
        x = x + self.attention(normed, normed, normed, **hidden)[0]
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):  # type: ignore[misc]
    """Embedded inputs and positions, blocks, logits for every place. causal makes it a decoder.

    >>> import torch
    >>> model = Transformer(RunSpec(d_k=16), nn.Embedding(10, 32), length=5, classes=10, causal=True)
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 10])
    """

    def __init__(self, spec: RunSpec, embedding: nn.Module, length: int, classes: int, causal: bool) -> None:
        super().__init__()
        self.embedding, self.causal = embedding, causal
        self.position = nn.Parameter(torch.empty(length, spec.width))
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.width, bias=False)
        self.head = nn.Linear(spec.width, classes, bias=False)
        self._start(spec.qk_size)

    def _start(self, qk_size: float) -> None:
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                # A table of embeddings is looked up, not summed over: its fan-in is one.
                looked_up = name == "position" or isinstance(self.get_submodule(name.rpartition(".")[0]), nn.Embedding)
                nn.init.normal_(weight, std=1.0 if looked_up else weight.shape[1] ** -0.5)
        for block in self.blocks:
            if isinstance(block.attention, AdditiveAttention):
                block.attention.start()
            with torch.no_grad():
                for weight in projections(block):
                    weight.mul_(qk_size)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (batch, n, classes)."""
        x = self.embedding(inputs)
        n = x.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool).triu(1) if self.causal else None
        x = x + self.position[:n]
        for block in self.blocks:
            x = block(x, mask)
        logits: Tensor = self.head(self.norm(x))
        return logits


def projections(block: Any) -> tuple[Tensor, Tensor]:
    """W_q and W_k of a block, which the study watches and may train at a rate of their own."""
    weights: tuple[Tensor, Tensor] = (block.attention.q_proj_weight, block.attention.k_proj_weight)
    return weights


Batch = tuple[Tensor, Tensor]
IGNORED = -100  # cross_entropy skips this target
# VALID and TEST are batches that are never trained on, in the place of a seed: choices use VALID, reports use TEST.
TRAIN, VALID, TEST = "train", "valid", "test"
_HELD_OUT = {VALID: 2**32 - 2, TEST: 2**32 - 1}


@dataclass(frozen=True, slots=True)
class Task:
    """Inputs and targets. pooled: one answer per sequence, from the mean over its places."""

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


def _recall(pairs: int = 12, questions: int = 12, names: int = 24, values: int = 16) -> Task:
    """A sequence of pairs, each at one place, then names whose values are asked for."""

    def draw(rng: np.random.Generator, count: int, _part: str) -> tuple[Any, Any]:
        name = rng.permuted(np.tile(np.arange(names), (count, 1)), axis=1)[:, :pairs]
        value = rng.integers(1, values + 1, (count, pairs))
        which = rng.integers(0, pairs, (count, questions))
        rows = np.arange(count)[:, None]
        shown = np.stack([name, value], axis=-1)
        question = np.stack([name[rows, which], np.zeros_like(which)], axis=-1)
        targets = np.full((count, pairs + questions), IGNORED)
        targets[:, pairs:] = value[rows, which]
        return np.concatenate([shown, question], axis=1), targets

    embedding = functools.partial(PairEmbedding, names, values + 1)
    return Task(pairs + questions, values + 1, False, False, 16, (1, 64), embedding, draw)


def _text(length: int = 64) -> Task:
    """The next character of Python's standard library."""
    texts = _sources()

    def draw(rng: np.random.Generator, count: int, part: str) -> tuple[Any, Any]:
        text = texts[part]
        start = rng.integers(0, len(text) - length - 1, count)
        windows = text[start[:, None] + np.arange(length + 1)]
        return windows[:, :-1], windows[:, 1:]

    embedding = functools.partial(nn.Embedding, _CHARACTERS)
    return Task(length, _CHARACTERS, True, False, 8, (2, 24), embedding, draw)


_CHARACTERS = 98  # printable ASCII, the end of a line, and one for everything else


@functools.cache
def _sources() -> dict[str, Any]:
    """One file in ten is for choosing and one for reporting. Tabs and what is not ASCII become one character."""
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
        # The held-out data are so few that all of them are used.
        which = rng.choice(parts[part], count) if part == TRAIN else parts[part]
        return patches[which], labels[which]

    embedding = functools.partial(nn.Linear, 4, bias=False)
    return Task(16, 10, False, True, 16, (1, len(parts[TEST])), embedding, draw)


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
