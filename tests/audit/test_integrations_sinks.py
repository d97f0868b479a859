"""Where the numbers of a training run go: they are read back from each sink, and a crash loses none."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from training_models import KEYS, LAYERS, batches, encoder, events, history, lines, train

import rootdk
from rootdk.errors import ArgumentError, ArgumentTypeError
from rootdk.integrations import JsonLines, PackageMissingError, TensorBoard, TrainingLog, WeightsAndBiases
from rootdk.integrations.loop import LayerKeys, values_of

pytestmark = pytest.mark.usefixtures("one_thread")


def run(sinks: Any, steps: int = 3, **options: Any) -> list[dict[str, np.ndarray]]:
    """Train, and return the largest logits of each step as another watch on the same model sees them."""
    model, seen = encoder(), []
    with rootdk.watch(model) as other, TrainingLog(sinks, **options).start(model) as log:

        def after() -> None:
            seen.append({name: reading.metrics["max_logit"] for name, reading in other.readings.items()})
            log.after_step()

        train(model, batches(steps), after)
    return seen


def expected(seen: list[dict[str, np.ndarray]]) -> list[list[float]]:
    return [[float(heads.max()) for heads in step.values()] for step in seen]


def test_json_lines_arrive(tmp_path: Path) -> None:
    seen = run(tmp_path / "a.jsonl")
    written = lines(tmp_path / "a.jsonl")
    assert [line["step"] for line in written] == [1, 2, 3]
    assert [[line[key] for key in KEYS] for line in written] == expected(seen)
    assert [line["attn/max_logit"] for line in written] == [max(step) for step in expected(seen)]
    assert len({line["attn/max_logit"] for line in written}) == 3
    assert not any("head" in key for key in written[0])


def test_tensorboard_arrives(tmp_path: Path) -> None:
    seen = run(TensorBoard(tmp_path))
    scalars = events(tmp_path)
    for layer, key in enumerate(KEYS):
        steps, values = zip(*scalars[key], strict=True)
        assert steps == (1, 2, 3)
        assert values == pytest.approx([step[layer] for step in expected(seen)], rel=2**-23)  # stored as float32


def test_a_writer_that_was_given_stays_open(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        run(TensorBoard(writer))
        writer.add_scalar("mine", 1.0, 7)
    scalars = events(tmp_path)
    assert scalars["mine"] == [(7, 1.0)]
    assert len(list(tmp_path.iterdir())) == 1  # one that was closed would go on in a second file
    assert len(scalars[KEYS[0]]) == 3


def test_wandb_arrives(tmp_path: Path) -> None:
    """In a run of its own, and in one that the user writes to as well, with steps far behind those of the run."""
    import wandb

    options = {"mode": "offline", "settings": wandb.Settings(silent=True)}
    own, shared = tmp_path / "own", tmp_path / "shared"
    for folder in (own, shared):
        folder.mkdir()
    seen = run(WeightsAndBiases(dir=str(own), **options))
    with wandb.init(dir=str(shared), **options) as theirs:
        theirs.log({"loss": 1.0}, step=1000)
        run(WeightsAndBiases())  # takes the run that is active
        theirs.log({"loss": 0.5})
    wandb.teardown()  # waits for the process that writes: finish() can return before its file is whole
    for folder in (own, shared):
        rows = [row for row in history(folder) if KEYS[0] in row]
        assert [row["attn/step"] for row in rows] == [1, 2, 3]
        assert [[row[key] for key in KEYS] for row in rows] == expected(seen)
    assert [row["loss"] for row in history(shared) if "loss" in row] == [1.0, 0.5]


def test_several_sinks_and_heads(tmp_path: Path) -> None:
    seen = run([tmp_path / "a.jsonl", TensorBoard(tmp_path)], heads=True)
    line = lines(tmp_path / "a.jsonl")[0]
    assert len(events(tmp_path)) == len(line) - 1
    for layer, heads in enumerate(seen[0].values()):
        assert [line[f"attn/layer_{layer:02d}/head_{head:02d}/max_logit"] for head in range(2)] == heads.tolist()


def test_how_heads_become_one_number(tmp_path: Path) -> None:
    model = encoder()
    with rootdk.watch(model) as watch:
        model(batches(1)[0])
    readings = watch.readings
    values = values_of(readings, LayerKeys())
    for layer, reading in enumerate(readings.values()):
        for metric, heads in reading.metrics.items():
            of_layer = values[f"attn/layer_{layer:02d}/{metric}"]
            if metric.startswith("top_key"):  # its sequences are shorter than what is judged by
                assert np.isnan([*heads, of_layer]).all()
            else:
                assert heads.min() <= of_layer <= heads.max()
        assert values[f"attn/layer_{layer:02d}/min_logit"] == reading.metrics["min_logit"].min()
        assert values[f"attn/layer_{layer:02d}/entropy_ratio"] == np.median(reading.metrics["entropy_ratio"])
    assert len(values) == (LAYERS + 1) * len(reading.metrics)
    every_head = {
        metric: np.concatenate([reading.metrics[metric] for reading in readings.values()]) for metric in reading.metrics
    }
    assert values["attn/max_logit"] == every_head["max_logit"].max()
    assert values["attn/min_logit"] == every_head["min_logit"].min()
    assert values["attn/entropy_ratio"] == np.median(every_head["entropy_ratio"])


def test_keys_are_one_to_one() -> None:
    paths = [
        f"{side}.{at}.{rest}{again}"
        for side in ("encoder.block", "decoder.block")
        for at in (0, 1, 12)
        for rest in ("layer.0.SelfAttention", "layer.1.EncDecAttention")
        for again in ("", "#2")
    ]
    key = LayerKeys()
    keys = [key(path) for path in [*paths, "a.0.b", "a.b.0", "pool"]]
    assert keys[0] == "layer_00"
    assert keys[8] == "layer_12"
    assert len(set(keys)) == len(keys)


def test_lines_are_added_and_an_unfinished_one_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1}\n{"st')
    run(path, steps=1)
    run(path, steps=1)
    first, half, *rest = path.read_text().splitlines()
    assert (first, half) == ('{"step": 1}', '{"st')
    assert [json.loads(line)["step"] for line in rest] == [1, 1]


def test_nan_is_null(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "a.jsonl")
    sink.open()
    sink.write(1, {"a": math.nan, "b": math.inf, "c": 1.0})
    sink.close()
    assert lines(sink.path) == [{"step": 1, "a": None, "b": None, "c": 1.0}]


def test_a_process_that_is_killed_loses_no_step(tmp_path: Path) -> None:
    program = f"""
        import os, signal
        from rootdk.integrations import JsonLines
        sink = JsonLines({str(tmp_path / "a.jsonl")!r})
        sink.open()
        for step in range(100):
            sink.write(step, {{"attn/max_logit": step / 7, "long": 1.0}})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", dedent(program)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [line["step"] for line in lines(tmp_path / "a.jsonl")] == list(range(100))


