"""A sink that fails in the middle of training: the run goes on, one warning says which sink it was."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from training_models import batches, encoder, lines, train

from rootdk.errors import ArgumentError
from rootdk.integrations import JsonLines, TrainingLog, WeightsAndBiases

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 4


class Failing:
    """Fails at the second step, or when it is closed."""

    def __init__(self, error: BaseException, at: str = "write") -> None:
        self.error, self.at = error, at
        self.calls: list[str] = []

    def __repr__(self) -> str:
        return "Failing()"

    def open(self) -> None:
        self._call("open")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        assert values
        self._call(f"write {step}", fails=self.at == "write" and step == 2)

    def close(self) -> None:
        self._call("close", fails=self.at == "close")

    def _call(self, name: str, fails: bool = False) -> None:
        self.calls.append(name)
        if fails:
            raise self.error


def trained(sinks: Any) -> tuple[Any, list[str]]:
    """The weights after some steps with a log, and what was warned of."""
    model = encoder()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with TrainingLog(sinks).start(model) as log:
            train(model, batches(STEPS), log.after_step)
    assert {warning.category for warning in caught} <= {RuntimeWarning}
    return [parameter.detach() for parameter in model.parameters()], [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("not\nconnected"), KeyError("x")]
)
def test_the_run_goes_on_and_one_warning_says_which_sink_failed(tmp_path: Path, error: Exception) -> None:
    failing, good = Failing(error), tmp_path / "good.jsonl"
    weights, warned = trained([failing, good])
    expected, nothing = trained(tmp_path / "other.jsonl")
    assert nothing == []
    assert all(torch.equal(weight, other) for weight, other in zip(weights, expected, strict=True))
    assert failing.calls == ["open", "write 1", "write 2", "close"]
    assert [line["step"] for line in lines(good)] == [1, 2, 3, 4]
    words = " ".join(str(error).split())
    assert warned == [
        f"sinks: Failing() failed in step 2 and gets no more steps of this run: {type(error).__name__}: {words}"
    ]


def test_a_full_disk_under_json_lines(tmp_path: Path) -> None:
    _, warned = trained([JsonLines("/dev/full"), tmp_path / "good.jsonl"])
    (message,) = warned
    assert message.startswith(
        "sinks: JsonLines('/dev/full') failed in step 1 and gets no more steps of this run: OSError"
    )
    assert "No space left on device" in message
    assert len(lines(tmp_path / "good.jsonl")) == STEPS


def test_a_run_of_wandb_that_is_gone(tmp_path: Path) -> None:
    class Gone:
        def define_metric(self, *_: Any, **__: Any) -> None:
            pass

        def log(self, _: Any) -> None:
            raise ConnectionError("run is over")

    _, warned = trained([WeightsAndBiases(Gone()), tmp_path / "good.jsonl"])
    assert warned == [
        "sinks: WeightsAndBiases() failed in step 1 and gets no more steps of this run: ConnectionError: run is over"
    ]
    assert len(lines(tmp_path / "good.jsonl")) == STEPS


FULL = """
    import json, resource, sys, warnings
    sys.path.insert(0, sys.argv[1])
    from pathlib import Path
    from training_models import batches, encoder, train
    from rootdk.integrations import TensorBoard, TrainingLog
    import torch
    torch.set_num_threads(1)
    model = encoder()
    log = TrainingLog([TensorBoard(sys.argv[2])]).start(model)
    done = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        def after():
            log.after_step()
            done.append(1)
            # From here on a file may not grow any more: what a full disk does, as far as a process can do it to itself.
            file = next(Path(sys.argv[2]).iterdir())
            resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size,) * 2)
        train(model, batches(6), after)
        log.close()
    print(json.dumps([len(done), [str(one.message) for one in told if one.category is RuntimeWarning]]))
"""


def test_a_full_disk_under_tensorboard(tmp_path: Path) -> None:
    folder = tmp_path / "board"
    done = subprocess.run(
        [sys.executable, "-c", dedent(FULL), str(Path(__file__).parents[1] / "support"), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps, warned = json.loads(done.stdout.splitlines()[-1])
    assert steps == 6
    (message,) = warned
    assert message.startswith(f"sinks: TensorBoard({str(folder)!r}) failed in step ")
    assert "File too large" in message


def test_a_sink_that_fails_when_it_is_closed(tmp_path: Path) -> None:
    first, last = Failing(OSError(5, "Input/output error"), at="close"), Failing(ValueError(), at="never")
    _, warned = trained([first, tmp_path / "good.jsonl", last])
    assert warned == ["sinks: Failing() failed when it was closed: OSError: [Errno 5] Input/output error"]
    assert last.calls[-1] == "close"
    assert len(lines(tmp_path / "good.jsonl")) == STEPS


def test_a_failed_sink_is_tried_again_in_the_next_run(tmp_path: Path) -> None:
    failing = Failing(RuntimeError("no"))
    log, model = TrainingLog([failing, tmp_path / "good.jsonl"]), encoder()
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="failed in step 2") as caught, log.start(model):
            train(model, batches(3), log.after_step)
        assert len(caught) == 1
    assert failing.calls == ["open", "write 1", "write 2", "close"] * 2


def test_an_interrupt_and_an_error_at_the_start_are_not_held_back(tmp_path: Path) -> None:
    failing = Failing(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        trained(failing)
    sink = JsonLines(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(ArgumentError, match="path: must be a file that can be written"):
        TrainingLog(sink).start(encoder())
