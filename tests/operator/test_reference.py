"""The oracle against outside authorities: torch in float64, autograd, finite differences, SciPy; and its edge cases."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from problems import option_sets, random_arrays
from scipy import special, stats

from rootdk import ScaleRule
from rootdk.backends import problem_of, reference

NAMES = list(option_sets(np.random.default_rng(0)))
TIGHT = {"rtol": 1e-12, "atol": 1e-13}


def torch_math(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """torch's own operator, by the path that follows the definition."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        arrays = (torch.from_numpy(a) for a in (query, key, value))
        return torch.nn.functional.scaled_dot_product_attention(*arrays, **options).numpy()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3, 0.0])
def test_equals_torch(rng: np.random.Generator, causal: bool, scale: float | None) -> None:
    q, k, v = random_arrays(rng)
    ours = reference.forward(problem_of(q, k, v, scale=scale, causal=causal, query_offset=0))
    np.testing.assert_allclose(ours, torch_math(q, k, v, scale=scale, is_causal=causal, enable_gqa=True), **TIGHT)


def test_equals_torch_with_mask_and_with_bias(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, kv_heads=4)
    mask = rng.random((2, 1, 7, 9)) < 0.6
    mask[..., 0] = True  # torch's answer for a row that sees nothing is not what is compared here
    bias = rng.standard_normal((4, 7, 9))
    ours = reference.forward(problem_of(q, k, v, mask=mask))
    np.testing.assert_allclose(ours, torch_math(q, k, v, attn_mask=torch.from_numpy(mask)), **TIGHT)
    ours = reference.forward(problem_of(q, k, v, bias=bias))
    np.testing.assert_allclose(ours, torch_math(q, k, v, attn_mask=torch.from_numpy(bias)), **TIGHT)


def dense_in_torch(query: Any, key: Any, value: Any, bias: Any, sinks: Any, alibi: Any, options: dict[str, Any]) -> Any:
    """Every option written a second time, with n x n tensors, so that autograd gives the gradients."""
    batch, heads, n_query, d_k = query.shape
    n_key, group = key.shape[-2], heads // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    lengths = options.get("key_lengths")
    lengths = torch.full((batch,), n_key) if lengths is None else torch.from_numpy(np.asarray(lengths))
    offset = options.get("query_offset")
    offset = lengths - n_query if offset is None else torch.as_tensor(offset).expand(batch)
    p = (torch.arange(n_query)[None, :, None] + offset[:, None, None])[:, None]
    j = torch.arange(n_key)[None, None, None, :]
    counted, together = lengths[:, None, None, None], torch.ones(batch, 1, n_query, n_key, dtype=torch.bool)
    if "segments" in options:
        p, j, counted, together = packed_in_torch(options, batch, n_query, n_key, lengths)

    scale = options.get("scale")
    if isinstance(scale, ScaleRule):
        assert scale.name == "llama4(2, 0.5)"
        scale = (1 + 0.5 * torch.log1p(torch.floor((p + 1).clamp(min=0).double() / 2))) / math.sqrt(d_k)
    elif scale == "entropy_invariant":
        scale = torch.log(counted.double()) / (math.log(512) * math.sqrt(d_k))
    elif scale is None:
        scale = 1 / math.sqrt(d_k)
    s = scale * (query @ key.transpose(-1, -2))
    if options.get("softcap"):
        s = options["softcap"] * torch.tanh(s / options["softcap"])
    if alibi is not None:
        s = s - alibi[..., None, None] * (p - j).abs()
    if bias is not None:
        s = s + bias
    window = options.get("window", (None, None))
    left, right = window if isinstance(window, tuple) else (window, window)
    right = 0 if options.get("causal") else right
    seen = together & (torch.arange(n_key) < lengths[:, None, None, None])
    seen = seen if left is None else seen & (j >= p - left)
    seen = seen if right is None else seen & (j <= p + right)
    if options.get("mask") is not None:
        seen = seen & torch.from_numpy(options["mask"])
    seen = seen.expand(s.shape)
    s = s.masked_fill(~seen, -torch.inf)
    sink = torch.full_like(s[..., :1], -torch.inf) if sinks is None else sinks[:, None, None].expand(*s.shape[:-1], 1)
    weights = torch.softmax(torch.cat([s, sink], dim=-1), dim=-1)[..., :-1]
    weights = torch.where(seen.any(dim=-1, keepdim=True), weights, 0.0).nan_to_num(0.0)
    return weights, value


