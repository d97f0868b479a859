"""What a user's type checker sees: mypy on a small program that uses the public names.

A line of the program ends in what mypy must say of it: "# is X" for the beginning of a revealed type, "# wrong: code"
for an error. About any other line it must say nothing.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

import rootdk

WITH_NUMPY = """\
import numpy as np
import rootdk
from numpy.typing import NDArray
from rootdk import scaling

q = np.ones((4, 16, 8), np.float32)
k, half = np.ones_like(q), q.astype(np.float16)
out, reading = rootdk.measure(q, k, k, mask=np.ones((16, 16), bool), bias=np.zeros((16, 16)))
reveal_type(out)  # is numpy.ndarray[
reveal_type(reading)  # is rootdk.reading.Reading[numpy.ndarray[
reveal_type(reading.entropy)  # is numpy.ndarray[
reveal_type(reading.keys)  # is numpy.ndarray[
reveal_type(reading.std)  # is numpy.ndarray[
reveal_type(rootdk.read(q, half).saturated())  # is numpy.ndarray[
reveal_type(rootdk.weights(q, k, rows=[0]))  # is numpy.ndarray[
reveal_type(reading.merge(reading).variance)  # is numpy.ndarray[
reveal_type(reading.by_head().mean_entropy)  # is numpy.ndarray[
cached: NDArray[np.float32] = rootdk.attention(q, half, half, causal=True)
counts: NDArray[np.int64] = reading.keys
entropies: NDArray[np.float32] = reading.entropy[~reading.non_finite]
moved, pull_back = rootdk.attention_vjp(q, k, k)
reveal_type(pull_back(moved)[0])  # is numpy.ndarray[

def of_any_library(reading: rootdk.Reading) -> float:
    return float(reading.variance.mean())

of_any_library(reading)

def twice(d_k: int, keys: int, position: int) -> float:
    return 2.0 / d_k

def of_width_alone(d_k: int) -> float:
    return 1.0 / d_k

scaling.ScaleRule("twice", "2/d_k", twice)
scaling.ScaleRule("width", "1/d_k", of_width_alone)  # wrong: arg-type
reveal_type(scaling.rule("sqrt").score_variance(64))  # is float
reading.entropi  # wrong: attr-defined
rootdk.atention(q, k, k)  # wrong: attr-defined
rootdk.read(q, k, scael="none")  # wrong: call-arg
rootdk.integrations.trainer_callback(sinks=3)  # wrong: arg-type
"""

WITH_THE_OTHERS = """
import jax
import lightning
import torch
import transformers
from rootdk.integrations import JsonLines, TrainingLog, lightning_callback, trainer_callback

tensor: torch.Tensor
made, seen = rootdk.measure(tensor, tensor, tensor, scale=tensor)
reveal_type(made)  # is torch._tensor.Tensor
reveal_type(seen.entropy)  # is torch._tensor.Tensor
reveal_type(seen.received)  # is torch._tensor.Tensor | None
reveal_type(rootdk.read(tensor, tensor).jacobian_trace)  # is torch._tensor.Tensor
reveal_type(rootdk.Reading.from_dict(seen.to_dict()).mean)  # is numpy.ndarray[
of_any_library(seen)
array: jax.Array
reveal_type(rootdk.attention(array, array, array))  # is jax._src.basearray.Array
reveal_type(rootdk.jax.measured_dot_product_attention(array, array, array)[1].max)  # is jax._src.basearray.Array
model: torch.nn.Module
with rootdk.watch(model) as watch:
    reveal_type(watch.readings["layer"].reading.entropy)  # is torch._tensor.Tensor