def test_a_line_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = JsonLines(tmp_path / "a.jsonl")
    sink.open()
    calls: list[bytes] = []
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, data: calls.append(data) or whole(file, data))
    sink.write(1, {"a": 1.0})
    assert calls == [sink.path.read_bytes()]  # at once

    def full(file: int, data: bytes) -> int:
        if len(data) < 10:
            raise OSError(28, "No space left on device")
        return whole(file, data[:-5])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        sink.write(2, {"a": 2.0})
    monkeypatch.setattr(os, "write", whole)
    sink.write(3, {"a": 3.0})
    sink.close()
    assert [line["step"] for line in lines(sink.path)] == [1, 3]


def test_what_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    folder = re.escape(str(tmp_path))
    with pytest.raises(ArgumentError, match=f"^path: must be a file that can be written, got '{folder}', which is a "):
        TrainingLog(tmp_path)
    with pytest.raises(ArgumentError, match=r"^path: must be .* is no folder$"):
        TrainingLog(tmp_path / "no" / "a.jsonl")
    log = TrainingLog(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").mkdir()  # what only opening it shows
    model = encoder()
    with pytest.raises(ArgumentError, match=r"^path: must be .* which fails: Is a directory$"):
        log.start(model)
    assert not model._forward_hooks  # nothing stays behind


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"every": 0}, ArgumentError, "every: must be an int from 1 to 2147483647, got 0"),
        ({"every": 2.0}, ArgumentTypeError, "every: must be an int from 1 to 2147483647, got 2.0"),
        ({"clip_tau": -1.0}, ArgumentError, "clip_tau: must be a finite number > 0, got -1.0"),
        ({"sinks": 3}, ArgumentTypeError, "sinks: must be a path or have open, write and close, got 3"),
        ({"sinks": []}, ArgumentError, "sinks: must be a path, a sink or several of them, got none"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        TrainingLog(**{"sinks": os.devnull, **options})


@pytest.mark.parametrize(
    ("made", "package"),
    [
        ("TensorBoard('.')", "tensorboard"),
        ("WeightsAndBiases()", "wandb"),
        ("trainer_callback('a.jsonl')", "transformers"),
        ("lightning_callback('a.jsonl')", "lightning"),
    ],
)
def test_a_missing_package_is_named_in_one_line(made: str, package: str) -> None:
    program = f"""
        import sys
        sys.modules[{package!r}] = None     # as if it were not installed
        from rootdk import integrations
        try:
            integrations.{made}
        except integrations.PackageMissingError as error:
            print(error)
    """
    printed = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=True).stdout
    name = made.partition("(")[0]
    assert printed == f"{name}: needs {package}, which is not installed; get it with: pip install {package}\n"


def test_the_folder_that_wandb_writes_is_not_taken_for_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(PackageMissingError, match=r"^WeightsAndBiases: needs wandb"):
        WeightsAndBiases()


def test_importing_loads_no_framework() -> None:
    program = """
        import sys
        import rootdk.integrations
        from rootdk.integrations import *
        TrainingLog("a.jsonl")
        print(*sorted(set(sys.modules) & {"torch", "transformers", "lightning", "wandb", "tensorboard"}))
    """
    printed = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=True).stdout
    assert printed == "\n"
