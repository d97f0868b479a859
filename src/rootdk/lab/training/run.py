"""What one training run recorded, as plain data. A number that was not finite is None: JSON knows no other word."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rootdk._views import expect_fields, expect_kind

from .spec import RunSpec

_KIND = "rootdk.trained.Run"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's attention at one moment, on batches that are not trained on: averages over rows, heads and batches.

    entropy, saturated and live say how the weight is spread: entropy / ln n, the share of rows with a weight over .99,
    and the median of tr J. std is that of the logits inside a row and largest their greatest size |z|. Rows of fewer
    than 8 keys are left out. query_gradient and key_gradient are the norms of the gradients of W_q and W_k.
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

    train_loss is the mean since the last moment, loss and accuracy belong to batches that are not trained on.
    """

    step: int
    train_loss: float | None
    loss: float | None
    accuracy: float | None
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A run from its start to its end, or to the step at which its loss was no longer a number.

    transplant holds (kappa, loss, largest |logit|) for each kappa of the spec. seconds is the time that the run took.
    """

    spec: RunSpec
    moments: tuple[Moment, ...]
    diverged: bool = False
    transplant: tuple[tuple[float, float | None, float | None], ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def last(self) -> Moment:
        """The end of the run."""
        return self.moments[-1]

    def along(self, name: str, layer: int | None = None) -> tuple[list[int], list[float | None]]:
        """Steps and values: of a moment's own number, or of one that belongs to a layer."""
        whose = [one if layer is None else one.layers[layer] for one in self.moments]
        return [one.step for one in self.moments], [getattr(one, name) for one in whose]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, ready for JSON; layers as columns, because there are many of them."""
        return {
            "kind": _KIND,
            "spec": self.spec.to_dict(),
            "diverged": self.diverged,
            "seconds": self.seconds,
            "transplant": [list(one) for one in self.transplant],
            **{name: [getattr(one, name) for one in self.moments] for name in _MOMENT},
            "layers": [
                {name: self.along(name, layer)[1] for name in _LAYER} for layer in range(len(self.moments[0].layers))
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Run":
        """The run that `to_dict` was called on."""
        expect_kind(data, _KIND)
        expect_fields(data, ("spec", "diverged", "seconds", "transplant", *_MOMENT, "layers"))
        for layer in data["layers"]:
            expect_fields(layer, _LAYER, "data['layers']")
        moments = tuple(
            Moment(
                **{name: data[name][at] for name in _MOMENT},
                layers=tuple(Layer(**{name: layer[name][at] for name in _LAYER}) for layer in data["layers"]),
            )
            for at in range(len(data["step"]))
        )
        return cls(
            RunSpec.from_dict(data["spec"]),
            moments,
            bool(data["diverged"]),
            tuple((kappa, loss, largest) for kappa, loss, largest in data["transplant"]),
            float(data["seconds"]),
        )


_MOMENT = tuple(one.name for one in fields(Moment) if one.name != "layers")
_LAYER = tuple(one.name for one in fields(Layer))