def packed_in_torch(options: dict[str, Any], batch: int, n_query: int, n_key: int, lengths: Any) -> tuple[Any, ...]:
    """Positions of queries and keys, how many keys a query's segment has, and who is together: pair by pair."""
    of_queries, of_keys = (
        np.broadcast_to(a, (batch, n)) for a, n in zip(options["segments"], (n_query, n_key), strict=True)
    )
    p, j = torch.zeros(batch, 1, n_query, 1, dtype=torch.int64), torch.zeros(batch, 1, 1, n_key, dtype=torch.int64)
    counted, together = torch.zeros_like(p), torch.zeros(batch, 1, n_query, n_key, dtype=torch.bool)
    for b in range(batch):
        for key in range(n_key):
            j[b, 0, 0, key] = int((of_keys[b, :key] == of_keys[b, key]).sum())
        for query in range(n_query):
            mine = of_queries[b, query]
            keys = int((of_keys[b, : int(lengths[b])] == mine).sum())
            offset = options.get("query_offset")
            start = keys - int((of_queries[b] == mine).sum()) if offset is None else offset
            p[b, 0, query, 0] = int((of_queries[b, :query] == mine).sum()) + start
            counted[b, 0, query, 0] = keys
            together[b, 0, query] = torch.tensor(of_keys[b] == mine)
    return p, j, counted, together


def test_this_file_knows_every_option() -> None:
    assert {name for options in option_sets(np.random.default_rng(0)).values() for name in options} == {
        "scale", "causal", "mask", "bias", "window", "query_offset", "key_lengths", "softcap", "sinks", "alibi",
        "segments", "dropout", "seed",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_output_and_gradients_equal_autograd(rng: np.random.Generator, name: str) -> None:
    options = option_sets(rng)[name]
    arrays = random_arrays(rng)
    problem = problem_of(*arrays, **options)
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    scores = (*arrays[0].shape[:-1], arrays[1].shape[-2])
    bias = sinks = alibi = None
    if "bias" in options:
        bias = torch.tensor(np.broadcast_to(options["bias"], scores).copy(), requires_grad=True)
    if "sinks" in options:
        sinks = torch.tensor(options["sinks"], requires_grad=True)
    if "alibi" in options:
        alibi = torch.tensor(np.broadcast_to(options["alibi"], (2, 4)).copy(), requires_grad=True)
    weights, value = dense_in_torch(*tensors, bias, sinks, alibi, options)
    np.testing.assert_allclose(reference.weights(problem), weights.detach().numpy(), **TIGHT)

    # Dropout has no second author: its pattern is tested by its statistics, and only applied here.
    if problem.dropout:
        gone = np.stack([[reference.dropped(problem, b, h) for h in range(4)] for b in range(2)])
        weights = weights * torch.from_numpy(np.where(gone, 0.0, 1 / (1 - problem.dropout)))
    out = weights @ value
    np.testing.assert_allclose(reference.forward(problem), out.detach().numpy(), **TIGHT)

    d_out = rng.standard_normal(out.shape)
    leaves = [*tensors, *(t for t in (sinks, bias, alibi) if t is not None)]
    expected = torch.autograd.grad(out, leaves, torch.from_numpy(d_out))
    gradients = [gradient for gradient in reference.backward(problem, d_out) if gradient is not None]
    assert len(gradients) == len(expected)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["nothing", "everything"])
def test_gradients_equal_finite_differences(rng: np.random.Generator, name: str) -> None:
    sizes = {"heads": 2, "n_query": 3, "n_key": 4}
    options = option_sets(rng, **sizes)[name]
    arrays = dict(zip(("query", "key", "value"), random_arrays(rng, **sizes, kv_heads=1, d_k=3, d_v=2), strict=True))
    d_out = rng.standard_normal((2, 2, 3, 2))
    leaves = arrays | {name: options[name] for name in ("bias", "sinks", "alibi") if name in options}

    def objective(moved: dict[str, Any]) -> Any:
        problem = problem_of(**{**options, **arrays, **moved})
        return (reference.forward(problem) * d_out).sum()

    gradients = reference.backward(problem_of(**{**options, **arrays}), d_out)
    step = np.finfo(np.float64).eps ** (1 / 3)  # where the error of the difference and of its rounding balance
    for leaf, gradient in gradients._asdict().items():
        if leaf not in leaves:
            assert gradient is None
            continue
        if leaf == "alibi":  # the batch shares the slopes here
            gradient = gradient.sum(axis=0)  # noqa: PLW2901
        numeric = np.zeros_like(leaves[leaf])
        for index in np.ndindex(numeric.shape):
            ends = []
            for sign in (step, -step):
                moved = leaves[leaf].copy()
                moved[index] += sign
                ends.append(objective({leaf: moved}))
            numeric[index] = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(gradient, numeric, atol=100 * step**2, err_msg=leaf)


