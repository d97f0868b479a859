"""What watching adds to a training step: forward, backward and optimizer of a small causal model, with and without.

Every reading is beside the model's own forward, so it comes on top. The steps take turns, and each watched step is held
against the plain one of its own round. With `every`, a turn is as many steps as it takes to read one.
"""

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.race import Call, rounds, timing
from benchmarks.section import Row, Setting, Step, at_most, cell, judge_rows, milliseconds, of, of_rows, ratio

LAYERS, WIDTH, HEADS, TOKENS, BATCH = 4, 256, 4, 512, 4
EVERY, ROWS = 10, 64
PLAIN = "unwatched"
# What is timed: steps in a turn, and the options of rootdk.watch.
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "exact": (1, {}),
    f"rows={ROWS}": (1, {"rows": ROWS}),
    f"every={EVERY}": (EVERY, {"every": EVERY}),
}


def steps(setting: Setting) -> Iterator[Step]:
    """One race per way of watching; none without torch."""
    if not setting.torch:
        return
    for name in WAYS:
        tokens = TOKENS // 4 if setting.quick else TOKENS
        budget = setting.seconds(20.0, 0.5)
        yield Step("watch", f"training step, {name}", partial(race, name, tokens=tokens, budget=budget))


def race(name: str, *, tokens: int = TOKENS, budget: float) -> Row:
    """The same steps of two models that start alike, one of them watched."""
    import rootdk

    turn, options = WAYS[name]
    plain, watched = Trainee(tokens), Trainee(tokens)
    with rootdk.watch(watched.model, **options) as seen:
        calls: dict[str, Call] = {PLAIN: partial(plain.train, turn), "watched": partial(watched.train, turn)}
        seconds_of = rounds(calls, budget, fewest=5 if turn == 1 else 3, most=40, together=(PLAIN, "watched"))
        left_out = {}
        if plain.losses != watched.losses:
            left_out["watched"] = "changed the losses"
        elif len(seen.readings) != LAYERS or seen.unread:
            left_out["watched"] = f"read {len(seen.readings)} of {LAYERS} layers"
    return {
        "name": name,
        "tokens": tokens,
        "seconds": {side: timing(seconds) for side, seconds in seconds_of.items() if side not in left_out},
        "watched_over_unwatched": {
            "best": min(seconds_of["watched"]) / min(seconds_of[PLAIN]),
            "median": statistics.median(
                ours / theirs for theirs, ours in zip(seconds_of[PLAIN], seconds_of["watched"], strict=True)
            ),
        },
        "left_out": left_out,
    }


class Trainee:
    """A causal model of four layers on F.scaled_dot_product_attention, its data and its optimizer; always the same."""

    def __init__(self, tokens: int) -> None:
        import torch

        torch.manual_seed(0)
        self.model = _model(torch)
        self.data = torch.randint(256, (BATCH, tokens + 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.losses: list[float] = []

    def train(self, steps: int) -> None:
        """So many steps; the losses are kept."""
        from torch.nn.functional import cross_entropy

        for _ in range(steps):
            self.optimizer.zero_grad()
            logits = self.model(self.data[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1), self.data[:, 1:].flatten())
            loss.backward()
            self.optimizer.step()
            self.losses.append(float(loss.detach()))


def _model(torch: Any) -> Any:
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            split = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
            query, key, value = split.transpose(1, 3).unbind(2)
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).flatten(2))
            return x + self.narrow(functional.gelu(self.wide(self.after(x))))

    return nn.Sequential(nn.Embedding(256, WIDTH), *(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, 256))


_RATIO = ratio("watched_over_unwatched")
TARGETS = [
    at_most(f"training step, {words} / unwatched", limit, _RATIO, "watched", PLAIN, counts=of("name", name))
    for name, words, limit in (
        ("exact", "watched exactly", 1.03),
        (f"rows={ROWS}", f"{ROWS} rows watched", 1.03),
        (f"every={EVERY}", "every tenth watched", 1.03),
    )
]
SECTIONS = (
    of_rows(
        "watch",
        steps,
        partial(judge_rows, key="watch", targets=TARGETS, with_torch=True),
        "A training step while rootdk.watch reads it, ms, best / median",
        {"unwatched": milliseconds(PLAIN), "watched": milliseconds("watched"), "ratio": cell(_RATIO, ".3f")},
    ),
)
