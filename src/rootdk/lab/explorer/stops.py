"""The few values of a knob that an exported page holds."""

from typing import Any

import numpy as np

from .chapter import Control, plain

STOPS = 13
# What plays by itself is to move smoothly.
PLAYED_STOPS = 25
SEEDS = 5


def texts_of(control: Control, number: int | None = None) -> list[str]:
    """The values as the page would send them, `number` of a slider; none for numbers, which have too many.

    >>> texts_of(Control("turned", "turned", "flag", False))
    ['false', 'true']
    """
    if control.kind == "choice":
        return list(control.choices)
    if control.kind == "flag":
        return ["false", "true"]
    return [str(one) for one in stops_of(control, number)]


def stops_of(control: Control, number: int | None = None) -> list[float]:
    """From low to high, evenly or by powers, with the default among them.

    >>> stops_of(Control("d_k", "d_k", "int", 64, 4, 1024, log=True))[:5]
    [4, 6, 10, 16, 25]
    >>> stops_of(Control("seed", "seed", "int", 0, 0, 2**31 - 1))
    [0, 1, 2, 3, 4]
    """
    if control.kind not in ("int", "float") or control.low is None or control.high is None:
        return []
    if control.name == "seed":
        return [control.default + one for one in range(number or SEEDS) if control.default + one <= control.high]
    number = number or (PLAYED_STOPS if control.play else STOPS)
    if control.log and control.low > 0:
        spaced = np.geomspace(control.low, control.high, number)
    else:
        spaced = np.linspace(control.low, control.high, number)
        if control.step:
            spaced = control.low + control.step * np.round((spaced - control.low) / control.step)
    whole = control.kind == "int"
    tidy = {round(one) if whole else float(f"{one:.4g}") for one in spaced.tolist()}
    found = sorted({*tidy, control.default})
    return [one for one in found if control.low <= one <= control.high]


def with_stops(control: Control) -> dict[str, Any]:
    """The knob as the exported page gets it: numbers cannot be changed, the others stop where there is a view."""
    found: dict[str, Any] = plain(control)
    if control.kind == "numbers":
        return found | {"fixed": True}
    return found | ({"stops": stops_of(control)} if control.kind in ("int", "float") else {})
