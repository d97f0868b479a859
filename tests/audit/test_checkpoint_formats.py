"""The same model in every kind of file: the numbers are those of the same weights as safetensors."""

import json
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
from checkpoint_formats import (
    PACKINGS,
    Arrays,
    gguf_file,
    gguf_rounded,
    model,
    npz,
    onnx_file,
    packed_file,
    permuted,
    rounded,
    safetensors,
    torch_file,
    with_config,
)
from checkpoint_zoo import built, saved
from safetensors.numpy import load_file, save_file

from rootdk.audit import read_checkpoint
from rootdk.audit.formats import find_tensors
from rootdk.errors import ArgumentError

METRICS = ("predicted_variance", "variance_bound", "spectral_bound", "scale", "non_finite_weights")


def numbers(path: Path) -> list[dict[str, float]]:
    """Every number of every head, layer by layer."""
    audit = read_checkpoint(path)
    assert audit.unknown == ()
    return [
        {metric: head[metric] for metric in METRICS if metric in head} for layer in audit.layers for head in layer.heads
    ]


def expected(tmp_path: Path, arrays: Arrays) -> list[dict[str, float]]:
    """By the format that has been read all along; layers of float64, where arrays have it."""
    heads = numbers(safetensors(tmp_path / "safetensors", arrays))
    assert len(heads) == 8
    return heads


def same(heads: list[dict[str, float]], wanted: list[dict[str, float]], rel: float = 1e-12) -> bool:
    return len(heads) == len(wanted) and all(
        left == pytest.approx(right, rel=rel) for left, right in zip(heads, wanted, strict=True)
    )


# ---- torch


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"])
def test_what_torch_saves(tmp_path: Path, name: str, old: bool) -> None:
    arrays = model()
    wanted = expected(tmp_path, arrays)
    assert numbers(torch_file(tmp_path, arrays, name, old)) == wanted
    assert numbers(tmp_path / name) == wanted


def odd_tensors() -> dict[str, Any]:
    """Types, views into one storage, transposes, parameters, and names in any order."""
    draw = torch.Generator().manual_seed(0)
    whole = torch.randn(40, 24, generator=draw)
    return {
        "double": torch.randn(3, 4, generator=draw, dtype=torch.float64),
        "half": torch.randn(5, generator=draw).half(),
        "bfloat16": torch.randn(6, 2, generator=draw).bfloat16(),
        "rows of another": whole[8:16],
        "transposed": whole.T,
        "the other way": torch.randn(4, 8, generator=draw).T.contiguous(),
        "parameter": torch.nn.Parameter(torch.randn(2, 3, generator=draw)),
        "one": torch.randn((), generator=draw),
    }


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("around", ["", "state_dict", "model"])
def test_tensors_are_those_that_torch_loads(tmp_path: Path, old: bool, around: str) -> None:
    """torch's own reader is the authority, for every tensor and for slices of it."""
    tensors = odd_tensors()
    whole = {around: tensors, "epoch": 3, "note": "x", "rate": 0.5, "none": None} if around else tensors
    torch.save(whole, tmp_path / "a.bin", _use_new_zipfile_serialization=not old)
    theirs = torch.load(tmp_path / "a.bin", weights_only=True)
    ours = find_tensors(tmp_path / "a.bin")
    assert set(ours) == set(tensors)
    for name, tensor in (theirs[around] if around else theirs).items():
        wanted = tensor.detach().double().numpy()
        assert ours.shape(name) == wanted.shape
        assert np.array_equal(ours.read(name).reshape(wanted.shape), wanted)
        if wanted.ndim == 2:
            assert np.array_equal(ours.read(name, slice(1, 3), slice(1, 2)), wanted[1:3, 1:2])


def test_tensors_with_gaps_are_listed_and_not_misread(tmp_path: Path) -> None:
    arrays = model()
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    wide = torch.randn(64, 128)
    tensors["model.layers.1.self_attn.q_proj.weight"] = wide[:, ::2]
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    audit = read_checkpoint(with_config(tmp_path))
    assert [layer.name for layer in audit.layers] == ["model.layers.0.self_attn"]
    assert "model.layers.1.self_attn.q_proj.weight" in audit.unknown


