"""docs/scaling.md: its script runs under torchrun, and its errors are those that are raised."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_distributed_faults import EXPECTED

TEXT = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text("utf-8")


@pytest.mark.slow
def test_the_script_runs_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "ring.py"
    script.write_text(
        next(part for part in TEXT.split("```python\n") if "init_process_group" in part).partition("```")[0]
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1024 rows, largest logit ")


def test_its_errors_are_those_that_are_raised() -> None:
    said = {text.partition(": ")[2] for text in EXPECTED.values()}
    for name in ("causal", "query", "key"):
        (line,) = [line.strip() for line in TEXT.splitlines() if line.startswith(f"    {name}: ")]
        assert line in said
