"""`rootdk audit --tokens` on configs that ask for more than their weights have, or for code: nothing is built."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from checkpoint_zoo import built, saved
from click.testing import CliRunner, Result
from hostile_checkpoints import CODES

from rootdk.audit.running import run_checkpoint
from rootdk.cli import main
from rootdk.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("one_thread")


def rootdk(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["audit", *map(str, arguments)], env={"COLUMNS": "80"})


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return saved(built("llama"), tmp_path)


def changed(place: Path, **change: Any) -> Path:
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, **change}))
    return place


def nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_arguments: Any, **_options: Any) -> None:
        pytest.fail("transformers was asked")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", never)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 256"),
        ({"num_hidden_layers": 5000}, "num_hidden_layers must be at most 256"),
        ({"vocab_size": 10**12}, "vocab_size must be at most 65536"),
        ({"intermediate_size": 10**12}, "intermediate_size must be at most 65536"),
        ({"num_labels": 10**9}, "num_labels must be at most 65536"),
        ({"num_local_experts": 10**6}, "num_local_experts must be at most 256"),
        ({"max_position_embeddings": 10**18}, "max_position_embeddings must be"),
        ({"sub": {"deeper": {"n_layer": 10**9}}}, r"sub\.deeper\.n_layer must be at most 256"),
        ({"attn_implementation": "somebody/kernel"}, "attn_implementation must name no code to fetch"),
        ({"_attn_implementation": "somebody/kernel:run"}, "_attn_implementation must name no code to fetch"),
    ],
)
def test_what_the_weights_do_not_have_is_not_built(
    small: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str
) -> None:
    nothing_is_built(monkeypatch)
    changed(small, **change)
    with pytest.raises(ArgumentError, match=words):
        run_checkpoint(small, tokens=8)
    result = rootdk(small, "--tokens", 8)
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


def test_the_product_of_sizes_is_limited_too(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each for itself is allowed; together they would be 16 GB. Only shapes are built before that is known."""
    changed(small, vocab_size=65_536, intermediate_size=65_536, hidden_size=65_536)

    def never(*_arguments: Any, **_options: Any) -> None:
        pytest.fail("the weights were loaded")

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", never)
    with pytest.raises(ArgumentError, match=r"config\.json asks for a model of \d+ numbers, its weights allow \d+"):
        run_checkpoint(small, tokens=8)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": CODES},
        {"model_type": "absent"},
        {"hidden_act": CODES},
        {"hidden_act": None},
        {"num_hidden_layers": "three"},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": 7},
        {"vocab_size": 1e12},
        {"vocab_size": 0},
        {"vocab_size": -5},
        {"vocab_size": 10**400},
        {"intermediate_size": 47},
        {"dtype": CODES},
        {"torch_dtype": 5},
        {"architectures": [CODES]},
        {"architectures": "LlamaForCausalLM"},
        {"architectures": ["pipeline"]},
        {"architectures": ["Trainer"]},
        {"architectures": 5},
        {"auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}},
        {"quantization_config": {"quant_method": CODES}},
        {"rope_parameters": {"rope_type": CODES, "rope_theta": 1e4}},
        {"rms_norm_eps": 0.0},
        {"pad_token_id": 10**9},
        {"layer_types": [CODES]},
        {"max_position_embeddings": 0},
    ],
    ids=str,
)
def test_errors_of_transformers_are_one_line(small: Path, change: dict[str, Any]) -> None:
    """Or it runs; never a traceback, and none of the file's codes."""
    (small / "code.py").write_text(f"open({str(small / 'ran')!r}, 'w')")
    result = rootdk(changed(small, **change), "--tokens", 8)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "\x1b" not in result.output
    if result.exit_code:
        assert (result.exit_code, len(result.stderr.splitlines()), result.stdout) == (1, 1, ""), result.output
    assert not (small / "ran").exists()


def cut(place: Path) -> None:
    file = place / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def no_tokenizer(place: Path) -> None:
    (place / "tokenizer.json").write_text("[" * 100_000)
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": CODES}))


@pytest.mark.parametrize("damage", [cut, no_tokenizer])
def test_damaged_files_are_one_line(small: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(small)
    (tmp_path / "a.txt").write_text("some words")
    result = rootdk(small, "--text", tmp_path / "a.txt")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "\x1b" not in result.output


def test_a_text_is_not_read_without_end(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rootdk.audit.limits.LARGEST_TEXT", 100)
    (tmp_path / "a.txt").write_text("a" * 101)
    result = rootdk(small, "--text", tmp_path / "a.txt")
    assert result.exit_code == 2
    assert "must have at most 100 characters" in " ".join(result.output.split())
