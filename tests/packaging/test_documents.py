"""What the documents show is what happens: examples and blocks of code run, links lead somewhere, numbers are measured.

Of commands, the names and options are read; nothing else of them is run here.
"""

import doctest
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from rootdk.cli import main
from rootdk.lab.first_look import RULES, look, rule_label
from rootdk.version import __version__

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
    for (_, _, *numbers), seen in zip(shown, looks, strict=True):
        saturated = 100 * seen.saturated
        measured = [seen.score_variance, seen.entropy_ratio, seen.effective_keys, saturated, seen.jacobian_trace]
        for text, value in zip(numbers, measured, strict=True):
            last_digit = 10.0 ** -len(text.partition(".")[2])
            assert float(text) == pytest.approx(value, abs=1.5 * last_digit)


WITH_BLOCKS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Two blanks, a comment or a redirection: the end of a command in a list of commands.
END = re.compile(r"\s{2,}|\s#|\s>\s")


def blocks(document: Path) -> Iterator[tuple[str, str]]:
    for block in re.finditer(
        r"^```(?P<kind>\w*)\n(?P<text>.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL
    ):
        yield block["kind"], block["text"]


def lines_of(word: str) -> list[str]:
    """Lines of all blocks that begin with a command of that name."""
    texts = [text for document in WITH_BLOCKS for kind, text in blocks(document) if kind in ("", "bash")]
    return sorted({line for text in texts for line in text.splitlines() if re.match(rf"{word}\b(?!:)", line)})


PYTHON = [
    (f"{document.name}-{number}", text)
    for document in WITH_BLOCKS
    for number, (kind, text) in enumerate(blocks(document))
    # Those with a prompt are doctests, which other tests run; a GPU is nowhere here.
    if kind == "python" and ">>>" not in text and ".cuda()" not in text
]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What a reader has when such a line is read: tensors, a model in training, a group of one process."""
    import torch
    import torch.distributed as dist

    import rootdk
    import rootdk.torch

    monkeypatch.chdir(tmp_path)
    model = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    trainer = SimpleNamespace(Trainer=lambda *_given, callbacks: callbacks)
    query, key, value = torch.randn(3, 1, 2, 16, 8)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield {
        "rootdk": rootdk, "query": query, "key": key, "value": value, "group": None, "model": model,
        "batches": [torch.randn(2, 16, 32)] * 101, "train": model, "transformers": trainer, "lightning": trainer,
    }  # fmt: skip
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("text", [text for _, text in PYTHON], ids=[name for name, _ in PYTHON])
def test_python_runs(text: str, reader: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch.distributed as dist

    if "init_process_group" in text:  # it makes a group of its own, as torchrun has it
        dist.destroy_process_group()
        place = {"init_method": f"file://{tmp_path}/again", "rank": 0, "world_size": 1}
        real = dist.init_process_group
        monkeypatch.setattr(dist, "init_process_group", lambda backend: real(backend, **place))
    exec(compile(text, "<block>", "exec"), reader)


def test_there_are_blocks() -> None:
    assert len(PYTHON) >= 6
    assert len(lines_of("rootdk")) >= 20
    assert len(lines_of("make")) >= 8


@pytest.mark.parametrize("line", lines_of("rootdk"))
def test_commands_and_their_options_exist(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("sample.txt", "runs.json", "PATH"):
        Path(name).write_text("[]")
    Path("model").mkdir()
    written = re.sub(r"\bN\b", "4096", re.sub(r"\bR\b", "4", END.split(line)[0]))
    words = shlex.split(written)[1:]
    context = main.make_context("rootdk", words, resilient_parsing=False)
    command: click.Command = main
    if words and not words[0].startswith("-"):
        _, command, rest = main.resolve_command(context, words)
        needed = ["--flops", "1e12", "--bandwidth", "1e10"] if command.name == "plan" and "--flops" not in rest else []
        command.make_context(command.name, [*rest, *needed], parent=context)
    options = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", re.sub("`[^`]*`", "", line))) <= options


@pytest.mark.parametrize("line", lines_of("make"))
def test_targets_of_make_exist(line: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for target in re.findall(r"\bmake ([a-z-]+)", line):
        assert target in targets


def test_the_entry_for_a_bibliography_is_that_of_this_version() -> None:
    (entry,) = (text for _, text in blocks(ROOT / "docs" / "faq.md") if text.startswith("@software"))
    fields = dict(re.findall(r"(\w+)\s*= \{+([^}]*)\}", entry))
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert fields["version"] == __version__
    assert f'title: "{fields["title"]}"' in citation
    assert f"name: {fields['author']}" in citation
    assert entry.count("{") == entry.count("}")
