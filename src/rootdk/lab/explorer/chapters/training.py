"""Training curves: what the rules did to small models that were trained, from the runs of a study."""

import math
from collections.abc import Sequence
from functools import lru_cache

from rootdk.errors import ArgumentError
from rootdk.lab.drawing import Picture
from rootdk.lab.explorer.chapter import Chapter, Figure, Number, Values, View, choice, written
from rootdk.lab.formulas import ATTENTION
from rootdk.lab.report.training_pictures import learning_curves, over_d_k, over_rates, slug
from rootdk.lab.training import Group, Results, grouped, panels

_READ = "from rootdk.lab.training import shipped\n\nresults = shipped()"


def training_chapter(results: Results, read: str = _READ) -> Chapter:
    """The chapter for these runs: what there is to choose depends on what was trained.

    read   Python lines that leave the same runs in `results`
    """
    groups_of = panels(grouped(results.runs))
    names = {slug(name): name for name in groups_of}
    sizes = [str(d_k) for d_k in results.values("d_k")]
    # The panel with the most runs, and of its d_k the one in the middle.
    largest = max(groups_of, key=lambda name: sum(len(group.runs) for group in groups_of[name]))
    widths = sorted({group.spec.d_k for group in groups_of[largest]})

    # The runs do not change.
    @lru_cache(maxsize=256)
    def view(panel: str, d_k: int) -> View:
        return _view(names[panel], groups_of[names[panel]], d_k, read)

    def compute(values: Values) -> View:
        """Loss along training at one d_k, and at the end over all of them."""
        return view(values["panel"], int(values["d_k"]))

    return Chapter(
        id="training",
        title="Training curves",
        formula=ATTENTION,
        to_try="Choose what is learned and d_k, and compare the rules.",
        to_see="Lines are means over seeds with their 95 % interval, each rule at the best learning rate tried.",
        said="Without the scale learning slows or fails, the more so the larger d_k is.",
        true="It is late, not dead: without the scale recall takes several times the steps at large d_k, and less so "
        "at small d_k. These are small models, by which claims 16 and 18 of the ledger are judged.",
        controls=(
            choice("panel", "task", names, slug(largest), help="What is learned, for how many steps and how."),
            choice("d_k", "d_k", sizes, str(widths[len(widths) // 2])),
        ),
        compute=compute,
    )  # fmt: skip


def _view(panel: str, groups: Sequence[Group], d_k: int, read: str) -> View:
    of_width = [group for group in groups if group.spec.d_k == d_k]
    if not of_width:
        widths = ", ".join(str(d_k) for d_k in sorted({group.spec.d_k for group in groups}))
        raise ArgumentError(f"d_k: must be one that was trained with, {widths} for {panel!r}, got {d_k}")
    pictures = [learning_curves(panel, groups, d_k), over_d_k(panel, groups)]
    if any(len(group.rates) > 1 for group in of_width):
        pictures.append(over_rates(panel, groups, d_k))
    figures = tuple(map(_figure, pictures))
    return View(figures, tuple(map(_loss, of_width)), _python(panel, d_k, read))


def _loss(group: Group) -> Number:
    loss = group.best.loss
    half = "" if loss.half is None else f" ± {loss.half:.2g}"
    text = f"{written(loss.mean)}{half}" if math.isfinite(loss.mean) else "diverged"
    label = f"{group.line}: lowest loss, learning rate {group.best.rate:g}"
    return Number(f"loss_{slug(group.line)}", label, loss.mean, text, "measured")


def _figure(picture: Picture) -> Figure:
    """The figure, with the last number of every line in words."""
    ends = []
    for trace in picture.figure["data"]:
        known = [(x, y) for x, y in zip(trace["x"], trace["y"], strict=True) if y is not None]
        if trace.get("name") and known:
            first, last = known[0], known[-1]
            ends.append(f"{trace['name']} from {written(first[1], 3)} to {written(last[1], 3)}")
    lines = "; ".join(ends).replace("d<sub>k</sub>", "d_k")
    return Figure(picture.name, picture.title, picture.figure, f"{picture.title}. {lines}. {picture.caption}")


def _python(panel: str, d_k: int, read: str) -> str:
    return f"""\
import re
from rootdk.lab.training import grouped, panels
{read}
for group in panels(grouped(results.runs))["{panel}"]:
    if group.spec.d_k == {d_k}:
        name = re.sub("[^a-z0-9]+", "-", group.line.lower()).strip("-")
        print(f"loss_{{name}}", group.best.loss.mean)
"""
