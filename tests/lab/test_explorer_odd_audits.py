"""Audits of unknown making, given to the page: every oddity is a refusal that names the field, never a fault."""

import copy
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from rootdk.cli import main
from rootdk.lab.explorer.chapters.model import MOST_ROWS, model_view
from rootdk.lab.explorer.server import application
from rootdk.lab.explorer.values import MOST_CELLS, MOST_FINDINGS, checked_audit

PORT = 8765
HERE = f"http://127.0.0.1:{PORT}"
MISSING = object()


@pytest.fixture(scope="module")
def server() -> TestClient:
    return TestClient(application(PORT), base_url=HERE, raise_server_exceptions=False)


def post(server: TestClient, audit: Any) -> Any:
    content = audit if isinstance(audit, bytes) else json.dumps(audit).encode()
    return server.post("/api/model", content=content, headers={"Origin": HERE, "Content-Type": "application/json"})


def audit() -> dict[str, Any]:
    finding = {
        "layer": "a.0", "head": 1, "metric": "logit_deviation", "severity": "warning", "value": 3.0, "threshold": 2.5,
        "source": "theory", "remedy": "look",
    }  # fmt: skip
    layers = [
        {"name": f"a.{layer}", "heads": [{"logit_deviation": 1.0 + head} for head in range(2)],
         "baseline": {"logit_deviation": 1.5}}
        for layer in range(2)
    ]  # fmt: skip
    return {"verdict": "warning", "layers": layers, "findings": [finding]}


def changed(path: tuple[Any, ...], to: Any) -> dict[str, Any]:
    whole = audit()
    place: Any = whole
    for step in path[:-1]:
        place = place[step]
    if to is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return whole


FINDING = ("findings", 0)
HEAD = ("layers", 0, "heads", 0)