@pytest.mark.parametrize("name", NAMES)
def test_reading_fields_equal_scipy(rng: np.random.Generator, name: str) -> None:
    problem = problem_of(*random_arrays(rng), **option_sets(rng)[name])
    fields = reference.measure(problem)[1]
    full = reference.logits(problem)
    for b, h, i in np.ndindex(fields["keys"].shape):
        row = full[b, h, i][full[b, h, i] > -np.inf]
        outcomes = row if problem.sinks is None else np.append(row, problem.sinks[h])
        values = {field: column[b, h, i] for field, column in fields.items()}
        if row.size == 0:
            assert_reads_nothing(values, None if problem.sinks is None else problem.sinks[h])
            continue
        p = special.softmax(outcomes)
        expected = {
            "keys": row.size,
            "log_sum_exp": special.logsumexp(outcomes),
            "max": row.max(),
            "min": row.min(),
            "mean": row.mean(),
            "variance": row.var(),
            "entropy": stats.entropy(p),
            "p_squared": (p[: row.size] ** 2).sum(),
            "p_cubed": (p[: row.size] ** 3).sum(),
            "sink_mass": p[row.size :].sum(),
        }
        assert values.keys() == expected.keys()
        for field, number in expected.items():
            assert values[field] == pytest.approx(number, rel=1e-12, abs=1e-13), field


def assert_reads_nothing(values: dict[str, Any], sink: float | None) -> None:
    assert values == {
        "keys": 0, "log_sum_exp": -np.inf if sink is None else pytest.approx(sink), "max": -np.inf, "min": np.inf,
        "mean": 0, "variance": 0, "entropy": 0, "p_squared": 0, "p_cubed": 0, "sink_mass": 0 if sink is None else 1,
    }  # fmt: skip


def test_a_row_with_every_key_hidden_is_zero(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, n_query=9, n_key=4)
    problem = problem_of(q, k, v, causal=True)  # more queries than keys: the first five see nothing
    out, fields = reference.measure(problem)
    assert (out[:, :, :5] == 0).all()
    assert (out[:, :, 5:] != 0).any(axis=-1).all()
    for index in np.ndindex(2, 4, 5):
        assert_reads_nothing({name: column[index] for name, column in fields.items()}, None)
    d_query, d_key, d_value, *_ = reference.backward(problem, np.full(out.shape, np.nan))
    assert (d_query[:, :, :5] == 0).all()
    only_hidden = np.zeros(out.shape)
    only_hidden[:, :, :5] = np.nan
    for gradient in reference.backward(problem, only_hidden)[:3]:
        assert (gradient == 0).all()
    assert np.isnan(d_key).all()
    assert np.isnan(d_value).all()


def test_a_hidden_row_with_a_sink_reads_the_sink(rng: np.random.Generator) -> None:
    problem = problem_of(*random_arrays(rng), key_lengths=[0, 9], sinks=[0.5, 1.0, -3.0, 100.0])
    out, fields = reference.measure(problem)
    assert (out[0] == 0).all()
    for h, sink in enumerate((0.5, 1.0, -3.0, 100.0)):
        assert_reads_nothing({name: column[0, h, 0] for name, column in fields.items()}, sink)


@pytest.mark.parametrize("sizes", [{"n_key": 0}, {"n_query": 0}, {"leading": (0,)}, {"d_v": 0}, {"heads": 0}])
def test_empty_sizes(rng: np.random.Generator, sizes: dict[str, Any]) -> None:
    arrays = random_arrays(rng, **sizes)
    problem = problem_of(*arrays, causal=True)
    out, fields = reference.measure(problem)
    assert out.shape == (*arrays[0].shape[:-1], arrays[2].shape[-1])
    assert out.size == 0 or (out == 0).all()
    assert fields["keys"].shape == arrays[0].shape[:-1]
    gradients = reference.backward(problem, out)[:3]
    assert [g.shape for g in gradients] == [a.shape for a in arrays]
    if "n_key" in sizes:
        assert (out == 0).all()
        assert (fields["log_sum_exp"] == -np.inf).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("how", ["mask", "lengths", "causal"])
