"""Tiny models and loops for rootdk.integrations, and readers of what it wrote."""

import json
import struct
from pathlib import Path
from typing import Any

import torch
from torch import nn

WIDTH, HEADS, LAYERS, TOKENS = 16, 2, 2, 12
KEYS = [f"attn/layer_{layer:02d}/max_logit" for layer in range(LAYERS)]


def encoder(loud: float = 1.0) -> nn.TransformerEncoder:
    """`loud` multiplies the query projection of layer 1."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    with torch.no_grad():
        model.layers[1].self_attn.in_proj_weight[:WIDTH] *= loud
    return model


def batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, TOKENS, WIDTH, generator=generator) for _ in range(count)]


def train(model: nn.Module, data: list[torch.Tensor], after: Any, rate: float = 0.05) -> None:
    """A plain loop; `after` runs after each step of the optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for batch in data:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        after()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All scalars of the event files in a folder, by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def history(folder: Path) -> list[dict[str, Any]]:
    """The rows of the offline run in a folder.

    The package has the messages and no reader of its file: after 7 bytes, blocks of 32 KiB with records in them, each
    with a head of 7 bytes (checksum, length, kind); kinds 2, 3 and 4 are the parts of a long one. (LevelDB's log.)
    """
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, long, rows = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        body, at = data[at + 7 : at + 7 + length], at + 7 + length
        long = body if kind in (1, 2) else long + body
        if kind in (1, 4):
            record = Record.FromString(long)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({entry.key or "/".join(entry.nested_key): json.loads(entry.value_json) for entry in items})
    return rows
