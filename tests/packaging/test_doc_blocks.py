"""Every block of code in the documents is run: Python as it stands, commands as far as their options are read."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from rootdk.cli import main
from rootdk.version import __version__

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Two blanks, a comment or a redirection: the end of a command in a list of commands.
END = re.compile(r"\s{2,}|\s#|\s>\s")


def blocks(document: Path) -> Iterator[tuple[str, str]]:
    for block in re.finditer(
        r"^```(?P<kind>\w*)\n(?P<text>.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL
    ):
        yield block["kind"], block["text"]


def lines_of(word: str) -> list[str]:
    """Lines of all blocks that begin with a command of that name."""
    texts = [text for document in DOCUMENTS for kind, text in blocks(document) if kind in ("", "bash")]
    return sorted({line for text in texts for line in text.splitlines() if re.match(rf"{word}\b(?!:)", line)})


PYTHON = [
    (f"{document.name}-{number}", text)
    for document in DOCUMENTS
    for number, (kind, text) in enumerate(blocks(document))
    # Those with a prompt are doctests, which other tests run; a GPU is nowhere here.
    if kind == "python" and ">>>" not in text and ".cuda()" not in text
]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
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
def test_python_runs(text: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch.distributed as dist

    if "init_process_group" in text:  # it makes a group of its own, as torchrun has it
        dist.destroy_process_group()
        place = {"init_method": f"file://{tmp_path}/again", "rank": 0, "world_size": 1}
        real = dist.init_process_group
        monkeypatch.setattr(dist, "init_process_group", lambda backend: real(backend, **place))
    exec(compile(text, "<block>", "exec"), names)


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
