"""Whole models on one attention and on another: what is compared, and how far apart it may be.

A model turns a rounding in its attention into errors of its own size, so no bound from theory fits all of them. The
model itself gives it: twice what float32 costs it with attention that is not rootdk's, and one rounding of the result.
In float64 that cost is less by the 29 bits between the types: the numbers of the model are the same, and so is what it
makes of an error. The judge is then a float64 run as well, and is granted the same once more.
"""

from typing import Any

import torch

UNITS = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def outcome(model: Any, logits: Any) -> dict[str, Any]:
    """The logits, and the gradient of each parameter for a random pull on them."""
    pull = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3)).to(logits.dtype)
    model.zero_grad()
    (logits * pull).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **gradients}


def errors(actual: dict[str, Any], expected: dict[str, Any]) -> tuple[float, float]:
    """The largest error of the logits and of all gradients, each in units of the largest number there."""
    assert actual.keys() == expected.keys()
    names = list(expected)
    return _error(actual, expected, names[:1]), _error(actual, expected, names[1:])


def largest(runs: list[tuple[float, float]]) -> tuple[float, float]:
    """The same of several runs."""
    return max(logits for logits, _ in runs), max(gradients for _, gradients in runs)


def assert_within(reached: tuple[float, float], own: tuple[float, float], dtype: torch.dtype) -> None:
    """`own` are errors() of the model in float32 with an attention that is not rootdk's."""
    for what, error, cost in zip(("logits", "gradients"), reached, own, strict=True):
        allowed = budget(cost, dtype)
        assert error <= allowed, f"{what}: error {error:.3g} above the budget {allowed:.3g}"


def budget(own: float, dtype: torch.dtype) -> float:
    unit, shares = UNITS[dtype], 3 if dtype == torch.float64 else 2
    return shares * (own * unit / UNITS[torch.float32] + unit)


def _error(actual: dict[str, Any], expected: dict[str, Any], names: list[str]) -> float:
    size = max(float(expected[name].abs().max()) for name in names)
    differences = [(actual[name] - expected[name]).abs().max().double() for name in names]
    # torch's max and not Python's: it keeps a NaN.
    return float(torch.stack(differences).max()) / size
