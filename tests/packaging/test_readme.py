"""What README and guide show is what happens: examples run, the table is measured, links lead somewhere."""

import doctest
import re
from pathlib import Path

import pytest

from rootdk.lab.first_look import RULES, look, rule_label

ROOT = Path(__file__).parents[2]
README, GUIDE = ROOT / "README.md", ROOT / "docs" / "guide.md"
FOLDERS = ("docs", "benchmarks", "examples", "kernel", "wheels", "tests")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
PROMPT = re.compile(r"^>>> ", re.MULTILINE)
# docs/audit.md is run by tests/audit/test_audit_docs.py.
WITH_EXAMPLES = [page for page in DOCUMENTS if PROMPT.search(page.read_text("utf-8")) and page.name != "audit.md"]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=named)
def test_examples_run(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert result.attempted == len(PROMPT.findall(page.read_text("utf-8")))
    assert result.failed == 0


def test_the_pages_for_users_have_examples() -> None:
    assert {"README.md", "docs/guide.md", "docs/quickstart.md", "docs/gpu.md"} <= set(map(named, WITH_EXAMPLES))


def test_the_readme_is_read_in_a_minute() -> None:
    assert len(README.read_text("utf-8").splitlines()) < 150


def lost(page: Path) -> list[str]:
    """Links to a file or a heading that is not there. Addresses of other sites are not asked for."""
    missing = []
    for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)\s]+))?\)", page.read_text("utf-8")):
        file = page.parent / target if target else page
        if "://" in target or target.startswith("mailto:"):
            continue
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in headings(file)):
            missing.append(f"{target}#{anchor}")
    return missing


def headings(page: Path) -> set[str]:
    """As GitHub writes their anchors."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", DOCUMENTS, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    assert lost(page) == []


def test_a_link_to_nowhere_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A title, here\n[a](nowhere.md) [b](#a-title-here) [c](#a-title) [d](https://a.example/x)\n", "utf-8"
    )
    assert lost(page) == ["nowhere.md#", "#a-title"]


def test_the_report_of_the_readme_is_what_is_printed() -> None:
    import torch

    import rootdk

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, num_layers=2)
    with torch.no_grad():
        model.layers[1].self_attn.in_proj_weight[:64] *= 40
    with rootdk.watch(model) as watch:
        model(torch.randn(2, 48, 64))
    printed = [line.rstrip() for line in str(watch.report(phase="init")).splitlines()]
    shown = README.read_text("utf-8").partition("```\nattention: critical")[2].partition("```")[0].rstrip()
    assert printed[: len(shown.splitlines())] == f"attention: critical{shown}".splitlines()


def test_table_is_measured() -> None:
    """To the digits shown, give or take one in the last: kernel targets round differently."""
    shown = re.findall(
        r"^ +(\d+) +(none|1/\S+) +(\S+) +(\S+) +(\S+) +(\S+)% +(\S+)$", GUIDE.read_text("utf-8"), re.MULTILINE
    )
    looks = look([64, 512], RULES, keys=1024, rows=1024, seed=0)
    assert [(int(d_k), rule) for d_k, rule, *_ in shown] == [(look.d_k, rule_label(look.rule)) for look in looks]
    for (_, _, *numbers), one in zip(shown, looks, strict=True):
        saturated = 100 * one.saturated
        measured = [one.score_variance, one.entropy_ratio, one.effective_keys, saturated, one.jacobian_trace]
        for text, value in zip(numbers, measured, strict=True):
            last_digit = 10.0 ** -len(text.partition(".")[2])
            assert float(text) == pytest.approx(value, abs=1.5 * last_digit)
