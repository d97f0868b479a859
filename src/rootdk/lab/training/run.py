"""One training run as plain data: what it depends on, and what it recorded. Equal specs give equal runs on one machine.

A number that was not finite is None: JSON has nothing else for it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rootdk.errors import ArgumentError, ArgumentTypeError, RootdkError
from rootdk.rendering import expect_fields, expect_kind
from rootdk.scaling import rule as named_rule

# The name of the file format, which is older than this module: files of earlier versions can be read.
_KIND = "rootdk.trained.Run"
TASKS = ("recall", "text", "digits")
OPTIMIZERS = ("adam", "sgd")
ADDITIVE = "additive"
STOPS = ("budget", "learned", "flat")
DIVERGED = "diverged"
Transplant = tuple[tuple[float, float | None, float | None], ...]


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run: what is learned, with which scale, how wide, how fast.

    task            "recall" (generated pairs to be looked up), "text" (characters of Python's own sources), "digits"
    rule            what rootdk.scaling.rule takes ("none", "sqrt", "dk", "mup(64)", "0.2", a registered name, ...), or
                    "additive": attention that scores by v . tanh(q + k), for comparison; v starts so large that its
                    scores have the variance of q.k/sqrt(d_k) inside a row
    d_k             numbers per head in queries and keys; everything else of the model keeps its size
    optimizer       "adam" or "sgd"
    learning_rate   of all weights
    qk_rate         factor on the learning rate of W_q and W_k
    qk_size         factor on W_q and W_k at the start, where 1 gives queries and keys unit variance
    qk_gradient     factor on the gradients of W_q and W_k, before the optimizer uses them
    qk_norm         every query and key normalised to root mean square 1, with a learned gain
    v_size          factor on v of additive attention at the start; sqrt(d_k) gives its scores the variance of q.k
    warmup          over so many steps the learning rate rises from 0, along a line
    seed            of weights and batches
    steps           how many batches at most
    stop            when a run ends before that: "learned", once 99 % of the validation set are right at three looks in
                    a row; "flat", once the second half of its steps (of 100 at least) has not lowered the validation
                    loss by 1 %; "budget", never
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
    qk_gradient: float = 1.0
    qk_norm: bool = False
    v_size: float = 1.0
    warmup: int = 0
    seed: int = 0
    steps: int = 300
    stop: str = "budget"
    layers: int = 2
    width: int = 32
    heads: int = 1
    transplant: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _among("task", self.task, TASKS)
        _among("optimizer", self.optimizer, OPTIMIZERS)
        _among("stop", self.stop, STOPS)
        _among("qk_norm", self.qk_norm, (False, True))
        _check_rule(self.rule)
        for name in ("d_k", "steps", "layers", "width", "heads"):
            _whole(name, getattr(self, name), 1)
        _whole("seed", self.seed, 0)
        _whole("warmup", self.warmup, 0)
        if self.width % self.heads:
            raise ArgumentError(f"heads: must divide width = {self.width}, got {self.heads}")
        for name in ("learning_rate", "qk_rate", "qk_size", "qk_gradient", "v_size"):
            _positive(name, getattr(self, name))
        for kappa in self.transplant:
            _positive("transplant", kappa)
        for name in ("transplant", "qk_norm"):
            if getattr(self, name) and self.rule == ADDITIVE:
                raise ArgumentError(f"{name}: needs a rule that takes dot products, got rule 'additive'")
        if self.v_size != 1.0 and self.rule != ADDITIVE:
            raise ArgumentError(f"v_size: must be 1 where there is no v, got {self.v_size} with rule {self.rule!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self) | {"transplant": list(self.transplant)}

    @classmethod
    def from_dict(cls, data: Any) -> "RunSpec":
        """The spec that `to_dict` was called on; what is left out has its default, and an unknown name is an error."""
        if not isinstance(data, Mapping):
            raise ArgumentTypeError(f"spec: must be an object with the fields of RunSpec, got {type(data).__name__}")
        known = [entry.name for entry in fields(cls)]
        for name in data:
            _among("spec", name, known)
        plain = dict(data)
        if "transplant" in plain:
            if not isinstance(plain["transplant"], list | tuple):
                raise ArgumentTypeError(f"transplant: must be a list of numbers, got {plain['transplant']!r}")
            plain["transplant"] = tuple(plain["transplant"])
        return cls(**plain)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's attention at one moment, on batches that are not trained on: averages over rows, heads and batches.

    entropy, saturated and live say how the weight is spread: entropy / ln n, the share of rows with a weight over .99,
    and the median of tr J. std is that of the logits inside a row and largest their greatest size |z|. Rows of fewer
    than 8 keys are left out. query_gradient and key_gradient are the norms of the gradients of W_q and W_k.

    >>> from rootdk.lab.training import shipped
    >>> layer = shipped().select(rule="none", d_k=256)[0].moments[0].layers[0]
    >>> layer.saturated > 0.5
    True
    """

    entropy: float | None
    saturated: float | None
    live: float | None
    std: float | None
    largest: float | None
    query_gradient: float | None
    key_gradient: float | None


