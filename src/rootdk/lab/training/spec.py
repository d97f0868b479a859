"""What one training run depends on, and nothing else: equal specs give equal runs on one machine."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from rootdk.errors import ArgumentError, ArgumentTypeError
from rootdk.scaling import rules

TASKS = ("recall", "text", "digits")
OPTIMIZERS = ("adam", "sgd")
ADDITIVE = "additive"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run: what is learned, with which scale, how wide, how fast.

    task            "recall" (generated pairs to be looked up), "text" (characters of Python's own sources), "digits"
    rule            a rule of rootdk.scaling by its name ("none", "sqrt", "dk", ...), or "additive": attention that
                    scores by v . tanh(q + k), for comparison
    d_k             numbers per head in queries and keys; everything else of the model keeps its size
    optimizer       "adam" or "sgd"
    learning_rate   of all weights
    qk_rate         factor on the learning rate of W_q and W_k
    qk_size         factor on W_q and W_k at the start, where 1 gives queries and keys unit variance
    seed            of weights and batches
    steps           how many batches
    layers, width, heads   of the model
    transplant      kappas: the trained model is tried again with sqrt(kappa) q/rms(q) and the same for keys

    >>> RunSpec(rule="none", d_k=512).d_k
    512
    >>> RunSpec(task="chess")
    Traceback (most recent call last):
    rootdk.errors.ArgumentError: task: must be one of 'recall', 'text', 'digits', got 'chess'
    """

    task: str = "recall"
    rule: str = "sqrt"
    d_k: int = 64
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    qk_rate: float = 1.0
    qk_size: float = 1.0
    seed: int = 0
    steps: int = 300
    layers: int = 2
    width: int = 64
    heads: int = 2
    transplant: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _among("task", self.task, TASKS)
        _among("optimizer", self.optimizer, OPTIMIZERS)
        _among("rule", self.rule, (*rules(), ADDITIVE))
        for name in ("d_k", "steps", "layers", "width", "heads"):
            _whole(name, getattr(self, name), 1)
        _whole("seed", self.seed, 0)
        if self.width % self.heads:
            raise ArgumentError(f"heads: must divide width = {self.width}, got {self.heads}")
        for name in ("learning_rate", "qk_rate", "qk_size"):
            _positive(name, getattr(self, name))
        for kappa in self.transplant:
            _positive("transplant", kappa)
        if self.transplant and self.rule == ADDITIVE:
            raise ArgumentError("transplant: needs a rule that takes dot products, got rule 'additive'")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self) | {"transplant": list(self.transplant)}

    @classmethod
    def from_dict(cls, data: Any) -> "RunSpec":
        """The spec that `to_dict` was called on; what is left out has its default, and an unknown name is an error."""
        if not isinstance(data, Mapping):
            raise ArgumentTypeError(f"spec: must be an object with the fields of RunSpec, got {type(data).__name__}")
        known = [one.name for one in fields(cls)]
        for name in data:
            _among("spec", name, known)
        plain = dict(data)
        if "transplant" in plain:
            if not isinstance(plain["transplant"], list | tuple):
                raise ArgumentTypeError(f"transplant: must be a list of numbers, got {plain['transplant']!r}")
            plain["transplant"] = tuple(plain["transplant"])
        return cls(**plain)


def _among(name: str, value: Any, known: Any) -> None:
    if value not in known:
        raise ArgumentError(f"{name}: must be one of {', '.join(map(repr, known))}, got {value!r}")


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(f"{name}: must be a whole number, got {value!r}")
    if value < least:
        raise ArgumentError(f"{name}: must be at least {least}, got {value}")


def _positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(f"{name}: must be a number, got {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise ArgumentError(f"{name}: must be positive and finite, got {value}")
