"""What a watch reads of a call, against the float64 definition: through the kernel, by rows, and with torch alone."""

from typing import Any

import numpy as np
import pytest
import torch
from budgets import assert_within, measure_budget
from problems import random_arrays

from rootdk.audit.watching.call import Call, of_sdpa, of_transformers, split
from rootdk.audit.watching.read import read
from rootdk.audit.watching.rows import Scale, sampled_rows, scale_of, sight_of
from rootdk.backends import problem_of, reference

N_QUERY, N_KEY, HEADS = 13, 17, 4
WAYS = {"kernel": None, "kernel, rows": 6, "torch": N_QUERY, "torch, rows": 6}


def options_of(rng: np.random.Generator) -> dict[str, dict[str, Any]]:
    """Options of a call, in the words of rootdk.attention; queries stand at the top left."""
    scores = (2, HEADS, N_QUERY, N_KEY)
    mask = rng.random(scores) < 0.7
    mask[0, 0, 3] = False
    left = np.arange(N_KEY) >= np.array([0, 5])[:, None, None, None]
    bias, sinks = rng.standard_normal(scores), rng.standard_normal(HEADS)
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "scaled": {"scale": 2.5},
        "causal": {"causal": True},
        "window": {"causal": True, "window": (4, None)},
        "mask": {"mask": mask},
        "padding": {"mask": left, "causal": True},
        "bias": {"bias": bias},
        "one bias for all": {"bias": bias[:1, :1], "causal": True},
        "softcap": {"softcap": 1.5},
        "sinks": {"sinks": sinks},
    }
    return options | {"all": {"scale": 0.7, "causal": True, "mask": mask, "bias": bias, "softcap": 2.0, "sinks": sinks}}


