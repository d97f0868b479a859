"""Your model: an audit as maps of layers and heads. Without one, a small example that ships as code."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rootdk.audit.demonstration import demonstrate
from rootdk.audit.metrics import METRICS
from rootdk.lab.explorer.chapter import Chapter, Control, View
from rootdk.lab.explorer.model_view import FIRST, model_view
from rootdk.lab.formulas import FREEZING

_READ = """\
from rootdk.audit.demonstration import demonstrate

audit = demonstrate().to_dict()    # an example: a small random model under three scales"""


def compute(values: Mapping[str, Any]) -> View:
    """The example. Who has a model calls `model_view` with its audit."""
    return _view(values["metric"])


@lru_cache(maxsize=16)
def _view(metric: str) -> View:
    return model_view(_example(), {"metric": metric}, _READ)


@lru_cache(maxsize=1)
def _example() -> dict[str, Any]:
    return demonstrate().to_dict()


CHAPTER = Chapter(
    id="model",
    title="Your model",
    formula=FREEZING,
    to_try="Drop the JSON of `rootdk audit --json` here, or start with `rootdk explore --model PATH`; without one you "
    "see an example, a small random model under no scale, 1/√d_k and 1/d_k, three layers each.",
    to_see="Each cell is one head; the dotted line is what theory says of random q and k under the same scale.",
    said="Attention that is far from the theory is broken.",
    true="The theory is a gate at the start only: trained heads leave it for good reasons, so each finding names its "
    "threshold, where that comes from, and what to do.",
    controls=(
        Control(
            "metric",
            "metric",
            "choice",
            FIRST,
            choices=(FIRST, *(one.name for one in METRICS)),
            labels=("the first that the audit has", *(one.short for one in METRICS)),
        ),
    ),
    compute=compute,
)
