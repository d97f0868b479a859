"""Two small chapters with every kind of knob: for tests of the server and the page, whatever the real chapters are."""

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from rootdk.errors import ArgumentError
from rootdk.lab.explorer.chapter import Chapter, Control, Figure, Table, View, number

FORMULA = '<math display="block"><mi>y</mi><mo>=</mo><msup><mi>x</mi><mi>a</mi></msup></math>'


def powers(values: Mapping[str, Any]) -> View:
    x = np.linspace(0.1, 2.0, values["points"])
    y = x ** values["exponent"] * (-1 if values["turned"] else 1)
    noise = np.random.default_rng(values["seed"]).standard_normal(values["points"])
    if values["exponent"] == 1.5 and values["turned"]:
        raise ArgumentError("exponent: must not be 1.5 while it is turned, got 1.5")
    lines = {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": "curve"}
    dots = {"type": "scatter", "mode": "markers", "x": x, "y": y + 0.1 * noise, "name": "drawn"}
    text = f"A curve that ends at {y[-1]:.3g}."
    return View(
        figures=(Figure("curve", "A power of x with d_k", {"data": [lines, dots], "layout": {}}, text),),
        numbers=(number("end", "last value", y[-1], "theory"), number("noise", "noise", noise.mean(), "measured")),
        python=f"x = {values['exponent']}\nprint('end', 2.0 ** x)",
    )


def matrix(values: Mapping[str, Any]) -> View:
    z = np.array(values["entries"]) * {"one": 1, "ten": 10}[values["unit"]]
    heat = {"type": "heatmap", "z": z, "colorscale": "Blues"}
    return View(
        figures=(Figure("map", "The entries", {"data": [heat], "layout": {}}, f"They sum to {z.sum():g}."),),
        numbers=(number("sum", "sum", z.sum(), "theory"),),
        python="print('sum', 0)",
        table=Table(("row", "sum"), tuple((str(i), float(row.sum())) for i, row in enumerate(z))),
    )


def broken(values: Mapping[str, Any]) -> View:
    raise ZeroDivisionError("a secret place")


def model_view(audit: Mapping[str, Any], values: Mapping[str, Any]) -> View:
    if "layers" not in audit:
        raise ArgumentError("audit: must have layers, got none")
    return View((), (number("layers", "layers", len(audit["layers"]), "measured"),), "print('layers', 0)")


TEXTS = {
    "formula": FORMULA,
    "to_try": "Move the exponent.",
    "to_see": "The curve bends.",
    "said": "A power of x is straight.",
    "true": "Only the first.",
}
POWERS = Chapter(
    id="powers",
    title="Powers of d_k",
    controls=(
        Control("exponent", "exponent a", "float", 1.0, -2.0, 2.0, step=0.1, help="of x"),
        Control("points", "points", "int", 64, 2, 4096, log=True, play=True),
        Control("turned", "upside down", "flag", False),
        Control("seed", "seed", "int", 0, 0, 2**31 - 1),
    ),
    compute=powers,
    **TEXTS,
)
MATRIX = Chapter(
    id="matrix",
    title="A matrix",
    controls=(
        Control("entries", "entries", "numbers", "1 2; 3 4", -9, 9, rows=3, columns=3),
        Control("unit", "unit", "choice", "one", choices=("one", "ten")),
    ),
    compute=matrix,
    **TEXTS,
)
BROKEN = Chapter(id="broken", title="Broken", controls=(), compute=broken, **TEXTS)
MODEL = Chapter(
    id="model", title="Your model", controls=(Control("layer", "layer", "int", 0, 0, 99),),
    compute=lambda values: model_view({"layers": []}, values), show_audit=model_view, **TEXTS,
)  # fmt: skip
CHAPTERS = (POWERS, MATRIX, MODEL)
TOUR = (
    ("powers?exponent=2", "The curve bends."),
    ("matrix", "Four entries."),
    ("matrix?unit=ten", "Ten times as large."),
)


begun_slowly: list[float] = []


def slow(values: Mapping[str, Any]) -> View:
    begun_slowly.append(values["seconds"])
    time.sleep(values["seconds"])
    return View((), (number("seconds", "seconds", values["seconds"]),), "print('seconds', 0)")


SLOW = Chapter(
    id="slow", title="Slow", controls=(Control("seconds", "seconds", "float", 0.1, 0.0, 600.0, step=0.1),),
    compute=slow, **TEXTS,
)  # fmt: skip
BEGUN = Chapter(
    id="begun", title="How many slow ones have begun", controls=(),
    compute=lambda _: View((), (number("begun", "begun", len(begun_slowly)),), "print('begun', 0)"), **TEXTS,
)  # fmt: skip


def serve(port: str, patience: str = "10") -> None:
    from rootdk.lab.explorer.server import application, listening, run

    with listening(int(port)) as socket:
        free = socket.getsockname()[1]
        print(f"The explorer is at http://127.0.0.1:{free}/", flush=True)
        run(application(free, (*CHAPTERS, SLOW, BEGUN), tour=TOUR), socket, patience=float(patience))


if __name__ == "__main__":  # a server of these chapters on the port that is named, ended as a command is
    from rootdk.cli.lifetime import supervised

    supervised(lambda: serve(*sys.argv[1:]))
