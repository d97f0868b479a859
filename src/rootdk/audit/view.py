"""An audit in a terminal, from the dictionary that is also its JSON: verdict, maps, findings, what to do."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from rootdk import _views
from rootdk.audit.grouped import FindingGroup, grouped
from rootdk.audit.metrics import grid, present, short_names
from rootdk.untrusted import shown_text, shown_values

from .heat import heat_map

STYLES = {"healthy": "green", "note": "cyan", "warning": "yellow", "critical": "bold red"}
# The page has all of them.
_MAPS = 4
_GAP = 2
_LABEL = 20
_UNKNOWN = 6
_LONGEST = 120


class Shown:
    """What `rich` prints of an audit, as wide as the terminal is."""

    def __init__(self, audit: Mapping[str, Any]) -> None:
        # Names and model types come from files: none of them may reach the terminal as it stands.
        self._audit = shown_values(audit)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield headline(self._audit)
        yield Text()
        yield from _maps(self._audit, width)
        yield from _findings(self._audit)
        unknown = self._audit.get("unknown") or []
        if unknown:
            more = f" and {len(unknown) - _UNKNOWN} more" if len(unknown) > _UNKNOWN else ""
            listed = ", ".join(shown_text(name, _LONGEST) for name in unknown[:_UNKNOWN])
            yield Text(f"Not understood, so not read: {listed}{more}", style="yellow")
        for name, why in (self._audit.get("unread") or {}).items():
            yield Text(f"Not read: {name}: {why}", style="yellow")


def shown(audit: Mapping[str, Any]) -> Group:
    """The whole of it."""
    return Group(Shown(audit))


def headline(audit: Mapping[str, Any]) -> Text:
    """One line: what was audited, and the verdict."""
    model = shown_values(audit.get("model") or {}, _LONGEST)
    layers = audit["layers"]
    heads = max((len(layer["heads"]) for layer in layers), default=0)
    facts = [f"{len(layers)} layers of {heads} heads"]
    if model.get("d_k"):
        facts.append(f"d_k {model['d_k']}")
    if model.get("scale"):
        facts.append(f"scale {_views.short(model['scale'])} ({model['scale_source']})")
    if model.get("softcap"):
        facts.append(f"softcap {_views.short(model['softcap'])}")
    name = model.get("model_type") or "attention"
    verdict = Text(str(audit["verdict"]), style=STYLES[audit["verdict"]])
    return Text.assemble((name, "bold"), ": ", verdict, "  (", ", ".join(facts), ")")


def _maps(audit: Mapping[str, Any], width: int) -> Iterator[Any]:
    """The first few metrics, two beside each other where they fit; the first of a line tells which layers are ill."""
    layers = audit["layers"]
    names = short_names([layer["name"] for layer in layers], _LABEL)
    marks, none = _marks(audit), [""] * len(layers)
    chosen = present(layers)[:_MAPS]
    for start in range(0, len(chosen), 2):
        pair = chosen[start : start + 2]
        beside = [
            heat_map(one, grid(layers, one.name), names, none if number else marks, width // 2)
            for number, one in enumerate(pair)
        ]
        if sum(_widest(one) for one in beside) + _GAP <= width:
            table = Table.grid(padding=(0, _GAP, 0, 0))
            table.add_row(*beside)
            yield from (table, Text())
        else:
            for one in pair:
                yield from (heat_map(one, grid(layers, one.name), names, marks, width), Text())


def _widest(text: Text) -> int:
    return max(map(len, text.plain.splitlines()))


def _marks(audit: Mapping[str, Any]) -> list[str]:
    """The worst that was found in each layer, if it is more than a note."""
    worst: dict[str, str] = {}
    for one in audit["findings"]:
        if one["severity"] == "critical" or (one["severity"] == "warning" and worst.get(one["layer"]) != "critical"):
            worst[one["layer"]] = one["severity"]
    return [worst.get(layer["name"], "") for layer in audit["layers"]]


def _findings(audit: Mapping[str, Any]) -> list[Any]:
    if not audit["findings"]:
        return [Text("Nothing found.")]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for one in grouped(audit):
        table.add_row(Text(one.severity, style=STYLES[one.severity]), _found(one))
    return [table]


def _found(one: FindingGroup) -> Text:
    text = Text.assemble((one.metric, "bold"), f" {one.value}, limit {_views.brief(one.threshold)}: {one.places}.")
    text.append(f"\nTo do: {one.remedy}.")
    return text.append(f" [{one.source}]", style="dim")
