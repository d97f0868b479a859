"""Few query rows over many keys take a path of their own: keys are split into chunks whose parts are merged."""

from typing import Any

import numpy as np
import pytest
from judge import DTYPES, TARGETS, Judge, assert_same_bits, everything, target, threads
from problems import random_arrays

import rootdk
from rootdk import scaling

# Longer than two chunks of 1024 keys, and not a multiple of anything.
KEYS = 2500

OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"causal": True},
    "window inside one chunk": {"window": (40, 0)},
    "window across chunks": {"window": (1500, 0), "query_offset": 2100},
    "rows that see nothing": {"causal": True, "query_offset": -1},
    "lengths": {"key_lengths": [1030, 2500]},
    "softcap": {"softcap": 2.0, "scale": 1.0},
    "sinks": {"sinks": [0.5, -2.0, 8.0, 100.0]},
    "dropout": {"dropout": 0.3, "seed": 4},
    "scale by position": {"scale": scaling.llama4(2, 0.5)},
}


def decode_arrays(rng: np.random.Generator, dtype: Any, n_query: int = 1, heads: int = 4) -> tuple[Any, Any]:
    arrays = random_arrays(rng, (2,), heads, 2, n_query, KEYS, 20, 21, dtype)
    return arrays, rng.standard_normal((2, heads, n_query, 21)).astype(dtype)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_option(rng: np.random.Generator, options: dict[str, Any], name: str) -> None:
    with target(name):
        Judge(*decode_arrays(rng, np.float32), options).check()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("scale", [1e4, 1e11])
