"""One move of a knob, over HTTP on the loopback: from the request to the last byte of the figures.

The server runs in a process of its own, warmed up as it is once a page has been open for some seconds. Every knob of a
chapter moves over its range, once with the other knobs at their defaults and once with all others at their largest. A
value comes once, so that what the server keeps is no help. Another seed is no slider: all random numbers are drawn
anew, up to four million of them, and that has a column of its own.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlencode

from benchmarks.children import command
from benchmarks.section import Cell, Report, Row, Section, Setting, Step, Verdict, filled, verdict

LIMIT = 0.040
AT = ("defaults", "largest")
DRAW = "another draw"
_SEED = "seed"


def missing() -> str:
    """What is not installed, or nothing."""
    return ", ".join(name for name in ("plotly", "starlette", "uvicorn") if find_spec(name) is None)


def steps(setting: Setting) -> Iterator[Step]:
    """One step for all chapters: they share a server."""
    if not missing():
        yield Step("explorer", "explorer, all chapters", lambda: measure(6 if setting.quick else 40), whole=True)


def measure(values: int) -> list[Row]:
    """A row per chapter, with so many values of each slider."""
    from rootdk.lab.explorer.chapters import CHAPTERS

    with _server() as connection:
        return [_chapter(connection, chapter, values) for chapter in CHAPTERS]


def _chapter(connection: HTTPConnection, chapter: Any, values: int) -> Row:
    seconds_of: dict[str, list[float]] = {}
    largest = 0
    for name, base in zip((*AT, DRAW), ({}, _largest(chapter), _largest(chapter)), strict=True):
        seconds_of[name] = []
        for setting in _moves(chapter, base, values, seeds=name == DRAW):
            start = time.perf_counter()
            connection.request("GET", f"/api/view/{chapter.id}?{urlencode(setting)}")
            response = connection.getresponse()
            body = response.read()
            seconds = time.perf_counter() - start
            # Knobs that do not fit each other: the answer is short and would flatter the figure.
            if response.status == 200:
                seconds_of[name].append(seconds)
                largest = max(largest, len(body))
    return {
        "name": chapter.id,
        "seconds": {name: percentiles(seconds) for name, seconds in seconds_of.items() if seconds},
        "updates": sum(map(len, seconds_of.values())),
        "largest_bytes": largest,
        "left_out": {},
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Half of the moves take no longer than p50, 19 of 20 no longer than p95.

    >>> percentiles([0.001 * milliseconds for milliseconds in range(1, 101)])
    {'p50': 0.05, 'p95': 0.095}
    """
    ordered = sorted(seconds)
    return {name: ordered[-(-share * len(ordered) // 100) - 1] for name, share in (("p50", 50), ("p95", 95))}


def _largest(chapter: Any) -> dict[str, str]:
    return {
        control.name: str(control.high)
        for control in chapter.controls
        if control.kind in ("int", "float") and control.high is not None and control.name != _SEED
    }


def _moves(chapter: Any, base: dict[str, str], values: int, *, seeds: bool) -> Iterator[dict[str, str]]:
    """Every knob over its range, or the seed alone; the first move, which nobody made, is not among them."""
    from rootdk.lab.explorer.export import texts_of

    for control in chapter.controls:
        if (control.name == _SEED) != seeds:
            continue
        for text in texts_of(control, values):
            yield base | {control.name: text}


@contextmanager
def _server() -> Iterator[HTTPConnection]:
    server = command(f"{__name__}:serve")
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 -- our own program
        assert process.stdout is not None  # noqa: S101 -- it is a pipe
        connection = HTTPConnection("127.0.0.1", int(process.stdout.readline()), timeout=60)
        try:
            yield connection
        finally:
            connection.close()
            process.terminate()


def serve() -> None:
    """What the server's process does: warm up, print the port, answer until it is ended."""
    from rootdk.lab.explorer.server import application, listening, run, warm_up

    warm_up()
    with listening() as listener:
        port = listener.getsockname()[1]
        print(port, flush=True)
        run(application(port), listener)


def judge(report: Report) -> Iterator[Verdict]:
    """The slowest chapter counts, at the defaults and with the knobs at their largest."""
    rows: list[Row] = report.get("explorer", [])
    name, wanted = "explorer, a move of a knob, p95, ms", f"<= {LIMIT * 1e3:.0f}"
    if not rows:
        yield verdict(name, wanted, "-", met=None, why=f"not installed: {missing()}")
        return
    worst = [max(row["seconds"][at]["p95"] for row in rows if at in row["seconds"]) for at in AT]
    slowest = max(rows, key=lambda row: max(times["p95"] for times in row["seconds"].values()))["name"]
    reached = " / ".join(f"{seconds * 1e3:.1f}" for seconds in worst)
    yield verdict(name, wanted, reached, met=max(worst) <= LIMIT, why=f"at defaults / largest; {slowest}")


def _percentiles(at: str) -> Cell:
    def cell(row: Row) -> str:
        times = row["seconds"].get(at)
        return "-" if times is None else " / ".join(f"{times[name] * 1e3:.1f}" for name in ("p50", "p95"))

    return cell


def show(report: Report) -> Iterator[Any]:
    """A line per chapter."""
    columns: dict[str, Cell] = {
        "at defaults": _percentiles("defaults"),
        "others largest": _percentiles("largest"),
        "another draw": _percentiles(DRAW),
        "moves": lambda row: str(row["updates"]),
        "kB at most": lambda row: f"{row['largest_bytes'] / 1e3:.0f}",
    }
    yield filled("Explorer: one move of a knob over HTTP, ms, p50 / p95", "chapter", report["explorer"], columns)


SECTIONS = (Section("explorer", steps, judge, show),)
