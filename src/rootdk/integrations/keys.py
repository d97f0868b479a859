"""Under which key each number of a step is written, and how the heads of a layer become one number.

attn/max_logit                       of the whole model
attn/layer_03/max_logit              of a layer
attn/layer_03/head_05/max_logit      of a head, on request
"""

from collections.abc import Callable, Mapping

import numpy as np

from rootdk.audit.layer import LayerReading, Numbers
from rootdk.integrations.ranks import Merged

# An extreme is that of the worst head; of the rest the median counts, by which a layer is judged too.
_HIGHEST = frozenset({"max_logit", "max_score", "raw_score", "non_finite", "cap_ratio", "bf16_spacing"})
_LOWEST = frozenset({"min_logit", "min_log_sum_exp", "qk_clip"})


class LayerKeys:
    """Short names for module paths, one to one, that stay what they are over a run.

    A path with a number in it is `layer_` and that number. Where a model attends in several places (encoder and
    decoder, itself and another), the place that runs first has the short names, and the others keep their paths. So
    does a path without a number; further runs of a layer in one forward are numbered.

    >>> key = LayerKeys()
    >>> key("model.layers.3.self_attn"), key("model.layers.3.self_attn#2")
    ('layer_03', 'layer_03_run_2')
    >>> key("model.layers.3.cross_attn"), key("pool")
    ('model.layers.03.cross_attn', 'pool')
    """

    def __init__(self) -> None:
        self._first: list[str] | None = None

    def __call__(self, path: str) -> str:
        """The name of the layer at a module path."""
        path, _, run = path.partition("#")
        parts = path.split(".")
        place = next((at for at, part in enumerate(parts) if part.isdecimal()), None)
        name = path
        if place is not None:
            number = parts[place].zfill(2)
            parts[place] = ""
            self._first = self._first or parts
            whole = ".".join([*parts[:place], number, *parts[place + 1 :]])
            name = f"layer_{number}" if parts == self._first else whole
        return f"{name}_run_{run}" if run else name


def values_of(
    readings: Mapping[str, LayerReading] | Mapping[str, Merged],
    key: Callable[[str], str],
    heads: bool = False,
    clipped: Mapping[str, Numbers] | None = None,
) -> dict[str, float]:
    """Every number of a step by its key. `clipped` has the factors of QK-clip, if there is one."""
    by_key: dict[str, float] = {}
    whole: dict[str, list[Numbers]] = {}
    for path, reading in readings.items():
        name, numbers = key(path), dict(reading.metrics)
        if clipped is not None:
            numbers["qk_clip"] = clipped.get(path.partition("#")[0], np.ones(reading.heads))
        for metric, values in numbers.items():
            whole.setdefault(metric, []).append(values)
            by_key[f"attn/{name}/{metric}"] = over_heads(metric, values)
            if heads:
                by_key |= {f"attn/{name}/head_{head:02d}/{metric}": float(value) for head, value in enumerate(values)}
    return {f"attn/{metric}": over_heads(metric, np.concatenate(values)) for metric, values in whole.items()} | by_key


def over_heads(metric: str, values: Numbers) -> float:
    """One number for several heads; NaN if none of them has one.

    >>> over_heads("max_logit", np.array([1.0, 9.0, 2.0])), over_heads("entropy_ratio", np.array([0.9, 0.1, 0.8]))
    (9.0, 0.8)
    """
    known = values[~np.isnan(values)]
    if not known.size:
        return float("nan")
    statistic = np.max if metric in _HIGHEST else np.min if metric in _LOWEST else np.median
    return float(statistic(known))
