"""Beside torch: attention between two linear layers of torch, which is where it is used.

Two thread pools in one process can stand in each other's way: torch's workers spin for a while after the first layer,
and the attention's workers are to be awake when they are needed. So the whole chain is timed, rootdk's attention
against torch's in the same place; and again 20 ms after the chain before it, when every worker is asleep. What rootdk
would do with threads of its own in place of torch's team is timed beside it.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.problems import answer, check_near
from benchmarks.race import Call, interleave, only_right
from benchmarks.section import Row, Setting, Step, judge_each, milliseconds, of_rows, times_faster

PAUSE = 0.020
HEADS, D = 8, 64
TOKENS = (128, 1024)


def steps(setting: Setting) -> Iterator[Step]:
    """Each length in a row of calls and after a pause; none without torch."""
    if not setting.torch:
        return
    for n in TOKENS[:1] if setting.quick else TOKENS:
        for pause in (0.0, PAUSE):
            name = f"{n} tokens{f', after {pause * 1e3:.0f} ms' if pause else ''}"
            yield Step("beside", f"chain, {name}", partial(race, name, n, pause=pause, budget=setting.seconds(2.5)))


def race(name: str, n: int, *, pause: float, budget: float) -> Row:
    """linear -> attention -> linear with either attention, and without any: what both share."""
    import torch

    from rootdk.backends.torch import kernel as torch_kernel
    from rootdk.torch import scaled_dot_product_attention

    generator = torch.Generator().manual_seed(0)
    width = HEADS * D
    tokens = torch.randn(1, n, width, generator=generator)
    into = torch.randn(3 * width, width, generator=generator) / width**0.5
    out_of = torch.randn(width, width, generator=generator) / width**0.5

    def chain(attend: Any) -> Any:
        with torch.no_grad():
            split = torch.nn.functional.linear(tokens, into).view(1, n, 3, HEADS, D)
            query, key, value = split.transpose(1, 3).unbind(2)
            out = attend(query, key, value)
            return torch.nn.functional.linear(out.transpose(1, 2).reshape(1, n, width), out_of)

    def on_own_threads(query: Any, key: Any, value: Any) -> Any:
        before, torch_kernel.team = torch_kernel.team, lambda: 0
        try:
            return scaled_dot_product_attention(query, key, value, is_causal=True)
        finally:
            torch_kernel.team = before

    calls: dict[str, Call] = {
        "rootdk": partial(chain, partial(scaled_dot_product_attention, is_causal=True)),
        "rootdk, own threads": partial(chain, on_own_threads),
        "torch": partial(chain, partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)),
    }
    expected = chain_in_float64(*(tensor.double().numpy() for tensor in (tokens[0], into, out_of)))
    calls, left_out = only_right(calls, lambda _, result: check_near(result[0].numpy(), expected))
    seconds = interleave(calls | {"layers alone": partial(chain, lambda query, *_: query)}, budget, pause=pause)
    return {"name": name, "tokens": n, "pause": pause, "seconds": seconds, "left_out": left_out}


def chain_in_float64(tokens: Any, into: Any, out_of: Any) -> Any:
    """The two linear layers in NumPy, the reference between them."""
    n, width = tokens.shape
    query, key, value = (tokens @ into.T).reshape(n, 3, HEADS, D).transpose(1, 2, 0, 3)
    return answer(query, key, value, causal=True).transpose(1, 0, 2).reshape(n, width) @ out_of.T


_NAME = "between torch's layers"
SECTIONS = (
    of_rows(
        "beside",
        steps,
        partial(judge_each, key="beside", otherwise=_NAME, prefix=f"{_NAME}, "),
        "Between two linear layers of torch, ms, best / median",
        {
            "rootdk": milliseconds("rootdk"),
            "own pool": milliseconds("rootdk, own threads"),
            "torch": milliseconds("torch"),
            "layers": milliseconds("layers alone"),
            "faster": times_faster("torch"),
        },
    ),
)
