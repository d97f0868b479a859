"""Every script in examples/ runs as it stands, writes nothing but what it is asked to, and prints what it is about."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "01_attention_and_reading": r"scale none: variance of the scores +\d\d\.\d.*\nscale sqrt: .* +[01]\.\d.* 0%",
    "05_theory_against_measurement": r"1/sqrt\(d_k\) +largest difference 0\.0",
    "03_watch_and_clip": r"step 0: .*clipped: layers\.1\.self_attn",
    "02_transformers_model": r"largest difference between the logits: \d\.\de-0[6-9]\n.*\(2, 17\)",
    "04_audit_a_checkpoint": r"3 layers, verdict: healthy\n.*head by head: 0\.\d+, ",
    "06_jax": r"nnx: largest difference \d\.?\d*e-0[6-9]\nlinen: effective keys.*\nequinox: loss 0\.\d+",
}
# One process for all, because their libraries take longer to load than all that they do. Those that need fewer
# come first, so that none finds what another has loaded for it. What each prints, or how it failed, goes out as JSON.
PROGRAM = """
import contextlib, io, json, runpy, sys, traceback
ended = {}
for path in sys.argv[1:]:
    sys.argv[:] = [path]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            runpy.run_path(path, run_name="__main__")
            failure = ""
        except BaseException:
            failure = traceback.format_exc()
    ended[path] = [printed.getvalue(), failure]
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """What each of them printed, and how it failed if it did."""
    folder = tmp_path_factory.mktemp("examples")
    command = [sys.executable, "-c", PROGRAM, *(str(EXAMPLES / f"{name}.py") for name in PRINTED)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {Path(path).stem: tuple(end) for path, end in json.loads(done.stdout.splitlines()[-1]).items()}


def test_all_of_them_are_run() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_runs(name: str, ended: dict[str, tuple[str, str]]) -> None:
    printed, failure = ended[name]
    assert not failure, failure
    assert re.search(PRINTED[name], printed), printed