def test_shards_of_torch(tmp_path: Path) -> None:
    arrays = model()
    wanted, places = expected(tmp_path, arrays), {}
    for number, (name, array) in enumerate(arrays.items()):
        file = f"pytorch_model-{number + 1:05}-of-{len(arrays):05}.bin"
        torch.save({name: torch.from_numpy(array)}, tmp_path / file, _use_new_zipfile_serialization=bool(number % 2))
        places[name] = file
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    assert numbers(with_config(tmp_path)) == wanted
    assert numbers(tmp_path / "pytorch_model.bin.index.json") == wanted


# ---- npz


def test_npz(tmp_path: Path) -> None:
    arrays = model()
    wanted = expected(tmp_path, arrays)
    assert numbers(npz(tmp_path, arrays)) == wanted
    turned = {name: np.asfortranarray(array) for name, array in arrays.items()}
    assert numbers(npz(tmp_path, turned)) == wanted
    halves = {name: array.astype(np.float16) for name, array in arrays.items()}
    assert numbers(npz(tmp_path, halves)) == expected(tmp_path, halves)
    brain = {name: array.astype(ml_dtypes.bfloat16) for name, array in arrays.items()}
    assert numbers(npz(tmp_path, brain)) == expected(tmp_path, brain)


def test_no_word_of_a_header_reaches_the_terminal(tmp_path: Path) -> None:
    """Python warns of an escape that it does not know, and shows the character: one that terminals obey, perhaps."""
    header = b"{'descr': '<f4\\\x1b', 'fortran_order': False, 'shape': (1,)}\n"
    with zipfile.ZipFile(tmp_path / "weights.npz", "w") as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + bytes(4))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with pytest.raises(ArgumentError, match="w is no array of numpy"):
            find_tensors(tmp_path)
    assert not shown


def test_a_compressed_npz_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "weights.npz", **model())
    with pytest.raises(ArgumentError, match=r"its arrays are compressed: write it again with numpy\.savez"):
        read_checkpoint(with_config(tmp_path))


def test_a_program_of_torch_says_what_it_is(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(4, 4)), tmp_path / "model.pt")
    with pytest.raises(ArgumentError, match=r"is a program with its weights .*torch\.jit\.save"):
        read_checkpoint(tmp_path / "model.pt")


def test_whisper_as_first_published(tmp_path: Path) -> None:
    """Other names of modules and norms, and the count of heads beside the weights: the numbers are the same."""
    network = built("whisper")
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    wanted = numbers(saved(network, tmp_path))
    names = {
        "model.": "", "layers.": "blocks.", "self_attn_layer_norm": "attn_ln", "encoder_attn_layer_norm":
        "cross_attn_ln", "self_attn": "attn", "encoder_attn": "cross_attn", "q_proj": "query", "k_proj": "key",
        "v_proj": "value", "out_proj": "out", "encoder.layer_norm": "encoder.ln_post",
    }  # fmt: skip
    state = {}
    for name, tensor in network.state_dict().items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)  # noqa: PLW2901
        state[name] = tensor
    config = network.config
    dims = {"n_audio_state": config.d_model, "n_audio_head": config.encoder_attention_heads}
    torch.save({"dims": dims | {"n_text_head": config.decoder_attention_heads}, "model_state_dict": state},
               tmp_path / "tiny.pt")  # fmt: skip
    audit = read_checkpoint(tmp_path / "tiny.pt")
    assert audit.unknown == ()
    assert audit.model["model_type"] == "whisper"
    key = "predicted_variance"
    assert sorted(head[key] for head in numbers(tmp_path / "tiny.pt")) == pytest.approx(
        sorted(head[key] for head in wanted), rel=1e-12
    )


# ---- GGUF


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_gguf_is_what_its_blocks_stand_for(tmp_path: Path, kind: str) -> None:
    path = gguf_file(tmp_path / "m.gguf", model(), kind)
    assert same(numbers(path), expected(tmp_path, gguf_rounded(model(), kind)))


