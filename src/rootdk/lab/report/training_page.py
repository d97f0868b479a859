"""The page of a training study, and the section in brief that the page of `rootdk` has. Nothing is trained here."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rootdk.lab.drawing import COLOURS, Picture, card, document, figures, foot, number, rich, table
from rootdk.lab.training import Group, Results, grouped, panels
from rootdk.lab.training.run import ADDITIVE, TASKS

from . import training_pictures as draw

_LEAD = (
    "Small Transformers that differ in nothing but the scale of their scores, the width d_k of queries and keys, the "
    "learning rate and the seed, and where a line says so in the start or the training of W_q and W_k. Learning rates "
    "are chosen by a validation set, loss and accuracy belong to a test set; lines are means over seeds, bands and "
    "bars their confidence intervals, faint marks single seeds. Where intervals overlap, these runs do not tell the "
    "lines apart."
)


@dataclass(frozen=True, slots=True)
class Chapter:
    """What is asked, a paragraph, and the pictures of one panel that answer. No number is written in the text."""

    anchor: str
    heading: str
    text: str
    pictures: Callable[[str, Sequence[Group], bool], Iterator[Picture]]


def _learning(panel: str, groups: Sequence[Group], brief: bool) -> Iterator[Picture]:
    dots = _dots(groups)
    for d_k in _spread_over(_compared(dots), 1 if brief else 3):
        yield draw.learning_curves(panel, dots, d_k)


def _widths(panel: str, groups: Sequence[Group], brief: bool) -> Iterator[Picture]:
    dots = _dots(groups)
    sizes = _compared(dots)
    if not sizes:
        return
    rate = _rate_for_all(dots)
    if len(sizes) > 1:
        if rate is not None:
            yield draw.over_d_k(panel, dots, rate)
        if any(len(group.rates) > 1 for group in dots):
            yield draw.over_d_k(panel, dots)
    for d_k in _spread_over(sizes, 1 if brief else 2):
        if any(len(group.rates) > 1 for group in dots if group.spec.d_k == d_k):
            yield draw.over_rates(panel, dots, d_k)


def _inside(panel: str, groups: Sequence[Group], brief: bool) -> Iterator[Picture]:
    dots = _dots(groups)
    for d_k in _compared(dots)[-1:]:
        for name, label, log in (("entropy", "entropy share", False), ("largest", "largest |logit|", True)):
            pictures = draw.layer_curves(panel, dots, d_k, name, label, log=log)
            yield from pictures[-1:] if brief else pictures
        if any(len(group.rates) > 1 for group in dots if group.spec.d_k == d_k):
            yield draw.entropy_over_rates(panel, dots, d_k)
    # The group with the most learning rates; of several such groups, that with the usual scale.
    most = max(dots, key=lambda group: (len(group.rates), group.line == "sqrt"), default=None)
    if most is not None and len(most.rates) > 3:
        yield from draw.ladder(panel, most)


def _additive(panel: str, groups: Sequence[Group], _brief: bool) -> Iterator[Picture]:
    added = [group for group in groups if group.spec.rule == ADDITIVE]
    sizes = {group.spec.d_k for group in added}
    # Beside it the dot product with and without its scale, where both were tried.
    beside = [group for group in groups if group.line in {ADDITIVE, "none", "sqrt"} and group.spec.d_k in sizes]
    if added and len({group.line for group in beside}) > 1:
        best = draw.over_d_k(panel, beside)
        title = f"Additive attention and dot products: {panel}"
        yield Picture(f"additive-{best.name}", title, best.caption, best.figure)


def _transplants(panel: str, groups: Sequence[Group], brief: bool) -> Iterator[Picture]:
    tried = [group for group in groups if any(run.transplant for run in group.best.runs)]
    for d_k in _spread_over(sorted({group.spec.d_k for group in tried}), 1 if brief else 2):
        yield from draw.transplants(panel, tried, d_k)


CHAPTERS = (
    Chapter(
        "learning",
        "How fast it is learned",
        "Each rule at the best of the learning rates that were tried for it. The captions say which that is, and where "
        "it is the only one or at an end of those tried: there a comparison of rules is one of learning rates as well.",
        _learning,
    ),
    Chapter(
        "width",
        "Wider queries and keys",
        "At one learning rate for all, and at the best of each where several were tried. 1/d_k hands a smaller "
        "gradient to queries and keys than 1/√d_k does. Under Adam that is no reason to be late: it divides by the "
        "size of the gradient. The same step of W_q and W_k moves the logits of 1/d_k less, by a factor of √d_k.",
        _widths,
    ),
    Chapter(
        "inside",
        "What attention does meanwhile",
        "Entropy as a share of ln n, and the largest logit, on batches that were not trained on. Training can widen "
        "the logits by itself; a learning rate that is too large can do it so fast that the entropy collapses.",
        _inside,
    ),
    Chapter(
        "additive",
        "Additive attention",
        "Scores of a sum of tanh stay bounded whatever d_k is, which is what the scale was invented to keep up with.",
        _additive,
    ),
    Chapter(
        "transplant",
        "Another size for trained queries and keys",
        "Trained models, tried again with every query and key set to one length: √κ times itself over its root mean "
        "square. What the direction of a vector says stays; how sharp the softmax is follows from κ.",
        _transplants,
    ),
)


def chapters(results: Results, *, brief: bool = False) -> list[tuple[Chapter, list[Picture]]]:
    """The chapters that these results have pictures for. brief: for one d_k and the last layer only."""
    # One order of lines in all pictures, whichever was run first.
    order = {name: place for place, name in enumerate(COLOURS)}
    groups = sorted(grouped(results.runs), key=lambda group: order.get(group.spec.rule, len(order)))
    by_panel = panels(sorted(groups, key=lambda group: TASKS.index(group.spec.task)))
    drawn = []
    for chapter in CHAPTERS:
        pictures = [picture for name, panel in by_panel.items() for picture in chapter.pictures(name, panel, brief)]
        if pictures:
            drawn.append((chapter, pictures))
    return drawn


def render_training(results: Results) -> str:
    """One HTML page of a training study that opens offline.

    >>> from rootdk.lab.training import shipped
    >>> render_training(shipped()).startswith("<!DOCTYPE html>")
    True
    """
    shown = chapters(results)
    links = [(chapter.anchor, chapter.heading) for chapter, _ in shown] + [("numbers", "All numbers")]
    body = [
        "<h1>Does the scale matter when a model learns?</h1>",
        f"<p>{rich(_LEAD)}</p>",
        f"<div class='cards'>{''.join(_cards(results))}</div>",
        *(
            f"<section><h2 id='{chapter.anchor}'>{rich(chapter.heading)}</h2><p>{rich(chapter.text)}</p>"
            f"{figures(pictures)}</section>"
            for chapter, pictures in shown
        ),
        f"<section><h2 id='numbers'>All numbers</h2>{_folded(results)}</section>",
        foot(results.about),
    ]
    return document("rootdk: does the scale matter when a model learns?", links, body)


_UNFOLDED = 3  # how many questions of a larger page are open: all of them would be a quarter of it


def training_section(results: Results) -> str:
    """The same in brief, as a section of a larger page: the first questions with two figures, the rest folded."""
    parts = []
    for place, (chapter, pictures) in enumerate(chapters(results, brief=True)):
        text = f"<p>{rich(chapter.text)}</p>{figures(pictures, most=2)}"
        heading = rich(chapter.heading)
        folded = f"<details><summary>{heading}</summary>{text}</details>"
        parts.append(f"<h3>{heading}</h3>{text}" if place < _UNFOLDED else folded)
    about = ", ".join(f"{name} {value}" for name, value in results.about.items())
    return (
        f"<section><h2 id='training'>What training showed</h2><p>{rich(_LEAD)}</p>{''.join(parts)}"
        f"{_folded(results)}"
        f"<p class='dim'>{len(results.runs)} runs of rootdk train-study. {escape(about)}</p></section>"
    )


def numbers(results: Results) -> str:
    """A row per rule, d_k and learning rate."""
    head = ["task", "rule", "d_k", "learning rate", "chosen", "seeds", "loss", "± half", "accuracy",
            "reached 90 %", "median steps", "spikes", "diverged"]  # fmt: skip
    rows = []
    for panel, groups in panels(grouped(results.runs)).items():
        for group in sorted(groups, key=lambda group: (group.spec.d_k, group.line)):
            for outcome in group.outcomes:
                loss, right, rate, lost = outcome.loss, outcome.accuracy, outcome.rate, outcome.diverged
                chosen = (f"yes, {group.edge} tried" if group.edge else "yes") if rate == group.best.rate else "–"
                steps = "–" if outcome.median_steps is None else number(outcome.median_steps)
                spikes = sum(run.spikes for run in outcome.runs)
                rows.append([panel, group.line, str(group.spec.d_k), f"{rate:.3g}", chosen, str(loss.count),
                             number(loss.mean), number(loss.half), number(right.mean), str(outcome.learned), steps,
                             str(spikes or "–"), str(lost or "–")])  # fmt: skip
    return table(head, rows)


def _folded(results: Results) -> str:
    return f"<details><summary>loss and accuracy, every setting</summary>{numbers(results)}</details>"


def _cards(results: Results) -> Iterator[str]:
    specs = [run.spec for run in results.runs]
    tasks, sizes, seeds = ({getattr(spec, name) for spec in specs} for name in ("task", "d_k", "seed"))
    rules = dict.fromkeys(spec.rule for spec in specs)
    diverged = sum(run.diverged for run in results.runs)
    yield card(str(len(specs)), f"runs, {len(seeds)} seeds" + f", {diverged} of the runs diverged" * bool(diverged))
    yield card(escape(", ".join(dict.fromkeys(spec.task for spec in specs))), "task" + "s" * (len(tasks) > 1))
    yield card(escape(", ".join(rules)), "scale rules" if len(rules) > 1 else "scale rule")
    yield card(f"{min(sizes)} – {max(sizes)}" if len(sizes) > 1 else str(min(sizes)), rich("d_k"))


def _dots(groups: Sequence[Group]) -> list[Group]:
    """The groups with dot products."""
    return [group for group in groups if group.spec.rule != ADDITIVE]


def _compared(groups: Sequence[Group]) -> list[int]:
    """The d_k at which there is more than one line to compare; where there is none, all of them."""
    lines: dict[int, set[str]] = {}
    for group in groups:
        lines.setdefault(group.spec.d_k, set()).add(group.line)
    return sorted(d_k for d_k, names in lines.items() if len(names) > 1) or sorted(lines)


def _spread_over(values: Sequence[int], count: int) -> list[int]:
    """The largest, the smallest and what lies between, up to so many."""
    if len(values) <= count:
        return list(values)
    return {1: [values[-1]], 2: [values[0], values[-1]]}.get(count, [values[0], values[len(values) // 2], values[-1]])


def _rate_for_all(groups: Sequence[Group]) -> float | None:
    """The learning rate for the comparison at equal rates: of those that every rule has, the best of 1/sqrt(d_k)."""
    plain = [group for group in groups if group.line == group.spec.rule]
    common = set.intersection(*(set(group.rates) for group in plain)) if plain else set()
    if not common:
        return None
    candidates = [group for group in plain if group.line == "sqrt"] or plain
    widest = max(candidates, key=lambda group: group.spec.d_k)
    return min(common, key=lambda rate: (widest.at(rate).loss.mean, rate))
