"""Trained models of plain torch.nn inside packages: rebuilt from torch's own layers, and only weights are read.

They have no config that the audit knows, no names of transformers, and no norm before their first layer.
"""

import json
import math
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional


class Plain(nn.Module):  # type: ignore[misc]
    """What the calibration asks of a model beside its forward: something like a config, and a way to save weights."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads, self.config = heads, SimpleNamespace(model_type="", initializer_range=0.02)

    def save_pretrained(self, folder: str) -> None:
        """Weights, and how many heads they have."""
        state = {name: value.contiguous() for name, value in self.state_dict().items()}
        save_file(state, Path(folder, "model.safetensors"))
        Path(folder, "config.json").write_text(json.dumps({"HEADS": self.heads}), "utf-8", newline="\n")


def _renamed(state: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The state with parts of its names exchanged, in order."""
    renamed = {}
    for old, value in state.items():
        name = old
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        renamed[name] = value
    return renamed


class Anarcii(Plain):
    """Numbers the residues of an antibody: an encoder and a decoder of post-norm layers, embeddings without a norm."""

    def __init__(self, inputs: int, outputs: int, width: int, layers: int, heads: int) -> None:
        super().__init__(heads)
        self.width = width
        self.encoder, self.decoder = nn.Module(), nn.Module()
        for part, kind, words in (
            (self.encoder, nn.TransformerEncoderLayer, inputs),
            (self.decoder, nn.TransformerDecoderLayer, outputs),
        ):
            part.tok_embedding, part.pos_embedding = nn.Embedding(words, width), nn.Embedding(210, width)
            part.layers = nn.ModuleList(kind(width, heads, 4 * width, 0.0, batch_first=True) for _ in range(layers))
        self.decoder.fc_out = nn.Linear(width, outputs)

    def forward(self, source: Any, target: Any) -> Any:
        """Scores of the next number at every place of the target."""
        x, y = (
            part.tok_embedding(ids) * math.sqrt(self.width) + part.pos_embedding.weight[: ids.shape[1]]
            for part, ids in ((self.encoder, source), (self.decoder, target))
        )
        for layer in self.encoder.layers:
            x = layer(x)
        for layer in self.decoder.layers:
            y = layer(y, x, tgt_mask=nn.Transformer.generate_square_subsequent_mask(y.shape[1]), tgt_is_causal=True)
        return self.decoder.fc_out(y)


def anarcii(folder: Path, size: str, chains: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """The model, and two chains with the numbers that it gives them itself."""
    folder = folder / "anarcii" / "models" / "antibody"
    config = json.loads((folder / f"antibody_{size}.json").read_text("utf-8"))
    model = Anarcii(config["INPUT_DIM"], config["OUTPUT_DIM"], config["HID_DIM"], config["LAYERS"], config["HEADS"])
    state = torch.load(folder / f"antibody_{size}.pt", weights_only=True, map_location="cpu")
    names = {
        "self_attention.multihead_attn": "self_attn", "encoder_attention.multihead_attn": "multihead_attn",
        "positionwise_feedforward.fc_1": "linear1", "positionwise_feedforward.fc_2": "linear2",
        "self_attn_layer_norm": "norm1", "enc_attn_layer_norm": "norm2",
    }  # fmt: skip
    state = {
        name.replace("ff_layer_norm", "norm3" if name.startswith("decoder") else "norm2"): value
        for name, value in _renamed(state, names).items()
    }
    model.load_state_dict(state)
    model.eval()
    letters = {letter: number for number, letter in enumerate("ACDEFGHIKLMNPQRSTVWXY", start=4)}
    shortest = min(map(len, chains))
    source = torch.tensor([[1, *(letters[letter] for letter in chain[:shortest]), 2] for chain in chains])
    target = torch.ones(len(chains), 1, dtype=torch.long)
    with torch.no_grad():
        for _ in range(shortest):
            target = torch.cat([target, model(source, target)[:, -1:].argmax(-1)], dim=1)
    return model, {"source": source, "target": target}


class DistillMos(Plain):
    """How good recorded speech sounds: convolutions over a spectrogram, then post-norm layers."""

    def __init__(self) -> None:
        super().__init__(heads=8)
        channels = (2, 64, 64, 128, 256, 256, 256)
        steps = [
            step
            for number in range(6)
            for step in (
                nn.Conv2d(
                    channels[number], channels[number + 1], 3, (1 if number == 0 else 2, 1 + (number == 5)), (0, 1)
                ),
                nn.LeakyReLU(0.1),
            )
        ]
        self.cnn = nn.Sequential(*steps)
        self.norm_input, self.norm = nn.BatchNorm1d(1024), nn.BatchNorm1d(1024)
        self.linear_proj = nn.Linear(1024, 200)
        self.register_buffer("pe", torch.zeros(1, 384, 200))
        layer = nn.TransformerEncoderLayer(200, 8, 400, 0.0, batch_first=True)
        self.transformer_encoder = nn.TransformerEncoder(layer, 7, enable_nested_tensor=False)

    def forward(self, wave_form: Any) -> Any:
        """What the last layer gives for 7.68 s at 16 kHz."""
        x = functional.pad(wave_form / wave_form.abs().max(), (80, 80), mode="reflect")
        x = torch.stft(x, 320, 160, window=torch.hann_window(320), center=False, return_complex=True)
        size = x.abs().clip(1e-12)
        x = torch.view_as_real(size**0.3 * x / size).permute(0, 3, 1, 2).to(self.linear_proj.weight.dtype)
        x = self.cnn(x).flatten(1, -2)
        x = self.linear_proj(self.norm(self.norm_input(x)).transpose(1, 2))
        return self.transformer_encoder(x + self.pe[:, : x.shape[1]])


def distillmos(folder: Path, speech: Path) -> tuple[Any, dict[str, Any]]:
    """The model, and the first seconds of a recording."""
    state = torch.load(folder / "distillmos" / "weights" / "distill_mos_v7.pt", weights_only=True, map_location="cpu")
    names = {"cnn.cnn.": "cnn.", "transformer_pool_attn.": "", "transformer.": "", "position_encoding.": ""}
    model = DistillMos()
    absent, _ = model.load_state_dict(_renamed(state["model"], names), strict=False)
    if absent:
        raise RuntimeError(f"DistillMOS: no weights for {absent[0]}")
    model.eval()
    with wave.open(str(speech)) as file:
        rate, channels = file.getframerate(), file.getnchannels()
        samples = torch.frombuffer(bytearray(file.readframes(9 * rate)), dtype=torch.int16).float()
    heard = samples.reshape(-1, channels).mean(1)[None, None]
    heard = functional.interpolate(heard, scale_factor=16000 / rate, mode="linear")[0, :, 4000 : 4000 + 122880]
    return model, {"wave_form": heard}
