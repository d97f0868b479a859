"""The sections of the bench: each runs small, checks answers against float64 and reports who dies. Nothing is timed."""

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

import rootdk
from benchmarks import race
from benchmarks.children import FOLDER, TIMING, Task
from benchmarks.command import main
from benchmarks.peers import open_peers
from benchmarks.problems import Shape
from benchmarks.race import Call
from benchmarks.section import Setting, Step
from benchmarks.sections import (
    all_sections,
    attention,
    avx2,
    beside,
    decode,
    fresh,
    half,
    masks,
    models,
    options,
    read,
    ring,
    tangent,
    tiny,
    watch,
)
from rootdk import _kernel
from rootdk.distributed.cost import LocalRanksError, run_ranks

SMALL = Shape(1, 4, 4, 40, 16, causal=False)


@pytest.fixture(autouse=True)
def small_and_repeatable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small sgemm, a fixed seed for dropout, and the numbers of threads as they were."""
    monkeypatch.setattr(race, "SGEMM_SIZE", 64)
    ours, theirs = rootdk.num_threads(), torch.get_num_threads()
    torch.manual_seed(0)
    yield
    rootdk.set_num_threads(ours)
    torch.set_num_threads(theirs)


def steps_of(*sections: str, peers: tuple[str, ...] = ("torch",), quick: bool = True) -> list[Step]:
    asked = sections or tuple(all_sections())
    setting = Setting(frozenset(asked), open_peers(peers, 1)[0], 1, quick)
    return [step for section in asked for step in all_sections()[section].steps(setting)]


def test_every_section_has_steps() -> None:
    for quick in (True, False):
        steps = steps_of(peers=("torch", "jax"), quick=quick)
        absent = set() if avx2.TARGET in _kernel.targets() else {"avx2"}
        assert {step.key for step in steps} == set(all_sections()) - absent
        assert len({step.label for step in steps}) == len(steps)


def test_without_torch_what_needs_it_is_left_out_of_the_plan() -> None:
    keys = [step.key for step in steps_of(peers=("numpy",))]
    assert not {"avx2", "wide", "half", "masks", "options", "tangent", "beside", "models", "watch", "ring"} & set(keys)
    assert keys.count("decode") == len(decode.FORMS)
    assert keys.count("tiny") == len(tiny.SHAPES)


def test_measure_alone_is_held_against_torch_and_nobody_else() -> None:
    steps = steps_of("measure", peers=("torch", "numpy"))
    assert [step.key for step in steps] == ["forward"] * len(attention.QUICK) + ["measure"] * len(attention.QUICK)
    assert [peer.name for peer in steps[0].run.args[1]] == ["torch"]
    assert [peer.name for peer in steps_of("forward", peers=("torch", "numpy"))[0].run.args[1]] == ["torch", "numpy"]


def test_measuring_is_raced_in_blocks() -> None:
    row = attention.measure(SMALL, budget=0.0)
    assert row["seconds"]["rootdk"]["calls"] == row["seconds"]["measure"]["calls"] == 2 * race.FEWEST_BLOCKS
    ratio = row["measure_over_attention"]
    assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]


def test_reading_is_raced_and_left_out_where_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    row = read.race(SMALL, budget=0.0)
    assert set(row["seconds"]) == {"rootdk", "measure", "read"}
    assert row["read_over_attention"]["median"] > 0 < row["read_over_measure"]["median"]
    right = rootdk.read
    monkeypatch.setattr(rootdk, "read", lambda query, key, **given: right(query + 1, key, **given))
    assert read.race(SMALL, budget=0.0)["left_out"] == {"read": "is not what measure reads"}


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", options.FORWARD)
def test_options_agree_with_float64(name: str, gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "WINDOW", 5)
    shape = replace(SMALL, n=200) if name == "dropout" else SMALL
    row = options.race(name, options.FORWARD[name], shape, gradient=gradient, budget=0.0)
    assert row["left_out"] == {}
    assert set(row["seconds"]) == {"rootdk", "torch"}
    assert row["sgemm"]["best"] > 0


def test_the_bias_gradient_is_a_row_whether_rootdk_has_it_or_not() -> None:
    row = options.race("bias gradient", options.learned_bias, SMALL, gradient=True, budget=0.0)
    assert "torch" in row["seconds"]
    assert ("rootdk" in row["seconds"]) != ("rootdk" in row["left_out"])


@pytest.mark.parametrize("name", options.FORWARD)
def test_an_option_that_is_ignored_is_a_wrong_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """rootdk.attention without its options: every check must notice, but for those that lie in the shapes alone."""
    attention = rootdk.attention
    monkeypatch.setattr(options, "WINDOW", 5)
    monkeypatch.setattr(rootdk, "attention", lambda query, key, value, **_: attention(query, key, value))
    shape = replace(SMALL, n=200) if name == "dropout" else SMALL
    row = options.race(name, options.FORWARD[name], shape, gradient=False, budget=0.0)
    assert ("rootdk" in row["left_out"]) == (name not in ("d_v = 2 d_k", "grouped heads"))


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", masks.CASES)
def test_masks_agree_with_float64(name: str, gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # To compile it takes half a minute.
    stand_in = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(masks, "_compiled_flex", lambda _: stand_in)
    row = masks.race(name, masks.CASES[name], 32, gradient=gradient, budget=0.0)
    assert row["left_out"] == {}
    flex = set() if gradient else {"FlexAttention"}
    third = {"causal as a mask": {"option"}, "8 documents as segments": {"batch"}}
    third["16 documents in 4096 tokens"] = {"batch"} | flex
    assert set(row["seconds"]) == {"rootdk", "torch"} | third.get(name, set())
    over = {key for key in row if key.startswith("over_")}
    assert over == {f"over_{other}" for other in third.get(name, set()) - flex}
    if not gradient:
        attention = rootdk.attention
        monkeypatch.setattr(rootdk, "attention", lambda query, key, value, **_: attention(query, key, value))
        assert "rootdk" in masks.race(name, masks.CASES[name], 32, gradient=False, budget=0.0)["left_out"]


@pytest.mark.parametrize("causal", [False, True])
def test_tangents_agree_with_float64(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(SMALL, kv_heads=2, causal=causal)
    row = tangent.race(shape, budget=0.0)
    assert row["left_out"] == {}
    assert set(row["seconds"]) == {"rootdk", "torch", "attention"}
    attention = rootdk.attention
    monkeypatch.setattr(rootdk, "attention", lambda query, key, value, **_: attention(query, key.detach(), value))
    assert "rootdk" in tangent.race(shape, budget=0.0)["left_out"]


def test_tiny_calls_are_checked_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "LOOP", 3)
    for gradient in (False, True):
        row = tiny.race("tiny", SMALL, gradient=gradient, torch=True, budget=0.0)
        assert row["left_out"] == {}
        assert set(row["seconds"]) == {"rootdk", "rootdk on tensors", "torch"}
        assert row["seconds"]["torch"]["calls"] == 5 * 3
    assert [shape.n for shape in tiny.SHAPES] == [16, 16, 32, 1]


def test_one_key_has_a_gradient_of_zero_and_is_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "LOOP", 3)
    row = tiny.race("one key", replace(SMALL, n=1), gradient=True, torch=True, budget=0.0)
    assert row["left_out"] == {}
    vjp = rootdk.attention_vjp
    monkeypatch.setattr(rootdk, "attention_vjp", lambda *a, **o: (None, lambda g: [x + 1 for x in vjp(*a, **o)[1](g)]))
    assert (
        "relative error"
        in tiny.race("one key", replace(SMALL, n=1), gradient=True, torch=False, budget=0.0)["left_out"]["rootdk"]
    )


def test_wide_heads_and_avx2_are_raced() -> None:
    rows = [step.run() for step in steps_of("wide")]
    assert [row["gradient"] for row in rows] == [False, True] * 4
    assert all(set(row["seconds"]) == {"rootdk", "torch"} for row in rows)
    before = _kernel.target()
    task: Task = {"name": "small", "shape": asdict(SMALL), "threads": 1, "budget": 0.0, "without": []}
    try:
        assert avx2.TARGET not in _kernel.targets() or set(avx2.race(task, str)["seconds"]) == {"rootdk", "torch"}
    finally:
        _kernel.set_target(before)


def test_the_chain_agrees_with_float64() -> None:
    row = beside.race("chain", 33, pause=0.001, budget=0.0)
    assert row["left_out"] == {}
    assert set(row["seconds"]) == {"rootdk", "rootdk, own threads", "torch", "layers alone"}


@pytest.mark.parametrize("name", models.MODELS)
def test_whole_models_agree_with_float64(name: str) -> None:
    row = models.race(name, models.MODELS[name], 24, budget=0.0)
    assert row["left_out"] == {}
    assert set(row["seconds"]) == {"rootdk", "torch"}


@pytest.mark.parametrize("name", watch.WAYS)
def test_a_watched_step_trains_as_an_unwatched_one(name: str) -> None:
    row = watch.race(name, tokens=24, budget=0.0)
    assert row["left_out"] == {}
    assert set(row["seconds"]) == {"unwatched", "watched"}
    assert row["watched_over_unwatched"]["median"] > 0


@pytest.mark.slow
def test_a_ring_is_timed_beside_one_process_and_its_memory_is_read() -> None:
    task = {"name": "causal", "tokens": 64, "rounds": 2, "causal": True, "gradient": True}
    row = ring.race(task)
    assert set(row["seconds"]) == set(ring.SIDES)
    for side, times in row["seconds"].items():
        assert times["calls"] == 2
        if side != "one process":
            expected = row["seconds"]["one process"]["best"] / (ring.SIDES[side] * times["best"])
            assert row["efficiency"][side]["best"] == expected
    used = ring.memory(2, 8192)
    assert used["input_bytes"] == 3 * 4096 * ring.D * 4
    # The block at hand, the next one and the output are there at once.
    assert used["extra_bytes"] >= 5 * 4096 * ring.D * 4
    console = Console(record=True, width=80)
    for part in ring.show({"ring": [row, used]}):
        console.print(part)
    assert "Ring of 2, 8192 tokens, one head, d = 64" in console.export_text()


def test_a_rank_that_fails_or_hangs_ends_the_run() -> None:
    with pytest.raises(LocalRanksError, match=r"^rank 0 of 1 ended with code 1: KeyError: 'tokens'$"):
        run_ranks(1, ring.__name__, {}, package=FOLDER)
    with pytest.raises(LocalRanksError, match=r"^1 ranks: must end within 0.2 s, and did not$"):
        run_ranks(1, ring.__name__, {}, timeout=0.2, package=FOLDER)


def test_a_watched_step_that_changes_the_model_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Meddling(watch.Trainee):
        made = 0

        def __init__(self, tokens: int) -> None:
            super().__init__(tokens)
            Meddling.made += 1
            with torch.no_grad():
                next(self.model.parameters()).add_(0.01 * Meddling.made)

    monkeypatch.setattr(watch, "Trainee", Meddling)
    assert watch.race("exact", tokens=24, budget=0.0)["left_out"] == {"watched": "changed the losses"}


def test_import_names_frameworks_that_come_along() -> None:
    row = fresh.measure_import(rounds=1)
    assert row["frameworks"] == []
    assert set(row["seconds"]) == {"numpy", "rootdk"}
    assert fresh.measure_import(rounds=1, module="ml_dtypes")["frameworks"] == ["ml_dtypes"]


def quick_task(section: str, kind: str) -> Task:
    task = next(step.run.args[1] for step in steps_of(section) if step.run.args[1]["kind"] == kind)
    return task | {"without": [], "budget": 0.0}


def test_decode_reads_the_bytes_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    sums = decode.plain_sums

    def watched(words: list[np.ndarray], task: Task) -> dict[str, Call]:
        lengths.extend(array.size for array in words)
        return sums(words, task)

    monkeypatch.setattr(decode, "plain_sums", watched)
    for kind, size in (("float32", 4), ("bfloat16", 2)):
        task = quick_task("decode", kind) | {"keys": 64}
        lengths.clear()
        # torch's own half-type call may end this process; children.py is there for that.
        row = decode.race(task | {"without": ["torch"]}, str)
        assert row["left_out"] == {}
        assert row["bytes"] == 4 * sum(lengths) == 2 * 8 * 64 * 64 * size
        assert set(row["seconds"]) == {"rootdk", "sum numpy", "sum numpy, threads", "sum torch"}


@pytest.mark.parametrize("kind", half.KINDS)
def test_half_types_agree_with_float64(kind: str) -> None:
    noted: list[str] = []
    row = half.race(quick_task("half", kind) | {"without": ["torch"]}, noted.append)
    assert row["left_out"] == {}
    assert set(row["seconds"]) == {"rootdk", "torch float32"}
    assert noted == ["rootdk", "torch float32", TIMING]


@pytest.mark.parametrize(("kind", "factor"), [("float16", 1.02), ("bfloat16", 1.1)])
def test_a_wrong_half_type_answer_is_caught(kind: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = rootdk.attention
    monkeypatch.setattr(rootdk, "attention", lambda *arrays, **given: attention(*arrays, **given) * factor)
    row = half.race(quick_task("half", kind) | {"without": ["torch"]}, str)
    assert "relative error" in row["left_out"]["rootdk"]


@pytest.mark.parametrize(
    ("keys", "attention", "least"),
    [
        # All scores at once: 8192 x 8192 numbers of 4 bytes.
        (8192, "lambda q, k, v: v * np.ones((q.shape[1], k.shape[1]), np.float32)[0, 0]", 2**28),
        # What only the first call allocates, and keeps, is no less memory for it.
        (1024, "lambda q, k, v: (kept or kept.append(np.ones(2**23, np.float32)), v * kept[0][0])[1]", 2**25),
    ],
)
def test_memory_counts_what_a_call_allocates(keys: int, attention: str, least: int) -> None:
    program = "import json, numpy as np, rootdk\nfrom benchmarks.sections import fresh\nkept = []\n"
    program += f"rootdk.attention = {attention}\nprint(json.dumps(fresh.measure_call({keys})))"
    command = [sys.executable, "-c", program]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, cwd=FOLDER.parent)
    assert json.loads(finished.stdout)["extra_bytes"] >= 0.95 * least


def test_rootdk_does_not_keep_all_scores() -> None:
    frugal = fresh.measure_memory(8192)
    assert frugal["extra_bytes"] < 0.5 * frugal["full_scores_bytes"]


@pytest.mark.slow
def test_whole_command(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = CliRunner().invoke(main, ["--quick", "--peer", "numpy", "--peer", "torch", "--output", str(file)])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80 + len(str(file))
    report = json.loads(file.read_text())
    assert set(report["peers"]) == {"numpy", "torch"}
    assert report["sections"] == list(all_sections())
    assert len(report["forward"]) == len(report["backward"]) == len(report["measure"]) == len(attention.QUICK)
    for case in report["forward"]:
        assert set(case["seconds"]) == {"rootdk", "measure", "numpy", "torch"}
        assert all(0 < t["best"] <= t["median"] for t in case["seconds"].values())
    for section in ("half", "decode", "tiny", "beside"):
        for case in report[section]:
            assert {"rootdk", "torch"} <= set(case["seconds"]) | set(case["left_out"])
            assert "rootdk" in case["seconds"]
    assert len(report["options"]) == 10
    assert report["memory"]["keys"] == 16384
    assert report["import"]["frameworks"] == []
    names = [target["name"] for target in report["targets"]]
    assert len(names) == len(set(names)) > len(all_sections())
    assert all(target["met"] is None for target in report["targets"])
    assert "not for quoting" in result.output


def test_the_benchmark_of_gpus_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    script = runpy.run_path(str(Path(race.__file__).parent / "gpu.py"))
    with pytest.raises(SystemExit, match=r"^gpu: a CUDA or ROCm device must be visible to torch, got none"):
        script["main"]()
