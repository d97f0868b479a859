"""Ahead of the reader: the curves that chapters keep once they are computed.

A curve over d_k takes a tenth of a second or more, the ledger of claims some seconds; after that a knob costs
milliseconds. The server runs this in a thread of its own while the page opens.
"""

from collections.abc import Callable
from itertools import product

from rootdk.errors import ArgumentError

from .chapters import CHAPTERS
from .values import read_values


def warm_up(stop: Callable[[], bool] = lambda: False) -> None:
    """Every chapter at its defaults, under every choice that it offers. Asks `stop` between two views."""
    for chapter in CHAPTERS:
        choices = [control for control in chapter.controls if control.kind == "choice"]
        for chosen in product(*(control.choices for control in choices)):
            if stop():
                return
            raw = {control.name: value for control, value in zip(choices, chosen, strict=True)}
            try:
                chapter.compute(read_values(chapter, raw))
            except ArgumentError:
                continue  # a metric that the example does not have: said when it is asked for