def call_of(q: Any, k: Any, v: Any, out: Any, options: dict[str, Any]) -> Call:
    """The same as a model would make it: keys are hidden by what is added, not by a mask."""
    tensor = {name: torch.from_numpy(given) for name, given in options.items() if name in ("mask", "bias", "sinks")}
    added = tensor.get("bias")
    if "mask" in options:
        hide = torch.where(tensor["mask"], 0.0, -torch.inf).to(q.dtype)
        added = hide if added is None else added.to(q.dtype) + hide
    return Call(
        q, k, v, out,
        scale=options.get("scale", q.shape[-1] ** -0.5),
        causal=options.get("causal", False),
        mask=None,
        added=added,
        softcap=options.get("softcap"),
        sinks=tensor.get("sinks"),
        reach=options["window"][0] if "window" in options else None,
        dropout=0.0,
        route="test",
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", options_of(np.random.default_rng(0)))
def test_every_field_is_that_of_the_definition(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, name: str, way: str, dtype: Any
) -> None:
    if "torch" in way:
        monkeypatch.setattr("rootdk.audit.watching.read.has_kernel", lambda query: False)
    arrays = random_arrays(rng, heads=HEADS, n_query=N_QUERY, n_key=N_KEY, dtype=dtype)
    options = options_of(rng)[name]
    given = {key: v.astype(dtype) if key in ("bias", "sinks") else v for key, v in options.items()}
    problem = problem_of(*arrays, query_offset=0, **given)
    call = call_of(*map(torch.from_numpy, arrays), torch.from_numpy(reference.forward(problem)), given)
    scale = scale_of(call)
    assert scale.used == scale.given == call.scale
    assert scale.mismatch < 1e-5
    layer = read("layer", 0, call, scale, sight_of(call), WAYS[way])
    rows = np.arange(N_QUERY) if "rows" not in way else sampled_rows(N_QUERY, 6, torch.device("cpu")).numpy()
    assert layer.sampled == ("rows" in way)
    budget = measure_budget(problem)
    for field, (expected, bound) in budget.items():
        assert_within(getattr(layer.reading, field).numpy(), expected[..., rows], bound, field)
    keys = reference.measure(problem)[1]["keys"][..., rows]
    assert np.array_equal(layer.reading.keys.numpy(), keys)
    assert layer.reading.has_sinks == ("sinks" in options)
    # The weight of the first key that anybody sees in a batch entry.
    weights = reference.weights(problem)[..., rows, :]
    first = [5 if name == "padding" and batch else 0 for batch in (0, 1)]
    expected = np.stack([weights[batch, ..., key] for batch, key in enumerate(first)])
    assert_within(layer.first_weight.numpy(), expected, budget["p_squared"][1], "first weight")
    # Before cap and bias: what the same call without them shows.
    bare = {key: value for key, value in given.items() if key not in ("bias", "softcap", "sinks")}
    for field, (values, bound) in measure_budget(problem_of(*arrays, query_offset=0, **bare)).items():
        assert_within(getattr(layer.scores, field).numpy(), values[..., rows], bound, f"scores, {field}")


@pytest.mark.parametrize("name", ["plain", "causal", "padding", "bias", "softcap", "sinks", "all"])
@pytest.mark.parametrize("wrong", [0.2, 3.0])
def test_the_scale_comes_from_the_output(rng: np.random.Generator, name: str, wrong: float) -> None:
    arrays = random_arrays(rng, heads=HEADS, n_query=N_QUERY, n_key=N_KEY)
    options = options_of(rng)[name]
    problem = problem_of(*arrays, query_offset=0, **options)
    out = torch.from_numpy(reference.forward(problem))
    call = call_of(*map(torch.from_numpy, arrays), out, options | {"scale": wrong * problem.scale})
    scale = scale_of(call)
    assert scale.used == pytest.approx(problem.scale, rel=1e-6)
    assert scale.given == wrong * problem.scale
    assert scale.mismatch < 1e-6


@pytest.mark.parametrize("stretch", [1.0, 50.0, 2000.0])
def test_rounding_is_no_other_scale(stretch: float) -> None:
    """A saturated row looks the same under many scales; one that fits its rounding better is not to be believed."""
    for seed in range(5):
        q, k, v = torch.randn(3, 2, 4, 24, 8, generator=torch.Generator().manual_seed(seed)).unbind(0)
        for dtype in (torch.float32, torch.bfloat16):
            given = (stretch * q).to(dtype), k.to(dtype), v.to(dtype)
            out = torch.nn.functional.scaled_dot_product_attention(*given)
            scale = scale_of(of_sdpa(out, *given))
            assert scale.used == scale.given
            assert scale.mismatch < 0.05


def test_an_output_that_says_nothing_leaves_the_scale_alone() -> None:
    q, k, v = torch.randn(3, 1, 2, 6, 4, generator=torch.Generator().manual_seed(0)).unbind(0)
    constant = torch.ones_like(v)
    same = of_sdpa(torch.ones_like(q), q, k, constant, scale=0.3)
    assert scale_of(same) == Scale(0.3, 0.3, pytest.approx(0, abs=1e-6))
    dropped = of_sdpa(torch.zeros_like(q), q, k, v, dropout_p=0.1)
    assert scale_of(dropped).used == 0.5
    assert np.isnan(scale_of(dropped).mismatch)


@pytest.mark.parametrize("lowest", [-torch.inf, torch.finfo(torch.float32).min, -1e4])
def test_a_bias_that_only_hides_is_a_mask(lowest: float) -> None:
    hides = torch.zeros(1, 1, 3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), lowest)
    mask, bias = split(hides)
    assert bias is None
    assert mask is not None
    assert mask.sum() == 6
    mask, bias = split(hides + 0.5)
    assert mask is not None
    assert bias is not None
    assert bias[0, 0, 2].tolist() == [0.5, 0.5, 0.5]
    assert split(torch.zeros(2, 2)) == (None, None)


def test_what_transformers_calls_mean() -> None:
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    out = torch.randn(2, 6, 4, 8)

    class Decoder:
        is_causal, training = True, True

    eager = of_transformers((out, None), True, Decoder(), q, k, k, None, dropout=0.3, scaling=0.2, sliding_window=3)
    assert not eager.causal
    assert eager.reach is None
    assert (eager.scale, eager.dropout) == (0.2, 0.3)
    assert eager.out.shape == (2, 4, 6, 8)
    other = of_transformers((out, None), False, Decoder(), q, k, k, None, sliding_window=3)
    assert other.causal
    assert other.reach == 2
    padding = torch.ones(2, 6, dtype=torch.long)
    flash = of_transformers((out, None), False, Decoder(), q, k, k, padding, sliding_window=3)
    assert flash.causal
    assert flash.mask is not None
    assert flash.mask.shape == (2, 1, 1, 6)
    single = of_transformers((out[:, :1], None), False, Decoder(), q[:, :, :1], k, k, None)
    assert not single.causal
