"""What read_checkpoint takes and refuses: files, shards, types, names, configs; and how little memory it needs."""

import json
import os
import pickle
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from rootdk.audit import read_checkpoint
from rootdk.audit.families import find_projections
from rootdk.errors import ArgumentError

CONFIG = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
WQ, WK = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"


def weights(seed: int = 0, layers: int = 1, dtype: Any = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(layers):
        for name, rows in ((WQ, 32), (WK, 16)):
            tensors[name.replace(".0.", f".{layer}.")] = (rng.standard_normal((rows, 32)) / 6).astype(dtype)
    return tensors


def folder(place: Path, tensors: dict[str, Any], config: Any = CONFIG, name: str = "model.safetensors") -> Path:
    save_file(tensors, place / name)
    (place / "config.json").write_text(json.dumps(config))
    return place


def variances(path: Path) -> list[float]:
    return [value for layer in read_checkpoint(path).layers for value in layer.of("predicted_variance")]


def by_hand(tensors: dict[str, Any], layer: int = 0) -> list[float]:
    """scale^2 tr(W_q' W_k W_k' W_q), head by head, as it is written."""
    query, key = (tensors[name.replace(".0.", f".{layer}.")].astype(np.float64) for name in (WQ, WK))
    traces = []
    for head in range(4):
        w_q, w_k = query[8 * head : 8 * head + 8], key[8 * (head // 2) : 8 * (head // 2) + 8]
        traces.append(float(np.trace(w_q.T @ w_k @ w_k.T @ w_q)) / 8)
    return traces


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_type_of_number(tmp_path: Path, dtype: Any) -> None:
    tensors = weights(dtype=dtype)
    assert variances(folder(tmp_path, tensors)) == pytest.approx(by_hand(tensors), rel=1e-12)


def test_a_folder_a_file_and_any_name(tmp_path: Path) -> None:
    tensors = weights()
    predicted = pytest.approx(by_hand(tensors))
    assert variances(folder(tmp_path, tensors, name="consolidated.safetensors")) == predicted
    assert variances(tmp_path / "consolidated.safetensors") == predicted
    assert read_checkpoint(str(tmp_path)).verdict == "healthy"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    tensors = weights(layers=3)
    places = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        file = f"model-{number:05}.safetensors"
        save_file({name: tensor}, tmp_path / file)
        places[name] = file
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_shards(sharded: Path) -> None:
    tensors = weights(layers=3)
    predicted = [variance for layer in range(3) for variance in by_hand(tensors, layer)]
    assert variances(sharded) == pytest.approx(predicted)
    assert variances(sharded / "model.safetensors.index.json") == pytest.approx(predicted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda place: (place / "model-00003.safetensors").unlink(), "model-00003.safetensors, which is absent"),
        (lambda place: save_file({"x": np.zeros(1)}, place / "model-00003.safetensors"), "and it is not there"),
        (lambda place: index(place, "not json"), "is no index of shards"),
        (lambda place: index(place, '{"weight_map": {}}'), "names no tensor"),
        (lambda place: index(place, '{"weight_map": [1]}'), "is no index of shards"),
        (lambda place: index(place, '{"weight_map": {"a": "../b.safetensors"}}'), "files of its own folder"),
        (lambda place: index(place, '{"weight_map": {"a": "b.bin"}}'), "b.bin, which is absent"),
    ],
)
def test_bad_shards(sharded: Path, change: Callable[[Path], Any], words: str) -> None:
    change(sharded)
    with pytest.raises(ArgumentError, match=words):
        read_checkpoint(sharded)


def index(place: Path, text: str) -> None:
    (place / "model.safetensors.index.json").write_text(text)


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "a.pt", "a.pth", "a.ckpt"])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_pickle_that_is_more_than_weights_is_refused_and_never_run(tmp_path: Path, name: str, zipped: bool) -> None:
    mark = tmp_path / "exploded"
    loaded = pickle.dumps(Bomb(mark))
    pickle.loads(loaded)
    assert mark.exists()  # the bomb works
    mark.unlink()
    if zipped:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("archive/data.pkl", loaded)
    else:
        (tmp_path / name).write_bytes(loaded)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(ArgumentError, match=r"a pickle that would call .*nothing of it is run.*save_pretrained"):
            read_checkpoint(path)
    assert not mark.exists()


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file(tmp_path: Path, kept: int) -> None:
    file = folder(tmp_path, weights()) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ArgumentError, match=r"model\.safetensors is no whole safetensors file .*bytes\): truncated"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("damage", [b"\xff" * 64, b"{" * 64, b"\x08" + b"\0" * 7 + b"notjson!"])