@dataclass(frozen=True, slots=True)
class Moment:
    """The state after `step` batches.

    train_loss is the mean since the last moment. Two parts of the data are not trained on: by valid_loss and
    valid_accuracy learning rates are chosen and runs are ended, loss and accuracy are for reporting alone. layers is
    empty at two looks of three.

    >>> from rootdk.lab.training import shipped
    >>> start, *_, end = shipped().select(task="recall", rule="sqrt")[0].moments
    >>> start.step, end.loss < start.loss
    (0, True)
    """

    step: int
    train_loss: float | None
    loss: float | None
    accuracy: float | None
    valid_loss: float | None
    valid_accuracy: float | None
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A run from its start to its end, or to the step at which its loss was no longer a number.

    end says why it ended there: one of STOPS, or "diverged". spikes counts the steps whose training loss was more than
    6 standard deviations above the mean of the 50 before it. transplant holds (kappa, loss, largest |logit|) for each
    kappa of the spec. seconds is the time that the run took.

    >>> from rootdk.lab.training import shipped
    >>> run = shipped().runs[0]
    >>> Run.from_dict(run.to_dict()) == run, run.last.step <= run.spec.steps
    (True, True)
    """

    spec: RunSpec
    moments: tuple[Moment, ...]
    end: str = "budget"
    spikes: int = 0
    transplant: Transplant = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def diverged(self) -> bool:
        """Whether its loss was no number any more."""
        return self.end == DIVERGED

    @property
    def last(self) -> Moment:
        """The end of the run."""
        return self.moments[-1]

    def along(self, name: str, layer: int | None = None) -> tuple[list[int], list[float | None]]:
        """Steps and values: of a moment's own number, or of one of a layer, at the looks into layers."""
        if layer is None:
            return [moment.step for moment in self.moments], [getattr(moment, name) for moment in self.moments]
        inside = [moment for moment in self.moments if moment.layers]
        return [moment.step for moment in inside], [getattr(moment.layers[layer], name) for moment in inside]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, ready for JSON; layers as columns, because there are many of them."""
        return {
            "kind": _KIND,
            "spec": self.spec.to_dict(),
            "end": self.end,
            "spikes": self.spikes,
            "seconds": self.seconds,
            "transplant": [list(entry) for entry in self.transplant],
            **{name: [getattr(moment, name) for moment in self.moments] for name in _MOMENT},
            "inside": [place for place, moment in enumerate(self.moments) if moment.layers],
            "layers": [
                {name: self.along(name, layer)[1] for name in _LAYER} for layer in range(len(self.moments[0].layers))
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Run":
        """The run that `to_dict` was called on, also of version 0.2, where one part of the data was not trained on."""
        expect_kind(data, _KIND)
        if "diverged" in data:
            data = _from_0_2(data)
        expect_fields(data, ("spec", "end", "spikes", "seconds", "transplant", *_MOMENT, "inside", "layers"))
        for layer in data["layers"]:
            expect_fields(layer, _LAYER, "data['layers']")
        inside = {place: at for at, place in enumerate(data["inside"])}
        moments = tuple(
            Moment(
                **{name: data[name][place] for name in _MOMENT},
                layers=tuple(Layer(**{name: layer[name][inside[place]] for name in _LAYER}) for layer in data["layers"])
                if place in inside
                else (),
            )
            for place in range(len(data["step"]))
        )
        _among("end", data["end"], (*STOPS, DIVERGED))
        return cls(
            RunSpec.from_dict(data["spec"]),
            moments,
            data["end"],
            int(data["spikes"]),
            tuple((kappa, loss, largest) for kappa, loss, largest in data["transplant"]),
            float(data["seconds"]),
        )


def _from_0_2(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same in today's fields: rates were then chosen by what was reported, and spikes were not counted."""
    expect_fields(data, ("loss", "accuracy", "step"))
    return {
        **data,
        "end": DIVERGED if data["diverged"] else "budget",
        "spikes": 0,
        "valid_loss": data["loss"],
        "valid_accuracy": data["accuracy"],
        "inside": list(range(len(data["step"]))),
    }


_MOMENT = tuple(entry.name for entry in fields(Moment) if entry.name != "layers")
_LAYER = tuple(entry.name for entry in fields(Layer))


def _among(name: str, value: Any, known: Any) -> None:
    if value not in known:
        raise ArgumentError(f"{name}: must be one of {', '.join(map(repr, known))}, got {value!r}")


def _check_rule(text: Any) -> None:
    if text == ADDITIVE:
        return
    try:
        chosen = named_rule(text)
    except RootdkError as error:
        raise type(error)(f"rule: {str(error).partition(': ')[2]}; {ADDITIVE!r} is one too") from error
    if chosen.unit_length:
        raise ArgumentError(f"rule: must be one for q and k as they are, got {text!r}")


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