def test_the_gradient_sees_the_weights_of_the_forward(rng: np.random.Generator, scale: float, name: str) -> None:
    """Where logits are huge, scores summed in another order would be other scores: one key has all the weight."""
    arrays, d_out = decode_arrays(rng, np.float32)
    with target(name):
        out, pull_back = rootdk.attention_vjp(*arrays, scale=scale)
        d_value = pull_back(d_out)[2]
    assert np.isfinite(out).all()
    assert ((d_value != 0).any(axis=-1).sum(axis=-1) <= 4).all()  # two rows share a key head; a near tie is allowed
    np.testing.assert_allclose(d_value.sum(axis=-2), d_out.reshape(2, 2, 2, 21).sum(axis=2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type(rng: np.random.Generator, dtype: str) -> None:
    Judge(*decode_arrays(rng, DTYPES[dtype]), {"causal": True}).check()


@pytest.mark.parametrize("n_query", [1, 2, 3, 4, 5, 8, 9])
def test_more_and_more_rows(rng: np.random.Generator, n_query: int) -> None:
    """Two query heads share a key head: the number of rows crosses from this path to the other one."""
    mask = rng.random((4, n_query, KEYS)) < 0.5
    Judge(*decode_arrays(rng, np.float32, n_query), {"mask": mask, "bias": rng.standard_normal(KEYS)}).check()


def test_same_bits_on_any_number_of_threads(rng: np.random.Generator) -> None:
    arrays, d_out = decode_arrays(rng, np.float32)
    with threads(1):
        alone = everything(arrays, d_out, causal=True)
    for n in (2, 7):
        with threads(n):
            assert_same_bits(everything(arrays, d_out, causal=True), alone)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_hidden_value_has_no_effect(rng: np.random.Generator, bad: float) -> None:
    arrays, d_out = decode_arrays(rng, np.float32)
    mask = np.ones(KEYS, bool)
    mask[[3, 1500]] = False
    clean = everything(arrays, d_out, mask=mask)
    arrays[1][:, :, [3, 1500]] = arrays[2][:, :, [3, 1500]] = bad
    assert_same_bits(everything(arrays, d_out, mask=mask), clean)


def test_a_visible_nan_reaches_its_row_from_any_chunk(rng: np.random.Generator) -> None:
    arrays, _ = decode_arrays(rng, np.float32)
    arrays[1][0, 0, 2400, 0] = np.nan
    out, reading = rootdk.measure(*arrays)
    assert np.isnan(out[0, :2]).all()
    assert np.isnan(reading.entropy[0, :2]).all()
    assert np.isfinite(out[0, 2:]).all()
    assert np.isfinite(out[1]).all()


# Key heads that share a panel: 19 of them with two rows each fill one of 32 lanes and a part of another.
SHORT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "lengths": {"key_lengths": [0, 3]},
    "softcap, window": {"softcap": 2.0, "scale": 1.0, "window": (1, 2)},
    "sinks": {"sinks": np.linspace(-3, 100, 38)},
    "dropout": {"dropout": 0.3, "seed": 4},
    "slopes": {"alibi": np.linspace(0, 1, 38)},
    "heads that see less and less": {"mask": np.arange(16) < np.maximum(1, 16 - np.arange(38) // 2)[:, None, None]},
    "segments": {"segments": (np.array([1]), np.arange(16) % 3)},
}


def short_arrays(rng: np.random.Generator, dtype: Any, n_key: int) -> tuple[Any, Any]:
    arrays = random_arrays(rng, (2,), 38, 19, 1, n_key, 20, 21, dtype)
    return arrays, rng.standard_normal((2, 38, 1, 21)).astype(dtype)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("options", SHORT.values(), ids=SHORT.keys())
def test_key_heads_share_a_panel(rng: np.random.Generator, options: dict[str, Any], name: str) -> None:
    with target(name):
        Judge(*short_arrays(rng, np.float32, 16), options).check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_key", [1, 2, 3, 16, 17])
def test_few_keys_of_every_type(rng: np.random.Generator, n_key: int, dtype: str) -> None:
    mask = rng.random((2, 38, 1, n_key)) < 0.5
    Judge(*short_arrays(rng, DTYPES[dtype], n_key), {"mask": mask, "bias": rng.standard_normal(n_key)}).check()


@pytest.mark.parametrize("bad", [0.0, np.nan, 1e38])
def test_a_head_is_the_same_alone(rng: np.random.Generator, bad: float) -> None:
    """Whatever the heads hold whose panel it shares; each pair of heads beside its mask, which has holes."""
    (query, key, value), d_out = short_arrays(rng, np.float32, 7)
    mask = rng.random((2, 38, 1, 7)) < 0.6
    query[:, 0], key[:, 2, 3], value[:, 4, 5] = bad, bad, bad
    together = everything((query, key, value), d_out, mask=mask)
    for pair in range(19):
        heads, kv = slice(2 * pair, 2 * pair + 2), slice(pair, pair + 1)
        alone = everything((query[:, heads], key[:, kv], value[:, kv]), d_out[:, heads], mask=mask[:, heads])
        for name, array in together.items():
            expected = array[:, kv] if name in ("d_key", "d_value") else array[:, heads]
            np.testing.assert_array_equal(alone[name], expected, err_msg=f"{name}, pair {pair}")


LARGE: dict[str, Any] = {
    "bias of keys": lambda rng, n_key: {"bias": 1e4 * rng.standard_normal(n_key)},
    "bias of heads": lambda rng, n_key: {"bias": 1e4 * rng.standard_normal((38, 1, n_key))},
    "bias of queries": lambda rng, n_key: {"bias": 1e4 * rng.standard_normal((38, 3, 1))},
    "bias of pairs": lambda rng, n_key: {"bias": 1e4 * rng.standard_normal((38, 3, n_key))},
    "slopes": lambda rng, n_key: {"alibi": np.linspace(0.1, 1, 38), "query_offset": 20_000},
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("n_query", [1, 3])
@pytest.mark.parametrize("n_key", [1, 5, 16, 17, 40])
@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE.keys())
def test_the_gradient_rounds_large_logits_as_the_forward_does(
    rng: np.random.Generator, large: Any, n_key: int, n_query: int, name: str
) -> None:
    """Paths that add a large term to a logit must fuse the multiplication alike: else weights differ by its rounding.

    Values of the unit matrix make the output the weights; a gradient of one on a row's output makes dV its weights.
    """
    query, key = rng.standard_normal((2, 1, 38, 40, 20)).astype(np.float32)
    query, key = query[:, :, :n_query], key[:, :, :n_key]
    value = np.broadcast_to(np.eye(n_key, dtype=np.float32), (1, 38, n_key, n_key))
    options = large(rng, n_key)
    if "bias" in options:
        bias = options["bias"].astype(np.float32)
        options["bias"] = bias[:, :n_query] if bias.ndim == 3 else bias
    with target(name):
        weights, pull_back = rootdk.attention_vjp(query, key, value, **options)
        for row in range(n_query):
            d_out = np.zeros_like(weights)
            d_out[:, :, row] = 1
            again = pull_back(d_out)[2]
            expected = np.broadcast_to(weights[:, :, row, :, None], again.shape)
            np.testing.assert_allclose(again, expected, rtol=1e-5, atol=1e-6)