def test_a_corrupt_file(tmp_path: Path, damage: bytes) -> None:
    file = folder(tmp_path, weights()) / "model.safetensors"
    file.write_bytes(damage + file.read_bytes()[len(damage) :])
    with pytest.raises(ArgumentError, match="corrupt"):
        read_checkpoint(tmp_path)


def test_heads_that_only_the_caller_knows(tmp_path: Path) -> None:
    """Without a config: heads are said, their width and the number of key heads follow from the weights."""
    save_file(weights(), tmp_path / "model.safetensors")
    audit = read_checkpoint(tmp_path, heads=4)
    assert (audit.model["d_k"], audit.model["key_heads"]) == (8, 2)
    assert audit.layers[0].of("predicted_variance") == pytest.approx(by_hand(weights()), rel=1e-12)
    with pytest.raises(ArgumentError, match=r"heads: must divide the 32 outputs of the query projection.*got 5"):
        read_checkpoint(tmp_path, heads=5)
    with pytest.raises(ArgumentError, match="heads: must be an integer from 1 to 1024, got 0"):
        read_checkpoint(tmp_path, heads=0)
    with pytest.raises(ArgumentError, match=r"heads: must be num_attention_heads of config\.json, 4, got 8"):
        read_checkpoint(folder(tmp_path, weights()), heads=8)


@pytest.mark.parametrize("config", [{"HEADS": 4}, {"model": {"stack": {"initargs": {"nhead": 4}}}, "layers": 1}])
@pytest.mark.parametrize("name", ["config.json", "params.json", "model.json"])
def test_a_config_of_another_make(tmp_path: Path, config: Any, name: str) -> None:
    """The number of heads under other names, at any depth, beside the weights or under the file's own name."""
    save_file(weights(), tmp_path / "model.safetensors")
    (tmp_path / name).write_text(json.dumps(config))
    audit = read_checkpoint(tmp_path / "model.safetensors")
    assert audit.layers[0].of("predicted_variance") == pytest.approx(by_hand(weights()), rel=1e-12)
    (tmp_path / name).write_text(
        json.dumps([config, {"heads": 2}]) if name == "model.json" else '{"heads": 2, "nhead": 4}'
    )
    with pytest.raises(
        ArgumentError, match=r"model\.json must be a JSON object|must have num_attention_heads.*--heads 8"
    ):
        read_checkpoint(tmp_path / "model.safetensors")


def stack(sizes: list[float], heads: int = 4) -> dict[str, Any]:
    """Layers of torch.nn, whose norms may come before or after: which, the names do not say."""
    rng = np.random.default_rng(0)
    return {
        f"layers.{layer}.self_attn.in_proj_weight": (size * rng.standard_normal((96, 32)) / 6).astype(np.float32)
        for layer, size in enumerate(sizes)
    }


def test_a_first_layer_that_reads_embeddings_is_not_compared(tmp_path: Path) -> None:
    """What it is given is of any size, so its weights may be: from weights alone that is no fault, and one note."""
    save_file(stack([8.0, 1.0, 1.0, 1.0]), tmp_path / "model.safetensors")
    audit = read_checkpoint(tmp_path, heads=4)
    assert audit.verdict == "healthy"
    assert [finding.metric for finding in audit.findings if "norm comes before the projections" in finding.source] == [
        "unknown_norms"
    ]
    save_file(stack([1.0, 1.0, 8.0, 1.0]), tmp_path / "model.safetensors")
    assert read_checkpoint(tmp_path, heads=4).flagged == ["layers.2.self_attn"]
    # All layers sharp: without a norm that is known, weights do not say that.
    save_file(stack([4.0] * 4), tmp_path / "model.safetensors")
    assert read_checkpoint(tmp_path, heads=4).verdict == "healthy"
    normed = {f"layers.{layer}.attn_norm.weight": np.ones(32, np.float32) for layer in range(4)}
    save_file(stack([4.0] * 4) | normed, tmp_path / "model.safetensors")
    assert read_checkpoint(tmp_path, heads=4).verdict == "warning"


