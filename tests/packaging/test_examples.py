"""Every script in examples/ runs as it stands, writes nothing but what it is asked to, and prints what it is about."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "01_attention_and_reading": r"scale none: variance of the scores +\d\d\.\d.*\nscale sqrt: .* +[01]\.\d.* 0%",
    "02_transformers_model": r"largest difference between the logits: \d\.\de-0[6-9]\n.*\(2, 17\)",
    "03_watch_and_clip": r"step 0: .*clipped: layers\.1\.self_attn",
    "04_audit_a_checkpoint": r"3 layers, verdict: healthy\n.*head by head: 0\.\d+, ",
    "06_jax": r"nnx: largest difference \d\.?\d*e-0[6-9]\nlinen: effective keys.*\nequinox: loss 0\.\d+",
    "05_theory_against_measurement": r"1/sqrt\(d_k\) +largest difference 0\.0",
}


def test_all_of_them_are_run() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTED[name], done.stdout), done.stdout
