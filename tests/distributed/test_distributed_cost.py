"""The model of the cost: its counts against counting, its messages against those that were sent, its times by hand."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from ring_ranks import together

from rootdk import distributed
from rootdk.cli import main, plan
from rootdk.distributed import even_lengths, pieces
from rootdk.distributed.cost import Ring, check, cost, pairs
from rootdk.errors import ArgumentError, ArgumentTypeError

SIZES: dict[str, Any] = {"tokens": 48, "heads": 4, "kv_heads": 2, "d": 8, "flops": 1e9, "bandwidth": 1e6}


@pytest.mark.parametrize("layout", ["contiguous", "balanced"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_pairs_are_those_of_the_rank_with_the_most(ranks: int, causal: bool, layout: str) -> None:
    n, counted = 48, []
    for rank in range(ranks):
        held = pieces(even_lengths(n, ranks), layout)[rank]
        rows = [row for first, _, length in held for row in range(first, first + length)]
        counted.append(sum(row + 1 if causal else n for row in rows))
    ring = Ring(**SIZES | {"tokens": n}, ranks=ranks, causal=causal, layout=layout)
    assert pairs(ring) == max(counted)
    if layout == "balanced":
        assert len(set(counted)) == 1  # which is what it is for


def count_bytes(rank: int, dtype: str) -> dict[str, int]:
    from rootdk.distributed import peers

    sent = {"forward": 0, "backward": 0}
    ours, now = peers.Peers.post, ["forward"]

    def post(self: Any, *operations: Any) -> Any:
        for do, tensor, _, tag in operations:
            if do is torch.distributed.isend and tag in (peers.BLOCK, peers.GRADIENT):
                sent[now[0]] += tensor.nbytes
        return ours(self, *operations)

    peers.Peers.post = post  # type: ignore[method-assign]
    rows = SIZES["tokens"] // 4
    query = torch.randn(4, rows, 8).to(getattr(torch, dtype)).requires_grad_()
    key, value = torch.randn(2, 2, rows, 8).to(query.dtype).unbind(0)
    out = distributed.attention(query, key, value, layout="balanced", causal=True)
    now[0] = "backward"
    out.sum().backward()
    return sent


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_messages_are_those_that_are_sent(tmp_path: Path, dtype: str) -> None:
    predicted = cost(Ring(**SIZES, ranks=4, dtype=dtype))
    for sent in together(count_bytes, 4, tmp_path, dtype):
        assert sent == {name: predicted[name].sent_bytes for name in sent}


def test_times_by_hand() -> None:
    """8 tokens, one head of 2 numbers, 2 ranks, full: 32 pairs and 256 operations forward on a rank."""
    sizes: dict[str, Any] = {"tokens": 8, "heads": 1, "d": 2, "ranks": 2, "causal": False, "latency": 0.5}
    passes = cost(Ring(**sizes, flops=64.0, bandwidth=128.0))
    # A step computes 2 s; a block of 64 bytes takes 0.5 + 0.5 s and is hidden. Two meetings of 0.5 s.
    forward = passes["forward"]
    assert (forward.flops, forward.sent_bytes, forward.compute) == (256.0, 64.0, 4.0)
    assert (forward.messages, forward.waiting, forward.seconds) == (1.0, 0.0, 5.0)
    assert forward.efficiency == 8.0 / (2 * 5.0)
    # Backward 10 s; a block and a gradient are hidden, the last gradient is waited for.
    backward = passes["backward"]
    assert (backward.sent_bytes, backward.compute, backward.waiting, backward.seconds) == (192.0, 10.0, 1.0, 12.0)
    # On a line ten times as slow the block takes 5.5 s, and computing hides 2 of them.
    assert cost(Ring(**sizes, flops=64.0, bandwidth=12.8))["forward"].waiting == pytest.approx(3.5)
    # One rank sends nothing and waits for nobody.
    alone = cost(Ring(**sizes | {"ranks": 1}, flops=64.0, bandwidth=128.0))
    assert [(p.sent_bytes, p.waiting, p.efficiency) for p in alone.values()] == [(0.0, 0.0, 1.0)] * 2


def test_memory_is_linear_in_tokens_per_rank() -> None:
    whole, same, half = (
        cost(Ring(**SIZES | {"tokens": tokens}, ranks=ranks))["backward"].memory_bytes
        for tokens, ranks in ((4096, 4), (8192, 8), (4096, 8))
    )
    assert whole == same == 2 * half


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"tokens": 0}, ArgumentError, "tokens: must be an int of at least 1, got 0"),
        ({"ranks": 2.0}, ArgumentTypeError, "ranks: must be an int of at least 1, got 2.0"),
        ({"flops": 0.0}, ArgumentError, "flops: must be a finite number > 0, got 0.0"),
        ({"bandwidth": "fast"}, ArgumentTypeError, "bandwidth: must be a number > 0, got 'fast'"),
        ({"kv_heads": 3}, ArgumentError, "kv_heads: must divide the 4 heads, got 3"),
        ({"dtype": "int8"}, ArgumentError, "dtype: must be one of float32, float64, float16, bfloat16, got 'int8'"),
        ({"layout": "zigzag"}, ArgumentError, "layout: must be 'contiguous' or 'balanced', got 'zigzag'"),
    ],
)
def test_sizes_that_cannot_be(changed: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as raised:
        Ring(**{**SIZES, "ranks": 4, **changed})
    assert str(raised.value) == message


COMMAND = ["plan", "--tokens", "1000000", "--heads", "32", "--d", "128", "--ranks", "64", "--flops", "2e12"]


def test_the_command() -> None:
    result = CliRunner().invoke(main, [*COMMAND, "--bandwidth", "12e9"])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "efficiency" in result.output
    printed = json.loads(CliRunner().invoke(main, [*COMMAND, "--bandwidth", "12e9", "--json"]).output)
    ring = Ring(tokens=10**6, heads=32, d=128, ranks=64, flops=2e12, bandwidth=12e9)
    assert printed == {"ring": asdict(ring)} | {name: asdict(of_pass) for name, of_pass in cost(ring).items()}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--bandwidth", "nan"], "must be a finite number above 0, got nan"),
        (["--bandwidth", "1e9", "--kv-heads", "5"], "kv_heads: must divide the 32 heads, got 5"),
        ([], "Missing option '--bandwidth'"),
    ],
)
def test_the_command_says_what_is_wrong(more: list[str], message: str) -> None:
    result = CliRunner().invoke(main, [*COMMAND, *more])
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.slow  # six processes import torch, one after the other
def test_the_model_is_held_against_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it runs and adds up; how far it is off depends on what else the machine does."""
    monkeypatch.setattr("rootdk.distributed.cost.RANKS", (1, 2))
    report = check(tokens=64, heads=2, d=8)
    assert [(row["ranks"], row["pass"]) for row in report["rows"]] == [
        (ranks, name) for ranks in (1, 2) for name in ("forward", "backward")
    ]
    for row in report["rows"]:
        assert row["error"] == row["predicted"] / row["measured"] - 1.0
        assert row["work_error"] == row["predicted_work"] / row["worked"] - 1.0
    page = list(plan._validation(report | {"cores": 1, "load_before": 3.0}, 80))
    assert max(map(len, page)) <= 80
    assert "2 ranks share 1 cores here: each is expected to get its share of them." in page