@pytest.mark.parametrize(
    "kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ3_S", "TQ2_0"]
)
def test_slices_of_every_kind_of_block(tmp_path: Path, kind: str) -> None:
    """Bytes at random, with scales that are finite: a slice is that of the whole, by the package."""
    named = gguf.GGMLQuantizationType[kind]
    size = gguf.GGML_QUANT_SIZES[named][1] * (512 // gguf.GGML_QUANT_SIZES[named][0])
    raw = np.random.default_rng(0).integers(0, 0x3C, (24, size), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", raw, raw_dtype=named)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole, tensors = gguf.quants.dequantize(raw, named).astype(np.float64), find_tensors(tmp_path / "m.gguf")
    assert np.isfinite(whole).all()
    assert tensors.shape("w") == whole.shape
    for rows, columns in ((slice(None), slice(None)), (slice(3, 9), slice(None)), (slice(5, 7), slice(100, 401))):
        assert np.array_equal(tensors.read("w", rows, columns), whole[rows, columns])


def test_the_order_of_a_llama_s_rows_cancels(tmp_path: Path) -> None:
    arrays, moved = model(), {}
    for name, array in arrays.items():
        heads = 4 if "q_proj" in name else 2
        moved[name] = permuted(array, heads) if "q_proj" in name or "k_proj" in name else array
    assert not np.array_equal(
        moved["model.layers.0.self_attn.q_proj.weight"], arrays["model.layers.0.self_attn.q_proj.weight"]
    )
    assert same(numbers(gguf_file(tmp_path / "m.gguf", moved)), expected(tmp_path, arrays))


def test_gains_of_gemma_are_stored_as_they_are_used(tmp_path: Path) -> None:
    arrays = model()
    raised = {name: array + 1 if array.ndim == 1 else array for name, array in arrays.items()}
    wanted = numbers(with_config(safetensors(tmp_path / "safetensors", arrays), model_type="gemma2", head_dim=16))
    heads = numbers(gguf_file(tmp_path / "m.gguf", raised, architecture="gemma2"))
    assert same(heads, wanted, rel=1e-6)  # 1 + w was rounded


@pytest.mark.parametrize(
    ("metadata", "scale"),
    [
        ({}, 0.25),
        ({"attention.scale": 0.5}, 0.5),
        ({"architecture": "gemma2", "block_count": 46}, 0.25),
        ({"architecture": "gemma2", "block_count": 46, "embedding_length": 256}, 0.125),
        ({"architecture": "gemma2", "block_count": 26, "embedding_length": 256, "attention.key_length": 16}, 0.25),
    ],
)
def test_the_scale_that_metadata_set(tmp_path: Path, metadata: dict[str, Any], scale: float) -> None:
    metadata = {"attention.key_length": 16, **metadata}
    audit = read_checkpoint(gguf_file(tmp_path / "m.gguf", model(), **metadata))
    assert audit.layers[0].of("scale") == pytest.approx([scale] * 4)
    assert audit.model["model_type"] == metadata.get("architecture", "llama")


def test_fused_projections_norms_and_biases_in_gguf(tmp_path: Path) -> None:
    """GPT-2 has one projection and biases, Qwen 3 a norm of queries and of keys."""
    arrays, rng = model(layers=1), np.random.default_rng(7)
    own = "model.layers.0.self_attn."
    query, key, value = (arrays[f"{own}{part}.weight"] for part in ("q_proj", "k_proj", "v_proj"))
    bias = rng.standard_normal(128).astype(np.float32)
    fused = {
        "model.layers.0.attn_qkv.weight": np.concatenate([query, key, value]),
        "model.layers.0.attn_qkv.bias": bias,
    }
    split = {**arrays, f"{own}q_proj.bias": bias[:64], f"{own}k_proj.bias": bias[64:96]}
    gain = {"model.layers.0.input_layernorm.weight": arrays["model.layers.0.input_layernorm.weight"]}
    assert same(numbers(gguf_file(tmp_path / "m.gguf", {**fused, **gain})), numbers(safetensors(tmp_path / "s", split)))
    gains = [rng.uniform(0.5, 2.0, 16).astype(np.float32) for _ in range(2)]
    normed = {**arrays, f"{own}q_norm.weight": gains[0], f"{own}k_norm.weight": gains[1]}
    named = {"q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}
    moved = {next((name.replace(f"self_attn.{old}", new) for old, new in named.items() if old in name), name): array
             for name, array in normed.items()}  # fmt: skip
    heads = numbers(gguf_file(tmp_path / "m.gguf", moved, architecture="qwen3"))
    wanted = numbers(with_config(safetensors(tmp_path / "s", normed), model_type="qwen3", rms_norm_eps=1e-6))
    assert same(heads, wanted, rel=1e-6)  # the epsilon is a float32 in one of them


def test_parts_of_gguf(tmp_path: Path) -> None:
    arrays = model()
    wanted, names = expected(tmp_path, arrays), list(arrays)
    for number in (0, 1):
        part = {name: arrays[name] for name in names[5 * number : 5 * number + 5]}
        gguf_file(tmp_path / f"m-{number + 1:05}-of-00002.gguf", part)
    for path in (tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"):
        assert numbers(path) == wanted
    shutil.rmtree(tmp_path / "safetensors")
    assert numbers(tmp_path) == wanted
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(ArgumentError, match=r"one of 2 parts, and m-00002-of-00002\.gguf is absent"):
        read_checkpoint(tmp_path)


def test_a_name_that_counts_no_parts_is_of_a_whole_file(tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "m-00001-of-00000.gguf", model())
    assert numbers(path) == numbers(path.rename(tmp_path / "m.gguf"))


def test_heads_that_differ_by_layer_in_gguf(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.embedding_length", 64)
    writer.add_uint32("llama.attention.key_length", 16)
    writer.add_array("llama.attention.head_count", [4, 2])
    writer.add_array("llama.attention.head_count_kv", [2, 1])
    rng = np.random.default_rng(0)
    for layer, heads in enumerate((4, 2)):
        for part, count in (("attn_q", heads), ("attn_k", heads // 2)):
            writer.add_tensor(f"blk.{layer}.{part}.weight", rng.standard_normal((16 * count, 64)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert [len(layer.heads) for layer in read_checkpoint(path).layers] == [4, 2]


def test_a_missing_package_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rootdk.audit.formats.gguf import GgufMissingError, _blocks

    plain, packed = (gguf_file(tmp_path / f"{kind}.gguf", model(), kind) for kind in ("F16", "Q8_0"))
    _blocks.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    assert len(read_checkpoint(plain).layers) == 2
    with pytest.raises(GgufMissingError, match=r"need the package gguf.*pip install 'rootdk\[audit\]'"):
        read_checkpoint(packed)


# ---- few bits in safetensors


@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_weights_are_what_they_stand_for(tmp_path: Path, packing: str) -> None:
    stands = packed_file(tmp_path, model(), packing)
    wanted = expected(tmp_path, {name: array.astype(np.float64) for name, array in stands.items()})
    assert same(numbers(tmp_path), wanted)
    # And what they stand for is what they were made of, as far as so few bits can tell.
    exact = expected(tmp_path, model())
    worst = max(abs(a["predicted_variance"] / b["predicted_variance"] - 1) for a, b in zip(wanted, exact, strict=True))
    assert 0 < worst < {"float8": 0.05, "bnb_in": 0.01, "gptq_8": 0.02}.get(packing[:6], 0.35)


def test_zeros_of_gptq_as_its_second_format_stores_them(tmp_path: Path) -> None:
    """The first stores a zero less 1, the second as it is; nothing but the config tells them apart."""
    stands = packed_file(tmp_path, model(), "gptq")
    wanted = expected(tmp_path, {name: array.astype(np.float64) for name, array in stands.items()})
    with_config(tmp_path, quantization_config={"quant_method": "gptq", "checkpoint_format": "gptq"})
    assert same(numbers(tmp_path), wanted)
    with_config(tmp_path, quantization_config={"quant_method": "gptq", "checkpoint_format": "gptq_v2"})
    assert not same(numbers(tmp_path), wanted, rel=1e-3)


@pytest.mark.parametrize("packing", PACKINGS)
def test_slices_of_packed_weights(tmp_path: Path, packing: str) -> None:
    """Wider than a block of any kind, and cut where nothing begins."""
    weight = np.random.default_rng(9).standard_normal((192, 320)).astype(np.float32)
    stands = packed_file(tmp_path, {"a.q_proj.weight": weight}, packing)["a.q_proj.weight"]
    from rootdk.audit.config import Config
    from rootdk.audit.formats.packed import unpacked

    stored = unpacked(find_tensors(tmp_path), Config.beside(tmp_path).fields)["a.q_proj.weight"]
    stands = stands.T if stored.inputs_first else stands
    assert stored.shape == stands.shape
    for rows, columns in ((slice(None), slice(None)), (slice(33, 130), slice(None)), (slice(7, 150), slice(13, 171))):
        np.testing.assert_allclose(stored.read(rows, columns), stands[rows, columns], rtol=1e-12)


@pytest.mark.parametrize("kind", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_every_number_of_float8(tmp_path: Path, kind: Any) -> None:
    codes = np.arange(256, dtype=np.uint8).view(kind).reshape(16, 16)
    safetensors(tmp_path, {"w": codes})
    assert np.array_equal(find_tensors(tmp_path).read("w"), codes.astype(np.float64), equal_nan=True)


@pytest.mark.parametrize("packing", ["bnb_four_bits", "bnb_nested"])
def test_four_bits_in_a_row_are_those_in_a_column(tmp_path: Path, packing: str) -> None:
    packed_file(tmp_path, model(), packing)
    wanted, arrays = numbers(tmp_path), load_file(tmp_path / "model.safetensors")
    save_file(
        {name: array if "norm" in name else array.reshape(1, -1) for name, array in arrays.items()},
        tmp_path / "model.safetensors",
    )
    assert numbers(tmp_path) == wanted


def test_a_block_larger_than_any_is_not_read(tmp_path: Path) -> None:
    packed_file(tmp_path, model(), "bnb_four_bits")
    arrays = load_file(tmp_path / "model.safetensors")
    for name in [name for name in arrays if "quant_state" in name]:
        state = json.loads(arrays[name].tobytes()) | {"blocksize": 10**30}
        arrays[name] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(ArgumentError, match="no query and key projection"):
        read_checkpoint(tmp_path)


def test_scales_that_are_missing_leave_weights_unread(tmp_path: Path) -> None:
    arrays = model()
    safetensors(tmp_path, {name: array.astype(ml_dtypes.float8_e4m3fn) for name, array in arrays.items()})
    with pytest.raises(ArgumentError, match=r"no query and key projection.*F8_E4M3"):
        read_checkpoint(tmp_path)


# ---- ONNX


def unrotated(tmp_path: Path, arrays: Arrays) -> list[dict[str, float]]:
    """The same model without rotary embeddings, which the graphs here have none of: only bounds are others."""
    return numbers(with_config(safetensors(tmp_path / "safetensors", arrays), model_type="opt"))


@pytest.mark.parametrize("style", ["plain", "roots", "fused", "outside", "branch", "older"])
def test_onnx(tmp_path: Path, style: str) -> None:
    assert same(numbers(onnx_file(tmp_path / "model.onnx", model(), style)), unrotated(tmp_path, model()))
    audit = read_checkpoint(tmp_path / "model.onnx")
    assert audit.model["scale_source"] == "its graph"
    names = ["model.layers.{}.self_attn" if style == "older" else "layers.{}.attention"] * 2
    assert [layer.name for layer in audit.layers] == [name.format(number) for number, name in enumerate(names)]


@pytest.mark.parametrize("style", ["integers", "scaled", "cast"])
def test_onnx_of_eight_bits(tmp_path: Path, style: str) -> None:
    stands: Arrays = {}
    for name, array in model().items():
        codes, scale = rounded(array) if array.ndim == 2 else (array, np.float32(1))
        stands[name] = codes * scale.astype(np.float64)
    assert same(numbers(onnx_file(tmp_path / "model.onnx", model(), style)), unrotated(tmp_path, stands))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "qwen2"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_graphs_of_torch(tmp_path: Path, name: str, attention: str) -> None:
    """What torch exports of whole models; weights are the same numbers, the scale went through float32."""
    network = built(name)
    with torch.no_grad():
        for path, parameter in network.named_parameters():
            if path.endswith("bias") or parameter.ndim == 1:  # they are all alike at the start, and shared in a graph
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(path))))
    wanted = numbers(saved(network, tmp_path))
    network.set_attn_implementation(attention)
    network.config.use_cache = False
    torch.onnx.export(network, (torch.randint(0, 50, (1, 9)),), tmp_path / "m.onnx", dynamo=True, verbose=False)
    assert same(numbers(tmp_path / "m.onnx"), wanted, rel=1e-6)


def test_a_graph_without_attention(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "g", [given], [made])
    save(helper.make_model(graph), tmp_path / "a.onnx")
    with pytest.raises(ArgumentError, match="it has no attention: no softmax in its graph is over products"):
        read_checkpoint(tmp_path / "a.onnx")


def fused_graph(path: Path, style: str, weight: Any, bias: Any) -> Path:
    """One projection of queries, keys and values of four heads of 8, and a choice among five classes at the end.

    style   stacked or gathered: stood beside each other by a reshape, then one is taken, as PaddlePaddle and timm have
            it; sliced: columns of the projection, then (tokens, heads, d_k), as torch.nn.MultiheadAttention has it;
            rounded: sliced, with activations and weights rounded to 8 bits and zero points in a list
    """
    from onnx import TensorProto, helper, numpy_helper, save

    held: dict[str, Any] = {"bias": bias, "five": np.array([0, 0, 3, 4, 8]), "three": np.array([-1, 4, 8])}
    held |= {f"at{place}": np.array([place]) for place in (0, 1, 2, 3, 32, 64)} | {"scale": np.float32([0.25])}
    held |= {f"only{place}": np.array(place) for place in (0, 1)} | {"classes": np.ones((32, 5), np.float32)}
    nodes = []

    def add(kind: str, inputs: list[str], output: str, **options: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **options))
        return output

    def eighth(value: str) -> str:
        if style != "rounded":
            return value
        return add("DequantizeLinear", [add("QuantizeLinear", [value, "step"], f"{value}_8"), "step"], f"{value}_f")

    tensors, given = [], "x"
    if style == "rounded":
        codes = np.rint(weight.T / 0.01).astype(np.int8)
        held |= {"step": np.float32(0.1), "codes": codes, "steps": np.full(96, 0.01, np.float32)}
        tensors.append(helper.make_tensor("zeros", TensorProto.INT8, [96], [0] * 96))
        made, given = add("DequantizeLinear", ["codes", "steps", "zeros"], "weight", axis=1), eighth("x")
    else:
        held["weight"], made = weight.T, "weight"
    whole = add("Add", [eighth(add("MatMul", [given, made], "product")), "bias"], "whole")
    sides = {}
    if style in ("stacked", "gathered"):
        whole = add("Transpose", [add("Reshape", [whole, "five"], "apart")], "front", perm=[2, 0, 3, 1, 4])
    for place, side in enumerate("qk"):
        if style == "stacked":
            taken = add("Slice", [whole, f"at{place}", f"at{place + 1}", "at0"], f"{side}_taken")
            sides[side] = add("Squeeze", [taken, "at0"], side)
        elif style == "gathered":
            sides[side] = add("Gather", [whole, f"only{place}"], side, axis=0)
        else:
            taken = add("Slice", [whole, f"at{32 * place}", f"at{32 * place + 32}", "at2"], f"{side}_taken")
            sides[side] = add("Transpose", [add("Reshape", [taken, "three"], f"{side}_apart")], side, perm=[1, 0, 2])
    turned = add(
        "Transpose", [sides["k"]], "keys", perm=[0, 1, 3, 2] if style in ("stacked", "gathered") else [0, 2, 1]
    )
    scaled = eighth(add("Mul", [sides["q"], "scale"], "queries"))
    add("Softmax", [eighth(add("MatMul", [scaled, turned], "logits"))], "weights", axis=-1)
    add("Softmax", [add("MatMul", ["x", "classes"], "scores")], "y", axis=-1)
    tensors += [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in held.items()]
    x, y, weights = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y", "weights"))
    graph = helper.make_graph(nodes, "g", [x], [y, weights], tensors)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.mark.parametrize("style", ["stacked", "gathered", "sliced", "rounded"])
def test_onnx_of_one_projection(tmp_path: Path, style: str) -> None:
    rng = np.random.default_rng(0)
    weight, bias = (rng.standard_normal(shape).astype(np.float32) / 6 for shape in ((96, 32), 96))
    audit = read_checkpoint(fused_graph(tmp_path / "model.onnx", style, weight, bias))
    assert (audit.model["heads"], audit.model["d_k"], audit.unknown) == (4, 8, ())
    assert audit.model["scale"] == 0.25
    stands = np.rint(weight / np.float64(0.01)).astype(np.int8) * np.float64(np.float32(0.01))
    arrays = {"in_proj_weight": stands if style == "rounded" else weight, "in_proj_bias": bias}
    save_file(arrays, tmp_path / "model.safetensors")
    wanted = read_checkpoint(tmp_path / "model.safetensors", heads=4).layers[0].of("predicted_variance")
    assert audit.layers[0].of("predicted_variance") == pytest.approx([value / 2 for value in wanted], rel=1e-9)


# ---- what is given instead of a model


def content(name: str, tmp_path: Path) -> bytes:
    """A good file of each kind."""
    if name == "safetensors":
        return (safetensors(tmp_path / "made", model()) / "model.safetensors").read_bytes()
    if name == "GGUF":
        return gguf_file(tmp_path / "made.gguf", model()).read_bytes()
    if name == "ONNX":
        return onnx_file(tmp_path / "made.onnx", model()).read_bytes()
    if name == "npz":
        return (npz(tmp_path, model()) / "weights.npz").read_bytes()
    return (torch_file(tmp_path, model(), "made.bin", old=name == "old torch") / "made.bin").read_bytes()


KINDS = {
    "safetensors": ".safetensors",
    "GGUF": ".gguf",
    "torch": ".bin",
    "old torch": ".bin",
    "npz": ".npz",
    "ONNX": ".onnx",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_with_the_name_of_another_kind(tmp_path: Path, kind: str) -> None:
    raw, own = content(kind, tmp_path), KINDS[kind]
    for suffix in set(KINDS.values()) - {own}:
        (tmp_path / f"strange{suffix}").write_bytes(raw)
        named = kind.removeprefix("old ")
        words = rf"strange{suffix} is an? {named} file, whatever its name says; rename it to strange{own}$"
        with pytest.raises(ArgumentError, match=words):
            read_checkpoint(tmp_path / f"strange{suffix}")


def write(folder: Path, *names: str, raw: bytes = b"{}") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)
    return folder


@pytest.mark.parametrize(
    ("names", "raw", "path", "words"),
    [
        (("m-00002-of-00003.pt",), b"", "m-00002-of-00003.pt", r"part 2 of 3 of a model; the index .* absent"),
        (("m-00002-of-00003.pt", "m.bin.index.json"), b"", "m-00002-of-00003.pt", r"give the folder, or m\.bin\.index"),
        (("m-00002-of-00003.safetensors",), b"", "", "part 2 of 3 of a model"),
        (("tokenizer.json", "vocab.txt"), b"{}", "", "it has a tokenizer alone: give the folder"),
        (("tokenizer.json",), b"{}", "tokenizer.json", "belongs to a model and holds no weights; give its folder"),
        (("config.json",), b"{}", "config.json", "belongs to a model and holds no weights; give its folder"),
        (("a/b/model.safetensors", "x"), b"", "", r"they are deeper, in a/b, as model\.safetensors: give that"),
        (("a/onnx/model.onnx",), b"", "", r"they are deeper, in a/onnx, as model\.onnx"),
        (("model.h5", "config.json"), b"", "", r"model\.h5 is of a kind that is not read: convert it to safetensors"),
        (("model.safetensors",), b"version https://git-lfs", "", "a pointer of Git LFS.*git lfs pull"),
        (("model.bin",), b"<!DOCTYPE html><html>", "", "model.bin is a web page; fetch the file itself"),
        (("model.gguf",), b"ggjt\3\0\0\0", "", "GGML of before GGUF; convert it to GGUF"),
        (("model.bin",), b"\x1f\x8b\x08", "", "compressed with gzip; unpack it first"),
        (("model.bin",), b"\6\0\0\0\f\0WhisperSpec\0\3", "", "of CTranslate2 .* give the model that it was made"),
        (("m.gguf.part01",), b"\7", "m.gguf.part01", r"is a piece of m\.gguf; put the pieces together"),
        (("a.gguf", "b.gguf"), b"", "", r"has 2 gguf files \(a\.gguf, b\.gguf\); name one of them"),
        (("training_args.bin", "optimizer.pt"), b"", "", "has no weights"),
        ((), b"", "absent.gguf", r"must be a model folder, a file \(\.safetensors, \.gguf.*absent\.gguf is absent"),
    ],
)  # fmt: skip
def test_what_is_no_model_says_what_to_give(tmp_path: Path, names: Any, raw: bytes, path: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        read_checkpoint(write(tmp_path, *names, raw=raw) / path)


@pytest.mark.parametrize("name", ["bert-base-uncased", "org/Model-7B-v0.3"])
def test_the_name_of_a_model_on_a_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=rf"there is no {name} here, .* `hf download {name}` prints that folder"):
        read_checkpoint(name)