def test_a_head_that_decayed_is_a_note_and_one_that_is_zero_a_warning(tmp_path: Path) -> None:
    tensors = stack([1.0] * 3)
    for rows in (slice(8, 16), slice(40, 48)):  # W_q and W_k of head 1
        tensors["layers.1.self_attn.in_proj_weight"][rows] *= 1e-20
    save_file(tensors, tmp_path / "model.safetensors")
    audit = read_checkpoint(tmp_path, heads=4)
    (note,) = [finding for finding in audit.findings if finding.metric == "flat_prediction"]
    assert (note.layer, note.head, note.severity) == ("layers.1.self_attn", 1, "note")
    tensors["layers.1.self_attn.in_proj_weight"][8:16] = 0.0
    save_file(tensors, tmp_path / "model.safetensors")
    (warning,) = [
        finding for finding in read_checkpoint(tmp_path, heads=4).findings if finding.metric == "flat_prediction"
    ]
    assert (warning.head, warning.severity) == (1, "warning")


def test_absent_or_empty_places(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"path: must be a model folder.*absent"):
        read_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match=r"has no weights \(\.safetensors, \.gguf"):
        read_checkpoint(tmp_path)
    save_file(weights(), tmp_path / "a.safetensors")
    with pytest.raises(ArgumentError, match=r"how many heads .*--heads 8, or heads=8.*config\.json"):
        read_checkpoint(tmp_path)
    save_file(weights(), tmp_path / "b.safetensors")
    with pytest.raises(ArgumentError, match=r"2 safetensors files \(a\.safetensors, b\.safetensors\).*name one"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_attention_heads": None}, r"config\.json must have num_attention_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads must be one integer from 1 to 1024, got 0"),
        ({"num_attention_heads": "4"}, "num_attention_heads must be one integer from 1 to 1024, got '4'"),
        ({"num_attention_heads": 5}, "hidden_size must be a multiple of the 5 heads, got 32"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must divide the 4 query heads, got 3"),
        ({"num_key_value_heads": [2, 2]}, r"num_key_value_heads must be one integer from 1 to 1024, got \[2, 2\]"),
        ({"head_dim": 16}, r"q_proj\.weight must have 64 rows, 4 heads of 16 .* got shape \[32, 32\]"),
        ({"num_key_value_heads": 4}, r"k_proj\.weight must have 32 rows, 4 key heads of 8"),
        ({"query_pre_attn_scalar": -1}, r"query_pre_attn_scalar must be a number above 0 and at most 1e\+12, got -1"),
        ({"attention_multiplier": "x"}, r"attention_multiplier must be a number above 0 and at most 1e\+12, got 'x'"),
    ],
)
def test_bad_configs(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    folder(tmp_path, weights(), {**CONFIG, **change})
    with pytest.raises(ArgumentError, match=words):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(("text", "words"), [("{", "must be JSON"), ("[1]", "must be a JSON object, got list")])
def test_a_config_that_is_none(tmp_path: Path, text: str, words: str) -> None:
    folder(tmp_path, weights())
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ArgumentError, match=words):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(("options", "words"), [({"keys": 1}, "keys: must"), ({"phase": "late"}, "phase: must")])
def test_bad_arguments(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        read_checkpoint(folder(tmp_path, weights()), **options)


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 8**-0.5),
        ({"query_pre_attn_scalar": 16}, 0.25),
        ({"attention_multiplier": 0.125}, 0.125),
        ({"model_type": "mpt", "attn_config": {"softmax_scale": 0.5}}, 0.5),
        ({"scale_attn_weights": False}, 1.0),
        ({"model_type": "gemma4_text"}, 1.0),
        ({"model_type": "zamba2"}, 0.5),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "mscale": 2.0, "mscale_all_dim": 1.0}},
            8**-0.5 * ((0.2 * np.log(8.0) + 1) / (0.1 * np.log(8.0) + 1)) ** 2,
        ),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, 8**-0.5 * (0.1 * np.log(4.0) + 1) ** 2),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 1.5}}, 8**-0.5 * 2.25),
        (
            {"rope_scaling": {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 16}},
            8**-0.5 * (1 + np.log(4.0) / np.log(16.0)),
        ),
    ],
)
def test_the_scale_that_is_set(tmp_path: Path, config: dict[str, Any], scale: float) -> None:
    tensors = weights()
    audit = read_checkpoint(folder(tmp_path, tensors, {**CONFIG, **config}))
    assert audit.layers[0].of("scale") == pytest.approx([scale] * 4)
    predicted = [8 * scale**2 * variance for variance in by_hand(tensors)]
    assert audit.layers[0].of("predicted_variance") == pytest.approx(predicted)


