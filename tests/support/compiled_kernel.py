"""Compile the Triton kernel ahead of time, without a GPU, and print what the compiled code uses, as JSON.

python tests/support/compiled_kernel.py sm_90 gfx942 "bf16 64 causal"      {target: {variant: {registers, ...}}}
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rootdk.backends.torch import gpu, gpu_kernel

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SEGMENTS = {"row_starts", "row_ends", "row_places", "row_segments", "key_segments", "key_places"}
# Type of query and key, d_k, and which of the arguments that a call may leave out it has.
VARIANTS: dict[str, tuple[str, int, set[str]]] = {
    "bf16 64 causal": ("bf16", 64, {"right"}),
    "bf16 128 causal": ("bf16", 128, {"right"}),
    "fp16 128 everything": (
        "fp16", 128,
        {"mask", "bias", "sinks", "alibi", "row_scale", "offsets", "lengths", "rows", "softcap", "left", "right"},
    ),
    "bf16 128 causal, documents": ("bf16", 128, {"row_starts", "row_ends", "row_places"}),
    "fp16 128 segments inside others": ("fp16", 128, {"alibi", *SEGMENTS}),
    "bf16 256": ("bf16", 256, set()),
    "bf16 128 causal, watched": ("bf16", 128, {"right", "first_weight", "first_key"}),
    "bf16 128 causal, pointed at": ("bf16", 128, {"right", "top_key", "top_share", "top_mass"}),
    "fp32 64 causal": ("fp32", 64, {"right"}),
}  # fmt: skip
_POINTERS = {
    "mask": "u8",
    "alibi": "fp32",
    "sinks": "fp32",
    "row_scale": "fp32",
    "offsets": "i64",
    "lengths": "i64",
    "rows": "i64",
}
_POINTERS |= {"fields": "fp32", "keys": "i64", "first_key": "i64", "first_weight": "fp32"}
_POINTERS |= dict.fromkeys(SEGMENTS, "i32")
_POINTED = {"top_key": "i64", "top_share": "fp32", "top_mass": "fp32"}
_POINTERS |= _POINTED
_OPTIONAL = {"mask", "bias", "sinks", "alibi", "row_scale", "offsets", "lengths", "rows", "softcap", "left", "right"}
_OPTIONAL |= {"first_key", "first_weight", *_POINTED, *SEGMENTS}


def compiled(target: GPUTarget, dtype: str, d_k: int, has: set[str]) -> Any:
    """As _launch of rootdk.backends.torch.gpu asks for it."""
    sizes = gpu.sizes_for(target.backend, 4 if dtype == "fp32" else 2, d_k, bool(has & {"mask", "bias"}))[0]
    pointed = "top_key" in has
    if pointed:
        sizes = sizes._replace(rows=32, keys=32, warps=4)
    constants: dict[str, Any] = dict.fromkeys(_OPTIONAL - has) | {"SPREAD": pointed}
    constants |= dict.fromkeys(("fields", "keys") if pointed else ())
    constants |= gpu.constants(d_k, interpreted=False) | {"BLOCK_ROWS": sizes.rows, "BLOCK_KEYS": sizes.keys}
    constants |= {"m_key": 1, "b_key": 1}
    signature = {}
    for name in gpu_kernel.read_rows.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in ("query", "key", "bias"):
            signature[name] = f"*{dtype}"
        elif name in _POINTERS:
            signature[name] = f"*{_POINTERS[name]}"
        else:
            signature[name] = "fp32" if name in ("scale", "softcap") else "i32"
    places = {name: (i,) for i, name in enumerate(gpu_kernel.read_rows.arg_names)}
    aligned = {places[name]: [["tt.divisibility", 16]] for name in signature if signature[name].startswith("*")}
    aligned |= {places[name]: [["tt.divisibility", 16]] for name in ("q_row", "k_row", "q_head", "k_head")}
    source = ASTSource(
        gpu_kernel.read_rows, signature, {places[name]: value for name, value in constants.items()}, aligned
    )
    return triton.compile(source, target=target, options={"num_warps": sizes.warps, "num_stages": sizes.stages})


def usage(kernel: Any, target: GPUTarget) -> dict[str, int]:
    """What one thread uses, out of the compiled code itself."""
    if target.backend == "hip":
        # Scalars that are spilled go to lanes of vector registers, not to memory.
        registers, spilled = (
            _number(rf"\.{name}:\s*(\d+)", kernel.asm["amdgcn"]) for name in ("vgpr_count", "vgpr_spill_count")
        )
    else:
        assembler = "ptxas-blackwell" if target.arch >= 100 else "ptxas"
        architecture = re.search(r"\.target (sm_\w+)", kernel.asm["ptx"])[1]  # type: ignore[index]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "read.ptx").write_text(kernel.asm["ptx"])
            said = subprocess.run(
                [TOOLS / assembler, "-v", f"--gpu-name={architecture}", "read.ptx"],
                cwd=folder, check=True, capture_output=True, text=True,
            ).stderr  # fmt: skip
        registers = _number(r"Used (\d+) registers", said)
        spilled = _number(r"(\d+) bytes spill stores", said) + _number(r"(\d+) bytes spill loads", said)
    return {"registers": registers, "spilled": spilled, "shared": kernel.metadata.shared}


def _number(pattern: str, text: str) -> int:
    return int(re.search(pattern, text)[1])  # type: ignore[index]


if __name__ == "__main__":
    targets = [name for name in TARGETS if name in sys.argv[1:]] or list(TARGETS)
    variants = [name for name in VARIANTS if name in sys.argv[1:]] or list(VARIANTS)
    used = {t: {v: usage(compiled(TARGETS[t], *VARIANTS[v]), TARGETS[t]) for v in variants} for t in targets}
    print(json.dumps(used))