def test_hidden_nan_and_inf_have_no_effect(rng: np.random.Generator, bad: float, how: str) -> None:
    q, k, v = random_arrays(rng, n_query=3, n_key=9)
    hidden = np.zeros((3, 9), bool)
    hidden[:, 7:] = True
    options: dict[str, Any] = {
        "mask": {"mask": ~hidden},
        "lengths": {"key_lengths": [7, 7], "query_offset": 0},
        "causal": {"causal": True, "query_offset": 4},  # the last query sees keys 0 to 6
    }[how]
    d_out = rng.standard_normal((2, 4, 3, 5))
    clean = problem_of(q, k, v, **options)
    k_bad, v_bad = k.copy(), v.copy()
    k_bad[:, :, 7:], v_bad[:, :, 7:] = bad, bad
    dirty = problem_of(q, k_bad, v_bad, **options)
    np.testing.assert_array_equal(reference.forward(dirty), reference.forward(clean))
    for ours, expected in zip(reference.backward(dirty, d_out)[:3], reference.backward(clean, d_out)[:3], strict=True):
        np.testing.assert_allclose(ours, expected, **TIGHT)
    for name, column in reference.measure(dirty)[1].items():
        np.testing.assert_array_equal(column, reference.measure(clean)[1][name], err_msg=name)


def test_a_visible_nan_makes_its_rows_nan_and_no_other(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, n_query=9, n_key=9, heads=2, kv_heads=2)
    k[0, 1, 4, 2] = np.nan
    out, fields = reference.measure(problem_of(q, k, v, causal=True))
    expected = np.zeros((2, 2, 9), bool)
    expected[0, 1, 4:] = True
    np.testing.assert_array_equal(np.isnan(out), np.broadcast_to(expected[..., None], out.shape))
    for name in reference.FIELDS:
        np.testing.assert_array_equal(np.isnan(fields[name]), expected, err_msg=name)
    np.testing.assert_array_equal(fields["keys"][0, 1], np.arange(1, 10))


def test_a_visible_nan_value_stays_in_its_column(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, heads=1, kv_heads=1)
    v[0, 0, 2, 3] = np.nan
    out = reference.forward(problem_of(q, k, v))
    assert np.isnan(out[0, 0, :, 3]).all()
    assert np.isfinite(out[0, 0][:, [0, 1, 2, 4]]).all()
    assert np.isfinite(out[1]).all()


def test_a_plus_infinite_logit_is_nan_and_a_minus_infinite_one_hides(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, n_query=2)
    bias = np.zeros((2, 9))
    bias[0, 3], bias[1, 3] = np.inf, -np.inf
    out, fields = reference.measure(problem_of(q, k, v, bias=bias))
    assert np.isnan(out[:, :, 0]).all()
    assert np.isnan(fields["max"][:, :, 0]).all()
    mask = bias[1:] != -np.inf
    np.testing.assert_allclose(out[:, :, 1], reference.forward(problem_of(q[:, :, 1:], k, v, mask=mask))[:, :, 0])
    assert (fields["keys"][:, :, 1] == 8).all()


@pytest.mark.parametrize("level", [1e30, -1e30, -2e4])
def test_huge_logits_are_exact(level: float) -> None:
    q, k = np.ones((1, 1)), np.array([[level], [level], [level * (1.5 if level < 0 else 0.5)]])
    out, fields = reference.measure(problem_of(q, k, np.array([[1.0], [3.0], [100.0]]), scale=1.0))
    assert out.item() == 2.0
    assert fields["log_sum_exp"].item() == pytest.approx(level + math.log(2), rel=1e-15)
    assert fields["entropy"].item() == pytest.approx(math.log(2), rel=1e-15)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_the_rate_that_was_asked_for(rng: np.random.Generator, rate: float) -> None:
    problem = problem_of(*random_arrays(rng, (1,), 1, 1, 300, 300), dropout=rate, seed=3)
    dropped = reference.dropped(problem, 0, 0)
    deviation = math.sqrt(rate * (1 - rate) / dropped.size)
    assert abs(dropped.mean() - rate) < 4.5 * deviation
    # Row and column shares must scatter as independent draws do, neither more nor less.
    for axis in (0, 1):
        chi = ((dropped.mean(axis=axis) - rate) ** 2 / (rate * (1 - rate) / 300)).sum()
        assert stats.chi2(300).cdf(chi) == pytest.approx(0.5, abs=0.5 - 1e-5)


