"""Files that somebody else wrote: what is opened, how much is read, what is parsed, how it is shown; who uses it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hostile_checkpoints import CODES
from hypothesis import given
from hypothesis import strategies as st

from rootdk.cli.explore import read_model
from rootdk.errors import ArgumentError
from rootdk.files import DEEPEST, MOST_VALUES, JsonError, kind_of, parse_json, read_json, read_regular, shown_text
from rootdk.lab.checks import Cache
from rootdk.lab.checks.rules import LengthSpec
from rootdk.lab.training import RunSpec
from rootdk.lab.training.store import Store
from rootdk.lab.training.sweep import read_specs

DEEP = b"[" * 100_000
TEXT = st.text(st.characters(exclude_categories=("Cs",)))


def put(path: Path, kind: str) -> Path:
    """What must not be opened, or not be read to its end."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 2**34)
    return path


@pytest.mark.parametrize(
    ("kind", "words"),
    [("pipe", "regular"), ("device", "not a regular file"), ("folder", "Is a directory"), ("large", "16 MB")],
)
def test_what_is_no_file_or_too_large_is_not_read(tmp_path: Path, kind: str, words: str) -> None:
    with pytest.raises(OSError, match=words):
        read_regular(put(tmp_path / "x", kind))


def test_a_file_of_the_system_that_says_it_is_empty_is_read_no_further_than_allowed() -> None:
    file = Path("/proc/self/status")
    assert file.stat().st_size == 0
    assert b"VmHWM" in read_regular(file)
    with pytest.raises(OSError, match="larger than"):
        read_regular(file, 100)


def test_what_a_path_is(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    kinds = [kind_of(tmp_path / name) for name in ("a", ".", "absent", "b" * 5000, "nul\0")]
    assert kinds == ["file", "folder", None, None, None]
    assert kind_of(Path("/dev/zero")) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (DEEP, "nested deeper than 64 levels"),
        (b'{"a":' * 100_000, "nested deeper than 64 levels"),
        (b"[" * (DEEPEST + 2) + b"]" * (DEEPEST + 2), "nested deeper than 64 levels"),
        (b"[" + b"[]," * MOST_VALUES + b"1]", "more than 2,000,000 values"),
        (b"\xff", "no UTF-8 at byte 0"),
        (b"{", "line 1, column 2"),
        (b"", "line 1, column 1"),
        (b'["\\ud800"]', "half of a surrogate pair"),
        (b'{"\\udc00": 1}', "half of a surrogate pair"),
    ],
)
def test_what_is_no_json(text: bytes, words: str) -> None:
    with pytest.raises(JsonError, match=words):
        parse_json(text)


def test_what_is_json() -> None:
    assert parse_json(b"[" * DEEPEST + b"]" * DEEPEST) is not None
    assert parse_json(b'["\\ud83d\\ude00"]') == ["\U0001f600"]
    # Numbers that float64 does not hold are infinite, however they are written: nothing overflows later.
    many = b"9" * 5000
    assert parse_json(b"[1e400, -1e400, " + many + b", -" + many + b"]") == [float("inf"), float("-inf")] * 2
    assert float(parse_json(b"9" * 300)) > 1e299
    assert parse_json(b'{"a": 1, "a": 2}') == {"a": 2}
    with pytest.raises(JsonError, match="'a' comes twice"):
        parse_json(b'{"a": 1, "a": 2}', unique=True)
    with pytest.raises(JsonError, match="NaN is no JSON"):
        parse_json(b"[NaN]", constants=False)


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXT,
                    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=30))  # fmt: skip
def test_every_other_value_is_what_json_says(value: Any) -> None:
    text = json.dumps(value).encode()
    assert parse_json(text) == json.loads(text)


@given(st.binary(max_size=200))
def test_bytes_are_a_value_or_an_error_of_one_line(text: bytes) -> None:
    try:
        parse_json(text)
    except JsonError as error:
        said = str(error)
    else:
        said = ""
    assert said.isprintable()


@given(st.text(st.characters(), max_size=300), st.integers(4, 100))
def test_whatever_is_shown_is_printable_and_short(text: str, most: int) -> None:
    shown = shown_text(text, most)
    assert shown.isprintable()
    assert len(shown) <= 10 * most  # an escape has ten characters at the most
    shown.encode("utf-8")
    if text.isprintable() and len(text) <= most:
        assert shown == text


def test_codes_are_spelled_out() -> None:
    shown = shown_text(CODES)
    for said in (r"\x1b[2J", r"\x07", r"\x08", r"\r\n", r"\x9b", r"\u202e", r"\u200f", r"\x00", r"\x7f"):
        assert said in shown
    assert shown_text("\ud800") == r"\ud800"


SPEC = LengthSpec(rows=8)


@pytest.mark.parametrize(
    "content", [DEEP, b"[" * 990 + b"]" * 990, b'{"a": ' + b"9" * 5000 + b"}", b"\xff", b" " * 2**25]
)
def test_a_cached_result_that_is_broken_is_run_again(tmp_path: Path, content: bytes) -> None:
    notes: list[str] = []
    cache = Cache(tmp_path, notes.append)
    cache.path(SPEC).write_bytes(content)
    assert cache.get(SPEC) is None
    (note,) = notes
    assert note.endswith("running again")


@pytest.mark.parametrize("content", [DEEP, b"\xff", b'{"spec": ' + b"9" * 5000 + b"}"])
def test_a_run_that_is_broken_is_run_again(tmp_path: Path, content: bytes) -> None:
    notes: list[str] = []
    store = Store(tmp_path, notes.append)
    store.path(RunSpec()).write_bytes(content)
    assert store.get(RunSpec()) is None
    assert notes == [f"runs: {store.path(RunSpec())} is damaged; running again"]


@pytest.mark.parametrize(
    ("content", "words"),
    [(DEEP, "nested deeper"), (b"\xff", "no UTF-8"), (b" " * 2**25, "larger than 16 MB"), (b"[{}", "is not JSON")],
)
def test_a_file_of_specs_that_is_broken(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "specs.json"
    file.write_bytes(content)
    with pytest.raises(ArgumentError, match=words):
        read_specs(file)


@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_what_should_be_a_file_and_is_not(tmp_path: Path, kind: str) -> None:
    """Cached results, runs, specs and audits alike."""
    notes: list[str] = []
    cache = Cache(tmp_path, notes.append)
    put(cache.path(SPEC), kind)
    assert cache.get(SPEC) is None
    assert "cannot read" in notes[0]
    with pytest.raises(ArgumentError, match="cannot read"):
        read_specs(put(tmp_path / "specs.json", kind))
    with pytest.raises(OSError, match=r"not a regular file|larger than"):
        read_json(tmp_path / "specs.json")


def test_an_audit_for_the_page(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    file.write_bytes(b'{"a":' * 100_000)
    with pytest.raises(Exception, match="nested deeper") as caught:
        read_model(file)
    assert len(str(caught.value).splitlines()) == 1
    file.write_bytes(b" " * (17 * 2**20))
    with pytest.raises(ArgumentError, match="larger than 16 MB"):
        read_model(file)