@pytest.mark.parametrize(
    ("path", "to", "named"),
    [
        ((*FINDING, "value"), MISSING, "audit.findings[0].value"),
        ((*FINDING, "head"), MISSING, "audit.findings[0].head"),
        ((*FINDING, "threshold"), MISSING, "audit.findings[0].threshold"),
        ((*FINDING, "threshold"), None, "audit.findings[0].threshold"),
        ((*FINDING, "threshold"), 10**400, "audit.findings[0].threshold"),
        ((*FINDING, "value"), -(10**400), "audit.findings[0].value"),
        ((*FINDING, "head"), 10**400, "audit.findings[0].head"),
        ((*FINDING, "head"), -1, "audit.findings[0].head"),
        ((*FINDING, "head"), True, "audit.findings[0].head"),
        ((*FINDING, "layer"), "\ud800", "audit.findings[0].layer"),
        ((*FINDING, "remedy"), "x\udfff", "audit.findings[0].remedy"),
        ((*FINDING, "severity"), "\ud800", "audit.findings[0].severity"),
        ((*FINDING, "severity"), [], "audit.findings[0].severity"),
        ((*FINDING,), None, "audit.findings[0]"),
        (("findings",), MISSING, "audit.findings"),
        (("findings",), {"a": 1}, "audit.findings"),
        (("verdict",), None, "audit.verdict"),
        (("verdict",), "\ud800", "audit.verdict"),
        (("layers",), None, "audit.layers"),
        (("layers", 0), None, "audit.layers[0]"),
        (("layers", 0, "name"), "a\ud800", "audit.layers[0].name"),
        (("layers", 0, "name"), MISSING, "audit.layers[0].name"),
        (("layers", 0, "heads"), MISSING, "audit.layers[0].heads"),
        (("layers", 0, "baseline"), None, "audit.layers[0].baseline"),
        (("layers", 0, "baseline", "logit_deviation"), 10**400, "audit.layers[0].baseline.logit_deviation"),
        ((*HEAD, "logit_deviation"), 10**400, "audit.layers[0].heads[0].logit_deviation"),
        ((*HEAD, "logit_deviation"), [[[]]], "audit.layers[0].heads[0].logit_deviation"),
        ((*HEAD, "\ud800"), "x", "audit.layers[0].heads[0].\\ud800"),
        ((*HEAD, "\x1b[31m\u202e"), "x", "audit.layers[0].heads[0].\\x1b[31m\\u202e"),
        ((*HEAD, "n" * 5000), "x", f"audit.layers[0].heads[0].{'n' * 40}"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("audit") else "",
)  # fmt: skip
def test_the_field_is_named(
    server: TestClient, tmp_path: Path, capfd: pytest.CaptureFixture[str], path: tuple[Any, ...], to: Any, named: str
) -> None:
    odd = changed(path, to)
    answer = post(server, odd)
    assert answer.status_code == 422, answer.text
    assert answer.json()["name"] == named
    assert answer.json()["error"].startswith(f"{named}: must ")
    assert len(answer.text) < 500
    assert capfd.readouterr().err == ""  # a refusal is nothing that the terminal need know of
    file = tmp_path / "audit.json"
    file.write_text(json.dumps(odd))
    said = CliRunner().invoke(main, ["explore", "--no-browser", "--model", str(file)])
    assert said.exit_code == 1
    assert said.output == f"Error: {answer.json()['error']}\n"
    assert said.output.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    "body",
    [
        b'{"verdict": NaN}', b'{"verdict": -Infinity}', b"{" * 200_000, b'{"layers":' * 200_000, b'{"a":1e',
        b'{"a":' + b"9" * 5000 + b"}", b"\xed\xa0\x80", b"\x00", b'{"verdict": "\x1b"}',
    ],
)  # fmt: skip
def test_what_is_no_json_is_one_line(server: TestClient, tmp_path: Path, body: bytes) -> None:
    answer = post(server, body)
    assert answer.status_code == 422
    assert answer.json()["name"] in ("audit", "audit.verdict")  # a number of 5,000 digits is JSON, and no verdict
    file = tmp_path / "audit.json"
    file.write_bytes(body)
    said = CliRunner().invoke(main, ["explore", "--no-browser", "--model", str(file)])
    assert (said.exit_code, said.output) == (1, f"Error: {answer.json()['error']}\n")
    assert said.output.rstrip("\n").isprintable()


def layers_of(count: int, heads: Callable[[int], int]) -> list[dict[str, Any]]:
    return [{"name": f"a.{n}", "heads": [{"logit_deviation": 1.0}] * heads(n)} for n in range(count)]


@pytest.mark.parametrize(
    "layers",
    [
        layers_of(3000, lambda layer: 3000 if layer == 0 else 1),
        layers_of(100_000, lambda _: 1),
        layers_of(1, lambda _: MOST_CELLS + 1),
    ],
    ids=["one wide layer", "layers", "heads"],
)
def test_a_map_that_would_take_long_is_refused(server: TestClient, layers: list[dict[str, Any]]) -> None:
    answer = post(server, audit() | {"layers": layers})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(f"audit.layers: must make a map of 1 to {MOST_CELLS} cells, got ")


def test_the_largest_map_is_shown(server: TestClient) -> None:
    answer = post(server, audit() | {"layers": layers_of(MOST_CELLS // 128, lambda _: 128)})
    assert answer.status_code == 200
    assert MOST_CELLS >= 2 * 126 * 128  # twice the largest model that is known by its shape, 126 layers of 128 heads


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    with file.open("wb") as hole:
        hole.truncate(10 * 2**40)  # of no size on the disk
    said = CliRunner().invoke(main, ["explore", "--no-browser", "--model", str(file)])
    assert (said.exit_code, said.output) == (1, f"Error: model: {file} cannot be read: it is larger than 16 MB\n")


def test_many_findings_are_a_table_that_a_browser_can_hold(server: TestClient) -> None:
    finding = audit()["findings"][0]
    many = [finding | {"threshold": float(number)} for number in range(MOST_ROWS + 5)]
    rows = post(server, audit() | {"findings": many}).json()["table"]["rows"]
    assert len(rows) == MOST_ROWS + 1
    assert rows[-1][4] == "5 more: rootdk audit --json"
    answer = post(server, audit() | {"findings": [{}] * (MOST_FINDINGS + 1)})
    assert answer.json()["error"].startswith(f"audit.findings: must hold at most {MOST_FINDINGS}")


@pytest.mark.parametrize("values", [(5e-324,), (1e-200, 2e-200), (1.7e308, 1e308), (5e-324, 1.7e308), (0.0, -1e308)])
def test_numbers_at_the_ends_of_the_range_are_drawn(server: TestClient, values: tuple[float, ...]) -> None:
    layers = [{"name": f"a.{n}", "heads": [{"logit_deviation": value} for value in values]} for n in range(2)]
    answer = post(server, audit() | {"layers": layers})
    assert answer.status_code == 200, answer.text
    assert answer.json()["numbers"][6]["value"] == min(values)


RAW = "\x1b[31m\x00\n\x7f\u202e\u2028"
SHOWN = "\\x1b[31m\\x00\\n\\x7f\\u202e\\u2028"


def texts(thing: Any) -> Iterator[str]:
    if isinstance(thing, str):
        yield thing
    elif isinstance(thing, (list, dict)):
        for part in thing.values() if isinstance(thing, dict) else thing:
            yield from texts(part)


def test_control_codes_and_markup_are_shown_and_never_meant(server: TestClient) -> None:
    odd = audit()
    markup = "<b onclick=alert(1)>&lt;<a href='https://evil.example'>"
    for layer in odd["layers"]:
        layer["name"] += RAW + markup
    for name in ("layer", "metric", "source", "remedy"):
        odd["findings"][0][name] = f"{name}{RAW}{markup}"
    answer = post(server, odd)
    assert answer.status_code == 200
    view = answer.json()
    view.pop("python")  # lines of code, without anything of the audit in them
    assert not [text for text in texts(view) if not text.isprintable()]
    # A table and a caption are set as text. plotly reads a little markup in its labels, so there it is spelled out.
    assert view["table"]["rows"][0][4] == f"layer{SHOWN}{markup}, head 1"
    assert f"a.0{SHOWN}{markup}" in view["figures"][0]["text"]
    plots = [text for figure in view["figures"] for text in texts(figure["plot"])]
    assert [plot for plot in plots if "evil.example" in plot]
    assert not [plot for plot in plots if "<b onclick" in plot or "<a href" in plot]
    assert (
        f"a.0{SHOWN}&lt;b onclick=alert(1)&gt;&amp;lt;&lt;a"
        in view["figures"][0]["plot"]["data"][0]["customdata"][0][0][1]
    )


def test_random_damage_is_never_a_fault(server: TestClient, capfd: pytest.CaptureFixture[str]) -> None:
    """Any field replaced by anything that JSON can hold, or taken away."""
    chance = random.Random(0)
    anything = (
        None, True, 0, -1, 10**400, 1e308, -5e-324, "", "\ud800", "\x1b", "<b>", "x" * 2000, [], {}, [[]], [None],
        {"a": None}, {"": 1}, MISSING,
    )  # fmt: skip
    for _ in range(300):
        odd = audit()
        for _ in range(chance.randint(1, 3)):
            place, paths = odd, []
            while isinstance(place, (dict, list)) and place and (not paths or chance.random() < 0.7):
                step = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
                paths.append((place, step))
                place = place[step]
            if paths:
                holder, step = paths[-1]
                new = chance.choice(anything)
                if new is MISSING:
                    del holder[step]
                else:
                    holder[step] = copy.deepcopy(new)
        answer = post(server, odd)
        assert answer.status_code in (200, 422), (odd, answer.text)
        if answer.status_code == 422:
            assert answer.json()["name"].startswith(("audit", "metric")), odd
    assert capfd.readouterr().err == ""


def test_a_checked_audit_can_be_drawn_whatever_python_may_hold() -> None:
    """Not from JSON: whole numbers of more digits than Python prints."""
    from rootdk.errors import ArgumentError

    huge = changed((*HEAD, "logit_deviation"), 10 ** (sys.get_int_max_str_digits() + 1))
    with pytest.raises(ArgumentError, match="must be a finite number or null, got a whole number of 14288 bits"):
        checked_audit(huge)
    assert model_view(changed((*FINDING, "value"), None), {"metric": "first"}).table is not None
