"""The audit of what is merely large, or changes while it is read; of names that a terminal or a page would obey."""

import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hostile_checkpoints import (
    CODES,
    CONFIG,
    INDEX,
    WK,
    WQ,
    folder,
    good_tensors,
    large,
    mutated,
    packed,
    sharded,
    write_sparse,
)
from safetensors import SafetensorError, safe_open

from rootdk.audit import limits, read_checkpoint
from rootdk.audit.families import find_projections
from rootdk.audit.formats import find_tensors
from rootdk.audit.result import Audit, Finding, LayerAudit
from rootdk.cli import main
from rootdk.errors import ArgumentError

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
ROOTDK = [sys.executable, "-m", "rootdk", "audit"]


def rootdk(*arguments: object, columns: int = 80) -> Result:
    return CliRunner().invoke(main, ["audit", *map(str, arguments)], env={"COLUMNS": str(columns)})


def raw_codes(text: str) -> set[str]:
    """Characters that act on a terminal, or that a reader does not see."""
    return {warning for warning in text if unicodedata.category(warning) in ("Cc", "Cf", "Cs") and warning != "\n"}


def on_a_terminal(path: Path, until: str) -> tuple[subprocess.Popen[bytes], int, str]:
    """The command with a terminal for standard error, and what it wrote there until the words came."""
    master, terminal = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "100"}
    started = subprocess.Popen([*ROOTDK, str(path)], stdout=subprocess.PIPE, stderr=terminal, env=environment)
    os.close(terminal)
    seen, end = "", time.monotonic() + 120
    while until not in seen and time.monotonic() < end:
        if select.select([master], [], [], 1)[0]:
            seen += os.read(master, 65_536).decode(errors="replace")
    return started, master, seen


def rest_of(master: int) -> str:
    """What is still written until the other side is closed."""
    data = b""
    while True:
        try:
            part = os.read(master, 65_536)
        except OSError:
            return data.decode(errors="replace")
        if not part:
            return data.decode(errors="replace")
        data += part


def test_a_bar_moves_and_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    """Names that are markup for rich or codes for a terminal stand in the bar as they are spelled."""
    large(tmp_path, "[/red].\x1b]0;title\x07.{}.attn")
    started, master, seen = on_a_terminal(tmp_path, "attn")
    try:
        assert re.search(r"\d%", seen)
        assert r"[/red].\x1b]0;title\x07." in seen
        assert "\x1b]0" not in seen
        assert "\x07" not in seen
        started.send_signal(signal.SIGINT)
        assert started.wait(60) == 130
        assert "Traceback" not in rest_of(master)
        assert started.stdout is not None
        assert started.stdout.read() == b""
    finally:
        started.kill()
        started.wait()
        os.close(master)


def test_ctrl_c_without_a_terminal(tmp_path: Path) -> None:
    large(tmp_path)
    code = (
        "import rootdk.audit.checkpoint as c, rootdk.cli, os, signal\n"
        "read = c.read_heads\n"
        "c.read_heads = lambda *a: (os.kill(os.getpid(), signal.SIGINT), read(*a))[1]\n"
        f"rootdk.cli.main(['audit', {str(tmp_path)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def cut(path: Path) -> None:
    os.truncate(path, 1000)


def rewritten(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    ("change", "words"), [(cut, "truncated while"), (rewritten, "has changed"), (Path.unlink, "No such")]
)
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, change: Callable[[Path], None], words: str) -> None:
    folder(tmp_path, good_tensors(layers=3))
    printed: list[str] = []

    def progress(name: str, _share: float) -> None:
        if not printed:
            change(tmp_path / "model.safetensors")
        printed.append(name)

    with pytest.raises(ArgumentError, match=rf"path: model\.safetensors cannot be read: .*{words}"):
        read_checkpoint(tmp_path, progress=progress)
    assert printed  # it had begun


def test_progress_goes_from_head_to_head(tmp_path: Path) -> None:
    sharded(tmp_path)
    shares: list[float] = []
    read_checkpoint(tmp_path, progress=lambda _name, share: shares.append(share))
    assert shares == sorted(shares)
    assert len(shares) > 3 * 4
    assert shares[-1] == 1.0


# (heads, heads of keys, d_k, whether a norm goes over all heads, whether the weights are turned)
HELD = {
    "alone": (192, 1, 256, False, False),
    "normed together": (96, 96, 256, True, False),
    "turned": (96, 96, 256, False, True),
}


