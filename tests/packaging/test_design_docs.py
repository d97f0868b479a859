"""DESIGN.md and docs/design/: entries have one form, links lead somewhere, files that are named exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AREAS = sorted((ROOT / "docs" / "design").glob("*.md"))
PAGES = [ROOT / "DESIGN.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "limits.md", *AREAS]
PARTS = ("Decision", "Why", "Rejected")
ELSEWHERE = {"theory.md": {"Where the published material was wrong or silent"}}  # a list of facts, no decision


def entries(text: str) -> dict[str, str]:
    """Each second-level heading with what stands below it."""
    return dict(re.findall(r"^## ([^\n]+)\n\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))


def parts(entry: str) -> list[str]:
    return re.findall(r"^\*\*(\w+)\.\*\*", entry, re.MULTILINE)


def faults(text: str) -> list[str]:
    """Entries that are neither a decision with its reason nor a pointer to where that is."""
    return [
        title
        for title, entry in entries(text).items()
        if parts(entry) not in (list(PARTS), list(PARTS[:2])) and not re.search(r"; see \[", entry)
    ]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(page: Path, text: str) -> list[str]:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        place, _, anchor = target.partition("#")
        file = (page.parent / place).resolve() if place else page
        if "://" not in target and (not file.exists() or (anchor and anchor not in anchors(file))):
            dead.append(target)
    return dead


def absent_files(text: str) -> list[str]:
    """Names in backticks that end like a source file and are the end of no path in the tree."""
    rooms = ("src", "kernel", "bindings", "tests", "docs", "benchmarks", "examples", "wheels", ".ci")
    tree = [file.as_posix() for room in rooms for file in (ROOT / room).rglob("*")]
    tree += [file.as_posix() for file in ROOT.iterdir()]
    named = set(re.findall(r"`([\w./-]+\.(?:py|cc|h|md|toml|txt))`", text))
    return sorted(name for name in named if not any(path.endswith("/" + name) for path in tree))


def absent_names(row: str) -> list[str]:
    """Identifiers of a row of CONTRIBUTING's table that none of the files and folders named in the row has."""
    marked = re.findall(r"`([^`]+)`", row)
    paths = [name for name in marked if "/" in name or re.search(r"\.(?:py|cc|h|md|toml|txt)$", name)]
    homes = [home / path for path in paths for home in (ROOT, ROOT / "src" / "rootdk") if (home / path).exists()]
    files = [file for place in homes for file in (place.rglob("*") if place.is_dir() else [place]) if file.is_file()]
    words = {word for file in files if file.suffix != ".pyc" for word in re.findall(r"\w+", file.read_text("utf-8"))}
    identifiers = [re.match(r"@?(\w+)(?=[.(]|$)", name) for name in marked if name not in paths]
    return [name[1] for name in identifiers if name and name[1] not in words]


def test_the_areas() -> None:
    names = [area.stem for area in AREAS]
    assert names == ["audit", "distributed", "jax", "kernel", "lab", "operator", "packaging", "theory", "torch"]
    page = (ROOT / "DESIGN.md").read_text("utf-8")
    assert len(page.splitlines()) < 90
    assert all(f"(docs/design/{name}.md)" in page for name in names)


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.stem)
def test_every_entry_has_a_decision_and_a_reason(area: Path) -> None:
    text = area.read_text("utf-8")
    assert entries(text)
    assert set(faults(text)) == ELSEWHERE.get(area.name, set())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_names(page: Path) -> None:
    text = page.read_text("utf-8")
    assert dead_links(page, text) == []
    assert absent_files(text) == []


def test_the_table_of_changes_names_what_is_there() -> None:
    rows = re.findall(r"^\| .*`.*\|$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) > 15
    assert {row: absent for row in rows if (absent := absent_names(row))} == {}


def test_the_tests_above_can_fail() -> None:
    page = ROOT / "DESIGN.md"
    assert faults("# A\n\n## One\n\n**Decision.** x\n\n## Two\n\n**Decision.** x\n\n**Why.** y\n") == ["One"]
    links = "[a](docs/gone.md) [b](docs/design/kernel.md#nothing) [c](docs/limits.md#where-it-ends)"
    assert dead_links(page, links) == ["docs/gone.md", "docs/design/kernel.md#nothing"]
    assert absent_files("`src/rootdk/gone.py` `rootdk/options.py`") == ["src/rootdk/gone.py"]
    assert absent_names("| a rule | `scaling.py`, `_FACTORIES` and `_GONE`, `@gone.claim(...)` |") == ["_GONE", "gone"]