def test_dropout_patterns_are_not_correlated(rng: np.random.Generator) -> None:
    arrays = random_arrays(rng, (2,), 2, 2, 200, 200)

    def pattern(seed: int, b: int = 0, h: int = 0) -> Any:
        return reference.dropped(problem_of(*arrays, dropout=0.5, seed=seed), b, h).astype(float) - 0.5

    base = pattern(7)
    pairs = {
        "next row": (base[1:], base[:-1]),
        "next key": (base[:, 1:], base[:, :-1]),
        "key two on": (base[:, 2:], base[:, :-2]),
        "16 keys on": (base[:, 16:], base[:, :-16]),
        "diagonal": (base[1:, 1:], base[:-1, :-1]),
        "transposed": (base, base.T),
        "next seed": (base, pattern(8)),
        "high seed": (base, pattern(7 + 2**32)),
        "next head": (base, pattern(7, 0, 1)),
        "next batch": (base, pattern(7, 1, 0)),
    }
    for name, (a, b) in pairs.items():
        correlation = 4 * (a * b).mean()
        assert abs(correlation) < 4.5 / math.sqrt(a.size), f"{name}: {correlation}"


def test_dropout_of_two_rows_never_repeats_shifted(rng: np.random.Generator) -> None:
    """A key hash that is only offset by the row would give the same stream at another place."""
    problem = problem_of(*random_arrays(rng, (1,), 1, 1, 40, 4000), dropout=0.5, seed=1)
    rows = reference.dropped(problem, 0, 0).astype(float) - 0.5
    spectra = np.fft.rfft(rows, n=8192, axis=1)
    for i in range(1, 40):
        lags = np.fft.irfft(spectra[0] * spectra[i].conj()) * 4
        assert np.abs(lags).max() / math.sqrt(4000) < 6.5  # 39 x 8192 normal draws stay below this


def test_dropout_hash_by_hand() -> None:
    """The published arithmetic in Python integers, for one row."""

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return z ^ (z >> 31)

    seed, heads, n_query, b, h, i = 2**64 - 3, 4, 7, 1, 2, 5
    z = mix((mix(seed) + ((b * heads + h) * n_query + i + 1) * 0x9E3779B97F4A7C15) % 2**64)
    hashes = []
    for j in range(9):
        x = ((j * 0x9E3779B1) % 2**32) ^ (z % 2**32)
        x = ((x ^ (x >> 16)) * 0x7FEB352D) % 2**32
        x = (((x ^ (x >> 15)) + (z >> 32)) * 0x846CA68B) % 2**32
        hashes.append(x ^ (x >> 16))
    arrays = random_arrays(np.random.default_rng(0))
    for threshold in [*hashes, *(x + 1 for x in hashes)]:  # exact in float64, and every bit of a hash decides
        problem = problem_of(*arrays, dropout=threshold / 2**32, seed=seed)
        assert reference.dropped(problem, b, h)[i].tolist() == [x < threshold for x in hashes]


def test_a_dropped_output_has_the_right_mean(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, (1,), 1, 1, 400, 50)
    v = np.ones_like(v)
    out = reference.forward(problem_of(np.zeros_like(q), k, v, dropout=0.3, seed=5))
    assert out.mean() == pytest.approx(1.0, abs=4.5 * math.sqrt(0.3 / 0.7 / 50 / 400))
    assert out.std() > 0


def test_precisions_are_ordered(rng: np.random.Generator) -> None:
    """float32 errs more than float64 against longdouble, and both no more than the textbook bound."""
    arrays = random_arrays(rng, n_query=30, n_key=200, d_k=64)
    problem = problem_of(*arrays)
    judge = reference.forward(problem, np.longdouble)
    errors = [np.abs(reference.forward(problem, kind) - judge).max() for kind in (np.float64, np.float32)]
    assert 0 < errors[0] < errors[1] / 1e6
    assert errors[1] < 200 * 2.0**-24 * np.abs(arrays[2]).max()
    assert reference.plain(problem, np.float16).dtype == np.float16
    assert np.abs(reference.plain(problem, np.float16) - judge).max() > 100 * errors[1]