def test_an_unknown_model_type_is_told(tmp_path: Path) -> None:
    audit = read_checkpoint(folder(tmp_path, weights(), {**CONFIG, "model_type": "novel"}))
    (note,) = (finding for finding in audit.findings if finding.metric == "scale_assumed")
    assert (note.severity, note.source) == ("note", "model_type 'novel' is not known here")
    assert "<q, k> should be multiplied by 0.354 = 1/sqrt(d_k) there" in note.remedy


def test_names_as_first_published_and_with_prefixes(tmp_path: Path) -> None:
    tensors = weights()
    renamed = {"layers.0.attention.wq.weight": tensors[WQ], "layers.0.attention.wk.weight": tensors[WK]}
    save_file(renamed, tmp_path / "consolidated.safetensors")
    (tmp_path / "params.json").write_text(json.dumps({"dim": 32, "n_heads": 4, "n_kv_heads": 2}))
    assert variances(tmp_path) == pytest.approx(by_hand(tensors))
    prefixed = {f"module.language_model.{name}": tensor for name, tensor in tensors.items()}
    (tmp_path / "other").mkdir()
    nested = {"model_type": "llava", "text_config": CONFIG, "vision_config": {"num_attention_heads": 9}}
    assert variances(folder(tmp_path / "other", prefixed, nested)) == pytest.approx(by_hand(tensors))