@pytest.mark.parametrize("case", HELD)
def test_matrices_of_few_heads_are_held(tmp_path: Path, case: str) -> None:
    """All of a layer would be 96 MB; promised are a few heads, or LARGEST_GRAMS of them for each side."""
    heads, key_heads, d, together, turned = HELD[case]
    config: dict[str, Any] = {"hidden_size": heads * d, "num_attention_heads": heads, "num_key_value_heads": key_heads}
    if turned:
        shapes: dict[str, Any] = {"h.0.attn.c_attn.weight": (2, 3 * heads * d)}
        config = {"model_type": "gpt2", "n_embd": heads * d, "n_head": heads}
    else:
        shapes = {WQ: (heads * d, 2), WK: (key_heads * d, 2)}
    if together:
        shapes |= {f"{WQ[:-13]}{part}_norm.weight": (heads * d,) for part in "qk"}
    write_sparse(tmp_path, shapes, config)
    all_of_them = 8 * d * d * (heads + key_heads)
    assert 4 * peak_of(tmp_path) < 3 * all_of_them
    assert all_of_them >= 96 * 2**20


def peak_of(path: Path) -> int:
    """Bytes by which the largest resident size of a fresh process grows."""
    code = f"""
import re, numpy
from pathlib import Path
from rootdk.audit import read_checkpoint
def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
numpy.linalg.eigh(numpy.eye(256)); before = peak()
read_checkpoint({str(path)!r}); print(peak() - before)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def sparse(heads: int, d_k: int, width: int, layers: int = 1) -> Callable[[Path], None]:
    shapes = {f"h.{i}.attn.{part}_proj.weight": (heads * d_k, width) for i in range(layers) for part in "qk"}
    config = {"model_type": "llama", "head_dim": d_k, "num_attention_heads": heads}
    return lambda place: write_sparse(place, shapes, config)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (sparse(1, limits.LARGEST_HEAD + 1, 4), "head_dim must be one integer from 1 to 1024, got 1025"),
        (sparse(limits.MOST_HEADS + 1, 1, 4), "num_attention_heads must be one integer from 1 to 1024, got 1025"),
        (sparse(1, 1, limits.LARGEST_WIDTH + 1), "must have 1 to 131072 columns"),
        (sparse(1, 1, 1, limits.MOST_LAYERS + 1), "at most 2048 modules of attention, got 2049"),
        (sparse(1024, 1, 1, 33), "at most 32768 heads in all layers, got 33792"),
        (sparse(1024, 128, 131_072, 5), "at most 274877906944 bytes of query and key weights, got 343597383680"),
        (sparse(1024, 1024, 40_000), r"at most 5e\+13 multiply-adds to read, got 1\.8e\+14"),
    ],
)
def test_limits_are_said(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    make(tmp_path)
    with pytest.raises(ArgumentError, match=words):
        read_checkpoint(tmp_path)


def test_shards_tensors_and_headers_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sharded(tmp_path)
    for name, most, words in (
        ("MOST_SHARDS", 2, "at most 2 shards, got 3"),
        ("MOST_TENSORS", 8, "at most 8 tensors, got 9"),
        ("LARGEST_HEADERS", 500, "headers of at most 500 bytes"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"rootdk.audit.formats.{name}", most)
            with pytest.raises(ArgumentError, match=words):
                read_checkpoint(tmp_path)
    assert len(read_checkpoint(tmp_path).layers) == 3


def test_what_the_reader_takes_the_library_takes_alike(tmp_path: Path) -> None:
    """Ours is the stricter of the two: whatever it reads is read alike by the library that others use."""
    taken = refused = 0
    for number, case in enumerate(mutated(400, seed=7)):
        home = tmp_path / f"{number}"
        home.mkdir()
        case.make(home)
        for file in home.glob("*.safetensors"):
            try:
                ours = find_tensors(file)
            except ArgumentError:
                refused += 1
                continue
            assert theirs(file) in (None, {name: (ours[name].dtype, ours[name].shape) for name in ours})
            taken += 1
    assert taken > 100
    assert refused > 30


def theirs(path: Path) -> dict[str, tuple[str, tuple[int, ...]]] | None:
    """The tensors of a file by the library; None where there is a type that it does not know."""
    try:
        with safe_open(path, framework="np") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 -- it is no dictionary
            return {name: (str(part.get_dtype()), tuple(part.get_shape())) for name, part in parts.items()}
    except SafetensorError as error:
        if "unknown variant" in str(error):
            return None
        raise


def test_a_name_is_no_number_of_a_layer() -> None:
    names = [f"{place}.attn.{part}_proj.weight" for place in ("²", "9" * 400, "٣", "3") for part in "qk"]
    layers, unknown = find_projections(names)
    assert [layer.index for layer in layers] == [3, 0, 0, 0]
    assert unknown == []


def test_biases_that_cannot_be_read_are_listed_and_not_left_out(tmp_path: Path) -> None:
    bias = WQ.replace("weight", "bias")
    other = {name.replace(".0.", ".1."): tensor for name, tensor in good_tensors().items()}
    folder(tmp_path, {**good_tensors(), **other, bias: ("F8_E4M3", [32], bytes(32))})
    audit = read_checkpoint(tmp_path)
    assert [layer.name for layer in audit.layers] == ["model.layers.1.self_attn"]
    assert set(audit.unknown) == {bias, WQ, WK}


@pytest.mark.parametrize("value", [np.inf, 1e300, 1e39, -1e39])
def test_weights_that_float32_does_not_hold_are_infinite(tmp_path: Path, value: float) -> None:
    """As they are in every type that a model runs in."""
    query = good_tensors()[WQ].astype(np.float64)
    query[9, 3] = value
    folder(tmp_path, {**good_tensors(), WQ: query})
    audit = read_checkpoint(tmp_path)
    assert [finding.head for finding in audit.findings if finding.metric == "non_finite_weights"] == [1]
    assert np.isfinite([audit.layers[0].heads[head]["predicted_variance"] for head in (0, 2, 3)]).all()


@pytest.mark.parametrize("size", [1e-150, 1e-30, 1e30])
def test_a_norm_takes_any_size_off(tmp_path: Path, size: float) -> None:
    """q / |q| is the same whatever the size of q."""
    gains = {f"model.layers.0.self_attn.{part}_norm.weight": np.ones(8) for part in "qk"}
    variances = []
    for factor in (1.0, size):
        tensors = {name: tensor.astype(np.float64) * factor for name, tensor in good_tensors().items()}
        folder(tmp_path, {**tensors, **gains}, {**CONFIG, "rms_norm_eps": 0})
        variances.append(read_checkpoint(tmp_path).layers[0].of("predicted_variance"))
    assert variances[0] == pytest.approx(variances[1], rel=1e-9)


def coded(place: Path, name: str = f"a.{CODES}.<script>alert(1)</script>") -> Path:
    """Names and a model type that act, in layers that are read and in ones that are not."""
    good = good_tensors()
    tensors = {
        f"{name}.{i}.{part}_proj.weight": good[source] * (1 + 99 * i)
        for i in (0, 1)
        for part, source in (("q", WQ), ("k", WK))
    }
    folder(place, {**tensors, f"{name}.attn.temperature": np.ones(1)}, {**CONFIG, "model_type": f"{CODES}</title>"})
    return place


def test_codes_of_a_checkpoint_do_not_reach_the_terminal(tmp_path: Path) -> None:
    result = rootdk(coded(tmp_path), columns=300)
    assert result.exit_code == 0, result.output
    assert raw_codes(result.output) == set()
    assert r"\x1b[2J\x1b[31m" in result.output
    assert "[/red][bold]:smile:" in result.output  # neither obeyed nor dropped
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "num_attention_heads": CODES}))
    refused = rootdk(tmp_path)
    assert refused.exit_code == 1
    assert raw_codes(refused.output) == set()
    assert len(refused.output.splitlines()) == 1


def test_codes_stay_what_they_are_in_json(tmp_path: Path) -> None:
    result = rootdk(coded(tmp_path), "--json")
    assert raw_codes(result.stdout) == set()
    assert result.stdout.isascii()
    printed = json.loads(result.stdout)
    assert printed["model"]["model_type"] == f"{CODES}</title>"
    assert CODES in printed["layers"][0]["name"]


def test_codes_do_not_reach_the_page(tmp_path: Path) -> None:
    home = tmp_path / "\x1b[31m\u202e"
    home.mkdir()
    result = rootdk(coded(home), "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text("utf-8")
    ours = page[: page.index("<script>/**")] if "<script>/**" in page else page
    assert "<script>alert" not in page
    assert "</title></title>" not in page
    for code in ("\x1b", "\x07", "\u202e", "\u2066", "\x00"):
        assert code not in ours


def test_plotly_takes_no_name_for_html(tmp_path: Path) -> None:
    from rootdk.lab.report.audit_page import audit_pictures, spread_pictures

    coded(tmp_path, "<a href='https://example.org'>x</a>")
    audit = read_checkpoint(tmp_path).to_dict()
    for picture in (*audit_pictures(audit), *spread_pictures(audit)):
        assert "<a href" not in json.dumps(picture.figure, default=str)


@pytest.mark.parametrize("name", ["[/red]", "a\\", "[bold", CODES])
def test_a_report_shows_any_name(name: str) -> None:
    from rich.console import Console

    warning = Finding(name, None, "max_logit", "warning", 140.0, 100.0, f"source {name}", "remedy")
    note = Finding(name, 0, "scale", "note", 1.0, 1.0, f"source {name}", "remedy")
    report = Audit([LayerAudit(name, [{"max_logit": 140.0}])], [warning, note], unread={name: f"why {name}"})
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123 -- ends with the test
    console.print(report)
    text = console.export_text()
    assert raw_codes(text) == set()
    assert ("\\" if name == "a\\" else "[") in text


@pytest.mark.parametrize("make", ["pipe", "device", "deep", "codes", "large"])
def test_a_process_of_its_own(tmp_path: Path, make: str) -> None:
    """The same as in the batches, with a limit that the system itself keeps."""
    folder(tmp_path)
    config = tmp_path / "config.json"
    config.unlink()
    if make == "pipe":
        os.mkfifo(config)
    elif make == "device":
        config.symlink_to("/dev/zero")
    elif make == "large":
        config.touch()
        os.truncate(config, 2**30)
    else:
        config.write_bytes(b"[" * 100_000 if make == "deep" else f'"{CODES}'.encode())
    limit = 2**30
    done = subprocess.run(
        [*ROOTDK, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: path: config.json")
    assert len(done.stderr.splitlines()) == 1
    assert raw_codes(done.stderr) == set()


@pytest.mark.parametrize("name", ["config.json", INDEX, "model.safetensors"])
def test_a_link_of_a_cache_is_followed(tmp_path: Path, name: str) -> None:
    """The caches of model hubs keep files elsewhere and link to them."""
    store, home = tmp_path / "store", tmp_path / "home"
    for place in (store, home):
        place.mkdir()
    if name == INDEX:
        sharded(home)
    else:
        folder(home)
    (home / name).rename(store / "blob")
    (home / name).symlink_to(store / "blob")
    assert read_checkpoint(home).layers


def test_fields_have_types_and_ranges(tmp_path: Path) -> None:
    folder(tmp_path)
    for field, value, words in (
        ("model_type", 5, "model_type must be a text of at most 512 characters, got 5"),
        ("head_dim", 10**400, r"head_dim must be one integer from 1 to 1024, got inf \(beyond float64\)"),
        ("rms_norm_eps", 2, "rms_norm_eps must be a number from 0 on and at most 1, got 2"),
        ("scale_attn_by_inverse_layer_idx", 1, "must be true or false, got 1"),
        ("attn_config", [1], r"attn_config must be an object, got \[1\]"),
        ("attn_config", {"softmax_scale": "x"}, r"config\.json: attn_config: softmax_scale must be a number"),
        ("text_config", CODES, r"text_config must be an object, got '\\x1b"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, field: value}))
        with pytest.raises(ArgumentError, match=words) as caught:
            read_checkpoint(tmp_path)
        assert str(caught.value).startswith("path: config.json: ")
        assert str(caught.value).isprintable()


def test_the_writer_of_these_tests_writes_what_the_library_reads(tmp_path: Path) -> None:
    folder(tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="np") as file:
        for name, tensor in good_tensors().items():
            assert (file.get_tensor(name) == tensor).all()
    assert packed(good_tensors())[0][WQ]["dtype"] == "F32"


@pytest.mark.parametrize("size", [1e-100, 1e-60, 3e38])
def test_a_map_and_a_page_of_any_size(tmp_path: Path, size: float) -> None:
    """Squares of what is shown may leave float64, and logarithms of that have no number."""
    tensors = {name: tensor.astype(np.float64) / 10 * size for name, tensor in good_tensors().items()}
    folder(tmp_path, tensors, {**CONFIG, "attention_multiplier": 1e12 if size > 1 else 1e-12})
    result = rootdk(tmp_path, "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output + str(result.exception)
