"""Ahead of the reader: the curves that chapters keep once they are computed.

A curve over d_k takes a tenth of a second or more, the ledger of claims some seconds; after that a knob costs
milliseconds. The server runs this in a thread of its own while the page opens.
"""

from collections.abc import Callable, Iterator
from itertools import product

from rootdk.errors import ArgumentError

from .chapter import Chapter
from .chapters import CHAPTERS
from .values import read_values

_FEW = 25


def warm_up(stop: Callable[[], bool] = lambda: False) -> None:
    """Every chapter at its defaults, under every choice that it offers. Asks `stop` between two views."""
    for chapter in CHAPTERS:
        for raw in [*_choices(chapter), *_few_steps(chapter)]:
            if stop():
                return
            try:
                chapter.compute(read_values(chapter, raw))
            except ArgumentError:
                continue  # a metric that the example does not have: said when it is asked for


def _choices(chapter: Chapter) -> Iterator[dict[str, str]]:
    choices = [control for control in chapter.controls if control.kind == "choice"]
    for chosen in product(*(control.choices for control in choices)):
        yield {control.name: value for control, value in zip(choices, chosen, strict=True)}


def _few_steps(chapter: Chapter) -> Iterator[dict[str, str]]:
    """Where nothing is drawn at random, the places of a slider that has few of them: all of them can be kept."""
    if any(control.name == "seed" for control in chapter.controls):
        return
    for control in chapter.controls:
        if control.low is None or control.high is None or not control.step or control.log:
            continue
        count = round((control.high - control.low) / control.step)
        if control.kind == "float" and count <= _FEW:
            yield from ({control.name: f"{control.low + control.step * at:.6g}"} for at in range(count + 1))