def test_torch_s_own_layer(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    fused, bias = rng.standard_normal((96, 32)), rng.standard_normal(96)
    tensors = {"in_proj_weight": fused, "in_proj_bias": bias, "out_proj.weight": fused[:32], "out_proj.bias": bias[:32]}
    for prefix, name in (("", "attention"), ("encoder.layers.0.self_attn.", "encoder.layers.0.self_attn")):
        (tmp_path / name).mkdir()
        given = {prefix + key: value for key, value in tensors.items()}
        (layer,) = read_checkpoint(folder(tmp_path / name, given, {"hidden_size": 32, "num_heads": 4})).layers
        assert layer.name == name
        for head, variance in enumerate(layer.of("predicted_variance")):
            w_q, w_k = (fused[start + 8 * head : start + 8 * head + 8] for start in (0, 32))
            b_q = bias[8 * head : 8 * head + 8]
            predicted = np.trace(w_q.T @ w_k @ w_k.T @ w_q) + b_q @ w_k @ w_k.T @ b_q
            assert variance == pytest.approx(predicted / 8)


@pytest.mark.parametrize("kind", ["hf_olmo", "internlm2"])
def test_fused_layouts_without_a_model_in_transformers(tmp_path: Path, kind: str) -> None:
    """Queries, keys and values in blocks, and a key and value after the queries that share them."""
    tensors, rng = weights(), np.random.default_rng(5)
    query, key, value = tensors[WQ], tensors[WK], rng.standard_normal((16, 32)).astype(np.float32)
    if kind == "hf_olmo":
        fused = np.concatenate([query, key, value])
        block = "model.transformer.blocks.0."
        names = {f"{block}att_proj.weight": fused, f"{block}attn_out.weight": query, f"{block}ff_proj.weight": query}
        config = {"model_type": kind, "d_model": 32, "n_heads": 4, "n_kv_heads": 2}
    else:
        groups = [
            part for g in range(2) for part in (query[16 * g : 16 * g + 16], key[8 * g :][:8], value[8 * g :][:8])
        ]
        names = {"model.layers.0.attention.wqkv.weight": np.concatenate(groups)}
        names["model.layers.0.attention.wo.weight"] = query
        config = {**CONFIG, "model_type": kind}
    audit = read_checkpoint(folder(tmp_path, names, config))
    assert audit.layers[0].of("predicted_variance") == pytest.approx(by_hand(tensors))
    assert audit.unknown == ()


def test_parts_have_their_own_configs(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    tensors = {f"language_model.{name}": tensor for name, tensor in weights().items()}
    for part in ("q_proj", "k_proj"):
        tensors[f"vision_tower.layers.0.self_attn.{part}.weight"] = rng.standard_normal((24, 24))
    seen = {"model_type": "strange", "hidden_size": 24, "num_attention_heads": 6}
    audit = read_checkpoint(
        folder(tmp_path, tensors, {"model_type": "both", "text_config": CONFIG, "vision_config": seen})
    )
    assert [(layer.name, len(layer.heads), layer.heads[0]["d_k"]) for layer in audit.layers] == [
        ("language_model.model.layers.0.self_attn", 4, 8.0),
        ("vision_tower.layers.0.self_attn", 6, 4.0),
    ]
    assert ["'strange'" in finding.source for finding in audit.findings if finding.metric == "scale_assumed"] == [True]


def test_a_width_that_neither_config_nor_weights_tell(tmp_path: Path) -> None:
    """Rows of queries, keys and values that take turns could be of any width."""
    fused = {"h.0.self_attention.query_key_value.weight": np.ones((96, 32), np.float32)}
    with pytest.raises(ArgumentError, match="must have head_dim or hidden_size"):
        read_checkpoint(folder(tmp_path, fused, {"model_type": "bloom", "n_head": 4}))


def test_layers_are_compared_with_their_own_kind(tmp_path: Path) -> None:
    own = {name: tensor / 4 for name, tensor in weights(layers=3).items()}
    other = {name.replace("self_attn", "cross_attn"): tensor for name, tensor in weights(1, layers=3).items()}
    assert read_checkpoint(folder(tmp_path, own | other)).verdict == "healthy"
    own[WQ.replace(".0.", ".1.")] *= 40
    audit = read_checkpoint(folder(tmp_path, own | other))
    assert [finding.layer for finding in audit.findings if finding.metric == "predicted_over_others"] == [
        "model.layers.1.self_attn"
    ]


def test_unknown_names_are_listed_and_not_guessed(tmp_path: Path) -> None:
    tensors = weights(layers=2)
    strange = {
        "model.layers.1.self_attn.temperature": np.ones(4),
        "model.layers.2.self_attn.q_a_proj.weight": np.ones((8, 32)),
        "model.layers.3.attention.query_key_value.weight": np.ones((96, 32)),
    }
    usual = {
        "model.layers.0.self_attn.v_proj.weight": np.ones((16, 32)),
        "model.layers.0.post_attention_layernorm.weight": np.ones(32),
        "model.embed_tokens.weight": np.ones((50, 32)),
        "model.layers.0.mlp.gate_proj.weight": np.ones((50, 32)),
    }
    audit = read_checkpoint(folder(tmp_path, tensors | strange | usual))
    assert [layer.name for layer in audit.layers] == ["model.layers.0.self_attn"]
    assert set(audit.unknown) == {*strange, WQ.replace(".0.", ".1."), WK.replace(".0.", ".1.")}
    save_file(strange, tmp_path / "model.safetensors")
    with pytest.raises(ArgumentError, match=r"no query and key projection that is known.*query_key_value\.weight"):
        read_checkpoint(tmp_path)


def test_packed_numbers_are_listed_and_not_guessed(tmp_path: Path) -> None:
    tensors = weights(layers=2)
    name = WQ.replace(".0.", ".1.")
    audit = read_checkpoint(folder(tmp_path, tensors | {name: np.ones((32, 32), np.int8)}))
    assert [layer.name for layer in audit.layers] == ["model.layers.0.self_attn"]
    assert name in audit.unknown


def test_layers_come_in_their_order() -> None:
    names = [f"h.{layer}.attn.{part}.weight" for layer in (10, 2, 0) for part in ("q_proj", "k_proj")]
    assert [layer.index for layer in find_projections(names)[0]] == [0, 2, 10]


def test_a_nan_in_the_weights_is_critical_and_json_stays_json(tmp_path: Path) -> None:
    tensors = weights(layers=2)
    tensors[WQ][9, 3] = np.nan
    audit = read_checkpoint(folder(tmp_path, tensors))
    critical = [
        (finding.layer, finding.head, finding.metric) for finding in audit.findings if finding.severity == "critical"
    ]
    assert critical == [("model.layers.0.self_attn", 1, "non_finite_weights")]
    written = json.loads(json.dumps(audit.to_dict(), allow_nan=False))
    assert written["layers"][0]["heads"][1]["predicted_variance"] is None
    assert written["layers"][0]["heads"][0]["predicted_variance"] == pytest.approx(by_hand(tensors)[0])


def test_the_schema(tmp_path: Path) -> None:
    tensors = weights(layers=3)
    tensors[WQ.replace(".0.", ".1.")] *= 40
    written = read_checkpoint(folder(tmp_path, tensors)).to_dict()
    assert written["schema_version"] == 1
    assert written["verdict"] == "warning"
    assert [layer["name"] for layer in written["layers"]] == [f"model.layers.{layer}.self_attn" for layer in range(3)]
    assert all(
        isinstance(value, float) for layer in written["layers"] for head in layer["heads"] for value in head.values()
    )
    for finding in written["findings"]:
        assert list(finding) == ["layer", "head", "metric", "severity", "value", "threshold", "source", "remedy"]


# (name of the file's layout, shapes of its tensors, type, config); none is held as a whole by the writer either.
LARGE = {
    "split, bfloat16": (
        {WQ: (8192, 8192), WK: (8192, 8192)}, "BF16", 2,
        {"model_type": "llama", "hidden_size": 8192, "num_attention_heads": 64},
    ),
    "turned, float32": (
        {"h.0.attn.c_attn.weight": (4096, 12288)}, "F32", 4, {"model_type": "gpt2", "n_embd": 4096, "n_head": 32},
    ),
    "fused, float16": (
        {"transformer.h.0.self_attention.query_key_value.weight": (12288, 8192)}, "F16", 2,
        {"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 64, "num_kv_heads": 16,
         "new_decoder_architecture": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LARGE)
def test_peak_memory_is_far_below_the_largest_tensor(tmp_path: Path, case: str) -> None:
    """A sparse file of 200 MB and more; the promise is 1.5 times the largest tensor, the pages of the file included."""
    shapes, dtype, size, config = LARGE[case]
    write_sparse(tmp_path / "model.safetensors", shapes, dtype, size)
    (tmp_path / "config.json").write_text(json.dumps(config))
    largest = max(size * rows * columns for rows, columns in shapes.values())
    assert peak_of(tmp_path) < 0.75 * largest


def test_the_test_of_memory_can_fail(tmp_path: Path) -> None:
    shapes, dtype, size, _ = LARGE["turned, float32"]
    write_sparse(tmp_path / "model.safetensors", shapes, dtype, size)
    (name,) = shapes
    whole = f"safe_open(path, 'np').get_tensor({name!r}).sum()"
    assert peak_of(tmp_path / "model.safetensors", whole) > 0.75 * size * 4096 * 12288


def write_sparse(path: Path, shapes: dict[str, tuple[int, int]], dtype: str, size: int) -> None:
    header, end = {}, 0
    for name, (rows, columns) in shapes.items():
        start, end = end, end + size * rows * columns
        header[name] = {"dtype": dtype, "shape": [rows, columns], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def peak_of(path: Path, work: str = "read_checkpoint(path)") -> int:
    """Bytes by which the largest resident size of a fresh process grows.

    VmHWM and not getrusage: the latter still remembers the process that started this one.
    """
    code = f"""
        import re, numpy, ml_dtypes
        from pathlib import Path
        from safetensors import safe_open
        from rootdk.audit import read_checkpoint
        def peak():
            return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
        numpy.ones((512, 512)) @ numpy.ones((512, 512)); numpy.linalg.eigh(numpy.eye(128))
        path, before = {str(path)!r}, peak()
        {work}
        print(peak() - before)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # on a busy machine its threads wait for each other
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=one_thread)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
