"""One small model in every kind of file that is read: written by the library of the format, or as its definition says.

The model is a llama of two layers: four query heads of 16 over two key heads, a norm before. Whatever rounds its
weights gives back the rounded ones too: a reader is held to what the file says, and not to what it was made of.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

Arrays = dict[str, NDArray[Any]]

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
ROWS = {"q_proj": 64, "k_proj": 32, "v_proj": 32, "o_proj": 64}


def model(layers: int = 2, seed: int = 0) -> Arrays:
    """Weights in float32."""
    rng, arrays = np.random.default_rng(seed), {}
    for layer in range(layers):
        for part, rows in ROWS.items():
            arrays[f"model.layers.{layer}.self_attn.{part}.weight"] = rng.standard_normal((rows, 64)) / 8
        arrays[f"model.layers.{layer}.input_layernorm.weight"] = 1 + 0.3 * rng.standard_normal(64)
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def with_config(folder: Path, **more: Any) -> Path:
    """config.json beside the weights."""
    (folder / "config.json").write_text(json.dumps({**CONFIG, **more}))
    return folder


def safetensors(folder: Path, arrays: Mapping[str, Any]) -> Path:
    """The format that the others are compared with."""
    folder.mkdir(exist_ok=True)
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / "model.safetensors")
    return with_config(folder)


# ---- plain numbers in other files


def torch_file(folder: Path, arrays: Arrays, name: str = "pytorch_model.bin", old: bool = False) -> Path:
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    torch.save(tensors, folder / name, _use_new_zipfile_serialization=not old)
    return with_config(folder)


def npz(folder: Path, arrays: Arrays) -> Path:
    np.savez(folder / "weights.npz", **arrays)
    return with_config(folder)


# ---- GGUF

_GGUF = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}


def gguf_name(name: str) -> str:
    """model.layers.0.self_attn.q_proj.weight -> blk.0.attn_q.weight."""
    parts = name.split(".")
    last = _GGUF[parts[-2]] if parts[-2] in _GGUF else {"input_layernorm": "attn_norm"}.get(parts[-2], parts[-2])
    return f"blk.{parts[2]}.{last}.{parts[-1]}"


def gguf_file(path: Path, arrays: Arrays, kind: str = "F32", **metadata: Any) -> Path:
    """Matrices in one type, the rest in float32, as llama.cpp has it; `metadata` without the architecture's name."""
    architecture = metadata.pop("architecture", "llama")
    writer = gguf.GGUFWriter(path, architecture)
    given = {"attention.head_count": 4, "attention.head_count_kv": 2, "embedding_length": 64, "block_count": 2}
    for key, value in {**given, "attention.layer_norm_rms_epsilon": 1e-6, **metadata}.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{architecture}.{key}", value)
    writer.add_array("tokenizer.ggml.tokens", [f"token {number}" for number in range(300)])
    for name, array in arrays.items():
        quantised = gguf.GGMLQuantizationType[kind] if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(array, quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_rounded(arrays: Arrays, kind: str) -> Arrays:
    """What a file of that type stands for, by the package that wrote it."""
    quantised = gguf.GGMLQuantizationType[kind]
    return {
        name: gguf.quants.dequantize(gguf.quants.quantize(array, quantised), quantised) if array.ndim == 2 else array
        for name, array in arrays.items()
    }


def permuted(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """As the converter of llama.cpp reorders the rows of every head: pairs that rotate together become neighbours."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


# ---- few bits in safetensors; each gives what is written, and what it stands for

Packed = tuple[Arrays, NDArray[Any]]


def float8_blocks(weight: NDArray[Any]) -> Packed:
    scale = np.random.default_rng(1).uniform(0.5, 2.0, tuple(-(-side // 128) for side in weight.shape))
    spread = np.repeat(np.repeat(scale, 128, 0), 128, 1)[: weight.shape[0], : weight.shape[1]]
    codes = (weight / spread).astype(ml_dtypes.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scale.astype(np.float32)}, codes.astype(float) * spread.astype(
        np.float32
    )


def float8_rows(weight: NDArray[Any]) -> Packed:
    scale = np.abs(weight).max(axis=1, keepdims=True).astype(np.float32) / 448
    codes = (weight / scale).astype(ml_dtypes.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}, codes.astype(float) * scale


def float8_whole(weight: NDArray[Any]) -> Packed:
    codes = (weight / 0.25).astype(ml_dtypes.float8_e5m2)
    return {"weight": codes, "weight_scale": np.array(0.25, np.float32)}, codes.astype(float) * 0.25


def bnb_int8(weight: NDArray[Any]) -> Packed:
    largest = np.abs(weight).max(axis=1).astype(np.float32)
    codes = np.rint(weight / largest[:, None] * 127).astype(np.int8)
    parts = {"weight": codes, "SCB": largest, "weight_format": np.array(0, np.uint8)}
    return parts, codes * largest[:, None].astype(float) / 127


def bnb_four_bits(weight: NDArray[Any], nested: bool = False) -> Packed:
    rng, levels = np.random.default_rng(2), np.linspace(-1, 1, 16).astype(np.float32)
    blocks = weight.reshape(-1, 64)
    largest = np.abs(blocks).max(axis=1)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
    parts: Arrays = {}
    if nested:
        table, offset = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32), float(largest.mean())
        own = np.repeat(np.abs((largest - offset).reshape(-1, 16)).max(axis=1).astype(np.float32), 16)
        codes = np.abs((largest - offset)[:, None] / own[:, None] - table).argmin(axis=1).astype(np.uint8)
        largest = table[codes].astype(float) * own + offset
        parts = {"weight.absmax": codes, "weight.nested_quant_map": table, "weight.nested_absmax": own[::16]}
        state |= {"nested_blocksize": 16, "nested_offset": offset, "nested_dtype": "float32"}
    else:
        parts = {"weight.absmax": (largest := largest.astype(np.float32))}
    entries = np.abs(blocks[:, :, None] / largest[:, None, None] - levels).argmin(axis=2)
    pairs = entries.reshape(-1, 2)
    parts |= {"weight": (pairs[:, :1] * 16 + pairs[:, 1:]).astype(np.uint8), "weight.quant_map": levels}
    text = json.dumps(state).encode()
    parts["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(text, np.uint8)
    return parts, (levels[entries].astype(float) * largest[:, None]).reshape(weight.shape)


def words(codes: NDArray[Any], bits: int, order: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Integers along the last axis in words of 32 bits; `order` says which of them lies at each place, lowest first."""
    groups = codes.reshape(*codes.shape[:-1], -1, 32 // bits).astype(np.uint64)
    total = np.zeros(groups.shape[:-1], np.uint64)
    for place in range(32 // bits):
        total |= groups[..., place if order is None else order[place]] << np.uint64(bits * place)
    return total.astype(np.uint32)


def _grouped(weight: NDArray[Any], bits: int, size: int) -> tuple[Any, Any, Any, Any]:
    """Codes by (input, output), zeros and scales by (group, output), and what they stand for."""
    inputs = weight.T.reshape(-1, size, weight.shape[0])
    middle, shape = 2 ** (bits - 1), (inputs.shape[0], weight.shape[0])
    zeros = np.random.default_rng(3).integers(middle - 1, middle + 2, shape)
    scales = (2 * np.abs(inputs).max(axis=1) / 2**bits).astype(np.float16)
    codes = np.clip(np.rint(inputs / scales[:, None]) + zeros[:, None], 0, 2**bits - 1).astype(np.int64)
    stands = ((codes - zeros[:, None]) * scales[:, None].astype(float)).reshape(-1, weight.shape[0]).T
    return codes.reshape(-1, weight.shape[0]), zeros, scales, stands


def gptq(weight: NDArray[Any], bits: int = 4, shuffled: bool = False) -> Packed:
    codes, zeros, scales, stands = _grouped(weight, bits, 32)
    group = np.arange(len(codes)) // 32
    if shuffled:  # inputs in the order of their size, as "act order" has them
        order = np.random.default_rng(4).permutation(len(codes))
        codes, group, stands = codes[order], group[order], stands[:, order]
    parts = {"qweight": words(codes.T, bits).T, "qzeros": words(zeros - 1, bits), "scales": scales}
    parts = {name: part.view(np.int32) if part.dtype == np.uint32 else part for name, part in parts.items()}
    return {**parts, "g_idx": group.astype(np.int32)}, stands


def awq(weight: NDArray[Any]) -> Packed:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    codes, zeros, scales, stands = _grouped(weight, 4, 32)
    packed = {"qweight": words(codes, 4, order), "qzeros": words(zeros, 4, order)}
    return {**{name: part.view(np.int32) for name, part in packed.items()}, "scales": scales}, stands


def mlx(weight: NDArray[Any]) -> Packed:
    groups = weight.reshape(weight.shape[0], -1, 32)
    low = groups.min(axis=2).astype(np.float16)
    scales = ((groups.max(axis=2) - low) / 15).astype(np.float16)
    codes = np.clip(np.rint((groups - low[..., None]) / scales[..., None]), 0, 15).astype(np.int64)
    stands = (codes * scales[..., None].astype(float) + low[..., None]).reshape(weight.shape)
    return {"weight": words(codes.reshape(weight.shape), 4), "scales": scales, "biases": low}, stands


def compressed(weight: NDArray[Any]) -> Packed:
    groups = weight.reshape(weight.shape[0], -1, 32)
    scales = (np.abs(groups).max(axis=2) / 7.5).astype(np.float16)
    codes = np.clip(np.rint(groups / scales[..., None]), -8, 7).astype(np.int64)
    parts = {"weight_packed": words((codes + 8).reshape(weight.shape), 4).view(np.int32), "weight_scale": scales}
    stands = (codes * scales[..., None].astype(float)).reshape(weight.shape)
    return {**parts, "weight_shape": np.array(weight.shape)}, stands


def bnb_nested(weight: NDArray[Any]) -> Packed:
    return bnb_four_bits(weight, nested=True)


def gptq_8(weight: NDArray[Any]) -> Packed:
    return gptq(weight, bits=8)


def gptq_shuffled(weight: NDArray[Any]) -> Packed:
    return gptq(weight, shuffled=True)


PACKINGS: dict[str, Callable[[NDArray[Any]], Packed]] = {
    pack.__name__: pack
    for pack in (
        *(float8_blocks, float8_rows, float8_whole, bnb_int8, bnb_four_bits, bnb_nested),
        *(gptq, gptq_8, gptq_shuffled, awq, mlx, compressed),
    )
}


def packed_file(folder: Path, arrays: Arrays, packing: str) -> Arrays:
    """Every matrix packed, in a folder with its config; gives what the file stands for."""
    written: dict[str, Any] = {}
    stands: Arrays = {}
    for name, array in arrays.items():
        if array.ndim != 2:
            written[name] = stands[name] = array
            continue
        parts, stands[name] = PACKINGS[packing](array)
        written |= {f"{name.removesuffix('weight')}{part}": value for part, value in parts.items()}
    save_file({name: np.ascontiguousarray(array) for name, array in written.items()}, folder / "model.safetensors")
    with_config(folder, **({"quantization": {"group_size": 32, "bits": 4}} if packing == "mlx" else {}))
    return stands


# ---- ONNX: one layer after the other, in the ways in which exporters write attention


def onnx_file(path: Path, arrays: Arrays, style: str = "plain") -> Path:
    """`style`: plain (scale after the product), roots (its root on both sides), fused (one projection, split), integers
    (weights of 8 bits as onnxruntime makes them), scaled (8 bits behind DequantizeLinear), cast (8 bits that are cast
    and multiplied), outside (weights in a file of their own), branch (inside an If), older (names of modules, shapes
    that are put together, a norm in its parts).
    """
    nodes, held = [], {"shape": np.array([0, 0, -1, 16]), "together": np.array([0, 0, 64]), "scale": np.float32(0.25)}
    held |= {
        "over": np.float32(4),
        "two": np.float32(2),
        "tiny": np.float32(1e-5),
        "one": np.array([0]),
        "none": np.array([1]),
    }
    held |= {"root": np.float32(0.5), "parts": np.array([64, 32, 32]), "repeat": np.array([1, 2, 1, 1])}
    value = "x"
    for layer in range(sum("q_proj" in name for name in arrays)):
        own, given = f"model.layers.{layer}.", {}
        for part in (*ROWS, "input_layernorm"):
            middle = "" if part == "input_layernorm" else "self_attn."
            given[part] = arrays[f"{own}{middle}{part}.weight"]

        def name(what: str, layer: int = layer) -> str:
            return f"{what}_{layer}"

        def add(kind: str, inputs: list[str], *outputs: str, layer: int = layer, **options: Any) -> str:
            label = f"/model/layers.{layer}/self_attn/{kind}" if style == "older" else f"node_{outputs[0]}"
            nodes.append(helper.make_node(kind, inputs, list(outputs), name=label, **options))
            return outputs[0]

        held[name("gain")], held[name("nothing")] = given["input_layernorm"], np.zeros(64, np.float32)
        normed = name("normed")
        if style == "older":
            _norm(add, held, value, name)
        else:
            add("LayerNormalization", [value, name("gain"), name("nothing")], normed)
        projected = {}
        if style == "fused":
            held[name("fused")] = np.concatenate([given[part] for part in ("q_proj", "k_proj", "v_proj")]).T
            add("MatMul", [normed, name("fused")], name("all"))
            projected = {part: name(part) for part in ("q_proj", "k_proj", "v_proj")}
            add("Split", [name("all"), "parts"], *projected.values(), axis=-1)
        for part in [] if style == "fused" else ("q_proj", "k_proj", "v_proj"):
            projected[part] = name(part)
            _project(add, held, style, normed, given[part].T, name(part))
        heads = {}
        for part, source in projected.items():
            split = add("Reshape", [source, _shape(add, held, source, style)], f"{source}_heads")
            axes = [0, 2, 3, 1] if part == "k_proj" and style != "roots" else [0, 2, 1, 3]
            heads[part] = add("Transpose", [split], f"{source}_moved", perm=axes)
        key, query = heads["k_proj"], heads["q_proj"]
        if style == "roots":
            key = add("Transpose", [add("Mul", [key, "root"], name("key"))], name("keys"), perm=[0, 1, 3, 2])
            query = add("Mul", [query, "root"], name("query"))
        logits = add("MatMul", [query, key], name("product"))
        if style != "roots":
            kind, factor = ("Div", "over") if style == "older" else ("Mul", "scale")
            logits = add(kind, [logits, factor], name("logits"))
        weights = add("Softmax", [add("Add", [logits, "mask"], name("masked"))], name("weights"), axis=-1)
        mixed = add("MatMul", [weights, heads["v_proj"]], name("mixed"))
        back = add("Reshape", [add("Transpose", [mixed], name("back"), perm=[0, 2, 1, 3]), "together"], name("flat"))
        held[name("out")] = given["o_proj"].T
        value = add("Add", [value, add("MatMul", [back, name("out")], name("given"))], name("block"))
    return _saved(path, nodes, {key: np.ascontiguousarray(array) for key, array in held.items()}, value, style)


def _norm(add: Any, held: Arrays, value: str, name: Any) -> None:
    """x - mean, over its root mean square, times a gain, plus a shift: as exporters wrote it before opset 17."""
    add("ReduceMean", [value, "axis"], name("mean"))
    add("Sub", [value, name("mean")], name("centred"))
    add("ReduceMean", [add("Pow", [name("centred"), "two"], name("squares")), "axis"], name("variance"))
    add("Sqrt", [add("Add", [name("variance"), "tiny"], name("wide"))], name("deviation"))
    add("Mul", [add("Div", [name("centred"), name("deviation")], name("whitened")), name("gain")], name("gained"))
    add("Add", [name("gained"), name("nothing")], name("normed"))
    held["axis"] = np.array([-1])


def _shape(add: Any, held: Arrays, source: str, style: str) -> str:
    """The shape of heads: a constant, or batch and tokens as they come, and constants beside them."""
    if style != "older":
        return "shape"
    held |= {"heads": np.array([-1]), "width": np.array([16])}
    own = add("Shape", ["x"], f"{source}_own")
    sides = [add("Gather", [own, place], f"{source}_{place}") for place in ("one", "none")]
    return str(add("Concat", [*sides, "heads", "width"], f"{source}_shape", axis=0))


def _project(add: Any, held: Arrays, style: str, given: str, weight: NDArray[Any], name: str) -> None:
    if style not in ("integers", "scaled", "cast"):
        held[f"{name}_weight"] = weight
        add("MatMul", [given, f"{name}_weight"], name)
        return
    codes, scale = rounded(weight)
    held |= {f"{name}_w_quantized": codes, f"{name}_w_scale": scale, f"{name}_w_zero_point": np.int8(0)}
    if style == "scaled":
        made = add("DequantizeLinear", [f"{name}_w_quantized", f"{name}_w_scale"], f"{name}_weight")
        add("MatMul", [given, made], name)
        return
    if style == "cast":
        made = add("Cast", [f"{name}_w_quantized"], f"{name}_w_real", to=TensorProto.FLOAT)
        add("MatMul", [given, add("Mul", [made, f"{name}_w_scale"], f"{name}_weight")], name)
        return
    outputs = [f"{name}_x", f"{name}_x_scale", f"{name}_x_zero"]
    add("DynamicQuantizeLinear", [given], *outputs)
    made = add("MatMulInteger", [outputs[0], f"{name}_w_quantized", outputs[2], f"{name}_w_zero_point"], f"{name}_i")
    scales = add("Mul", [outputs[1], f"{name}_w_scale"], f"{name}_scales")
    add("Mul", [add("Cast", [made], f"{name}_f", to=TensorProto.FLOAT), scales], name)


def rounded(weight: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Integers of 8 bits, and one scale for all."""
    scale = np.float32(np.abs(weight).max() / 127)
    return np.rint(weight / scale).astype(np.int8), scale


def _saved(path: Path, nodes: list[Any], held: Arrays, value: str, style: str) -> Path:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "tokens", 64])]
    given.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["tokens", "tokens"]))
    made = [helper.make_tensor_value_info(value, TensorProto.FLOAT, None)]
    if style == "branch":
        inner = [helper.make_graph(nodes, which, [], made) for which in ("then", "else")]
        given.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
        nodes = [helper.make_node("If", ["which"], ["y"], then_branch=inner[0], else_branch=inner[1])]
        made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", given, made, tensors)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    onnx.save(whole, path, save_as_external_data=style == "outside", location=f"{path.name}.data", size_threshold=64)
    return path