rootdk.audit.qk_clip_(model, watch)
rootdk.audit.qk_clip_(model, watch.readings, tau=50.0)
rootdk.audit.qk_clip_(model, [watch])  # wrong: arg-type
rootdk.watch(3)  # wrong: arg-type
rootdk.attention("query", k, k)  # wrong: type-var
reveal_type(trainer_callback("log.jsonl", every=2))  # is transformers.trainer_callback.TrainerCallback
reveal_type(lightning_callback([JsonLines("log.jsonl")]))  # is lightning.pytorch.callbacks.callback.Callback
TrainingLog("log.jsonl", parallel={"data": None}).start(model)
"""

# The names that a signature of rootdk has from other libraries, where each library has them: with these mypy needs
# seconds, with the libraries themselves a minute.
STAND_INS = {
    "torch/__init__.pyi": "from torch import nn as nn\nfrom torch._tensor import Tensor as Tensor",
    "torch/_tensor.pyi": "from typing import Any\nclass Tensor:\n    def mean(self) -> Any: ...",
    "torch/nn.pyi": "class Module: ...",
    "jax/__init__.pyi": "from jax._src.basearray import Array as Array",
    "jax/_src/__init__.pyi": "",
    "jax/_src/basearray.pyi": "class Array: ...",
    "lightning/__init__.pyi": "",
    "lightning/pytorch/__init__.pyi": "from lightning.pytorch.callbacks.callback import Callback as Callback",
    "lightning/pytorch/callbacks/__init__.pyi": "",
    "lightning/pytorch/callbacks/callback.pyi": "class Callback: ...",
    "transformers/__init__.pyi": "from transformers.trainer_callback import TrainerCallback as TrainerCallback",
    "transformers/trainer_callback.pyi": "class TrainerCallback: ...",
}
NONE_OF_THEM = """
[mypy-torch.*,jax.*,lightning.*,transformers.*]
follow_imports = skip
ignore_missing_imports = True
"""
SAID = re.compile(r"^program\.py:(\d+): (?:note: Revealed type is \"(.*)\"|error: .*\[([a-z-]+)\])$", re.MULTILINE)
WANTED = re.compile(r"# (is|wrong:) (.*)$")


@pytest.fixture(scope="module", autouse=True)
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What mypy has found out about NumPy serves all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYPY_CACHE_DIR", str(tmp_path_factory.mktemp("mypy")))
        yield


def surprises(program: str, folder: Path, config: str = "") -> list[str]:
    """Lines of which mypy says something else than what they end in."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = True\nfollow_imports = silent\n{config}", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "program.py"]
    # The folder of rootdk and not its place in the environment, where an editable install is known to Python alone.
    path = os.pathsep.join([str(folder / "stand_ins"), str(Path(rootdk.__file__).parents[1])])
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ | {"MYPYPATH": path}
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    said = {int(line): kind or f"wrong: {error}" for line, kind, error in SAID.findall(done.stdout)}
    messages = []
    for number, line in enumerate(program.splitlines(), 1):
        wanted, got = WANTED.search(line), said.get(number, "")
        if wanted is None:
            fits = not got
        else:
            fits = bool(got) and (got.startswith(wanted[2]) if wanted[1] == "is" else got == wanted[0][2:])
        if not fits:
            messages.append(f"{line.partition('  #')[0].strip()}: {got or 'nothing'}")
    return messages


def with_stand_ins(folder: Path) -> None:
    for name, text in STAND_INS.items():
        file = folder / "stand_ins" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def test_arrays_come_out_as_they_went_in_and_wrong_names_are_errors(tmp_path: Path) -> None:
    with_stand_ins(tmp_path)
    assert surprises(WITH_NUMPY + WITH_THE_OTHERS, tmp_path) == []


def test_numpy_is_known_where_nothing_else_is_installed(tmp_path: Path) -> None:
    assert surprises(WITH_NUMPY, tmp_path, NONE_OF_THEM) == []


@pytest.mark.slow
def test_the_same_with_the_libraries_themselves(tmp_path: Path) -> None:
    assert surprises(WITH_NUMPY + WITH_THE_OTHERS, tmp_path) == []


def test_another_type_and_a_missing_error_would_be_seen(tmp_path: Path) -> None:
    program = dedent("""\
        import numpy as np
        import rootdk

        q = np.ones((4, 16, 8), np.float32)
        reading = rootdk.read(q, q)
        reveal_type(reading.entropy)  # is torch
        reading.entropy  # wrong: attr-defined
        reading.entropi
        reveal_type(reading.has_sinks)  # is bool
    """)
    assert [text.partition(": ")[0] for text in surprises(program, tmp_path, NONE_OF_THEM)] == [
        "reveal_type(reading.entropy)", "reading.entropy", "reading.entropi",
    ]  # fmt: skip
