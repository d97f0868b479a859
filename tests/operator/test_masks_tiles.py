"""A mask costs what it shows: what a row sees is found once, hidden keys are neither computed nor fetched.

Masks of every structure that decides how a panel walks over the keys: one run per row, holes between runs, holes inside
them, rows and blocks that see nothing; for lengths around the tiles, every target and every layout of a mask in memory.
"""

import subprocess
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from judge import DTYPES, TARGETS, Judge, assert_same_bits, everything, target, threads
from problems import random_arrays

import rootdk

BATCH, HEADS, KV_HEADS = 2, 4, 2
Pattern = Callable[[np.random.Generator, Any, Any], Any]

# (rng, i, j) -> whether query i sees key j; i is a column of rows, j a row of keys.
PATTERNS: dict[str, Pattern] = {
    "documents": lambda rng, i, j: i // 50 == j // 50,
    "ragged documents": lambda rng, i, j: i**2 // 3000 == j**2 // 3000,
    "causal": lambda rng, i, j: j <= i,
    "window": lambda rng, i, j: abs(i - j) < 20,
    "left padding and causal": lambda rng, i, j: (j >= 37) & (j <= i),
    "right padding": lambda rng, i, j: (j < 131) & (i >= 0),
    "first block hidden": lambda rng, i, j: (j >= 130) & (i >= 0),
    "one odd key": lambda rng, i, j: (j == 129) & (i >= 0),
    "sinks and a window": lambda rng, i, j: (j < 3) | (abs(i - j) < 9),
    "a hidden block between": lambda rng, i, j: ((j < 100) | (j >= 256)) & (i >= 0),
    "every third key": lambda rng, i, j: (i + j) % 3 == 0,
    "rows that see nothing": lambda rng, i, j: (i % 40 > 33) & (j >= 0),
    "blocks": lambda rng, i, j: (rng.random((40, 60)) < 0.4)[i // 32, j // 64],
    "odd blocks": lambda rng, i, j: (rng.random((90, 99)) < 0.4)[i // 13, j // 29],
    "random": lambda rng, i, j: rng.random((i.size, j.size)) < 0.5,
    "nothing": lambda rng, i, j: (i < 0) & (j < 0),
    "all": lambda rng, i, j: (i >= 0) & (j >= 0),
}
LENGTHS = ((1, 300), (3, 1100), (33, 129), (130, 257))


def pattern_mask(name: str, n_query: int, n_key: int, seed: int = 0) -> Any:
    i, j = np.arange(n_query)[:, None], np.arange(n_key)[None]
    mask = np.broadcast_to(PATTERNS[name](np.random.default_rng(seed), i, j), (n_query, n_key)).astype(bool)
    assert mask.shape == (n_query, n_key)
    return mask


def masked_arrays(rng: np.random.Generator, n_query: int, n_key: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    arrays = random_arrays(rng, (BATCH,), HEADS, KV_HEADS, n_query, n_key, 16, 17, dtype)
    return arrays, rng.standard_normal((BATCH, HEADS, n_query, 17)).astype(dtype)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern(rng: np.random.Generator, name: str, lengths: tuple[int, int]) -> None:
    judge = Judge(*masked_arrays(rng, *lengths), {"mask": pattern_mask(name, *lengths)})
    for kernel in TARGETS:
        with target(kernel):
            judge.check()


FEW = ("documents", "sinks and a window", "odd blocks", "rows that see nothing")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float32") for name in PATTERNS), *((name, dtype) for name in FEW for dtype in ("float16", "float64"))],
)
def test_a_bias_of_minus_infinity_hides_as_a_mask_does(rng: np.random.Generator, name: str, dtype: str) -> None:
    arrays, d_out = masked_arrays(rng, 70, 260)
    mask = pattern_mask(name, 70, 260)
    bias = np.where(mask, rng.standard_normal(mask.shape), -np.inf).astype(dtype)
    bias_alone = Judge(arrays, d_out, {"bias": bias})
    beside_a_mask = Judge(arrays, d_out, {"bias": bias[None, None], "mask": np.arange(260) % 7 > 0})
    for kernel in TARGETS:
        with target(kernel):
            bias_alone.check()
            beside_a_mask.check()
            zeros = {"bias": np.where(mask, 0.0, -np.inf).astype(dtype)}
            np.testing.assert_array_equal(rootdk.attention(*arrays, **zeros), rootdk.attention(*arrays, mask=mask))


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "float32"])
@pytest.mark.parametrize("name", ["documents", "sinks and a window", "odd blocks"])
def test_every_type(rng: np.random.Generator, name: str, dtype: str) -> None:
    judge = Judge(*masked_arrays(rng, 70, 260, DTYPES[dtype]), {"mask": pattern_mask(name, 70, 260)})
    for kernel in TARGETS:
        with target(kernel):
            judge.check()


LIMITS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"window": (60, 30), "query_offset": 40},
    "lengths": {"key_lengths": [131, 257]},
    "causal window lengths": {"causal": True, "window": 150, "key_lengths": [200, 77], "query_offset": [100, -3]},
    "softcap, sinks, dropout": {"softcap": 2.0, "sinks": [0.5, -2.0, 8.0, 100.0], "dropout": 0.3, "seed": 4},
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
@pytest.mark.parametrize("name", ["left padding and causal", "sinks and a window", "odd blocks", "random"])
def test_with_limits(rng: np.random.Generator, name: str, limits: dict[str, Any]) -> None:
    judge = Judge(*masked_arrays(rng, 130, 257), {"mask": pattern_mask(name, 130, 257), **limits})
    for kernel in TARGETS:
        with target(kernel):
            judge.check()


def layouts(n_query: int, n_key: int) -> dict[str, Any]:
    """The axes along which a mask may be shared, and the orders in which it may lie in memory."""
    entries = [[pattern_mask("odd blocks", n_query, n_key, 9 * b + h) for h in range(HEADS)] for b in range(BATCH)]
    full = np.array(entries)
    wide = np.zeros((BATCH, HEADS, n_query, 2 * n_key), bool)
    wide[..., ::2] = full
    return {
        "of its own": full,
        "shared by heads": full[:, :1],
        "shared by the batch": full[0],
        "shared by rows": full[:, :, :1],
        "shared by all rows": full[0, 0, :1],
        "shared by keys": full[..., :1],
        "one for all": full[0, 0, :1, :1],
        "keys first": np.ascontiguousarray(full.swapaxes(-1, -2)).swapaxes(-1, -2),
        "every second byte": wide[..., ::2],
        "backwards": full[..., ::-1, ::-1],
        "bytes that are not 1": (full * np.uint8(255)).view(bool),
    }


@pytest.mark.parametrize("layout", layouts(1, 1))
@pytest.mark.parametrize("n_query", [1, 45])
def test_every_layout(rng: np.random.Generator, layout: str, n_query: int) -> None:
    Judge(*masked_arrays(rng, n_query, 150), {"mask": layouts(n_query, 150)[layout]}).check()


@pytest.mark.parametrize("kernel", TARGETS)
def test_a_mask_without_holes_is_a_limit(rng: np.random.Generator, kernel: str) -> None:
    """The same bits as with the option: no path of its own, and so no speed of its own."""
    arrays, d_out = masked_arrays(rng, 130, 257)
    i, j = np.arange(130)[:, None], np.arange(257)[None]
    with target(kernel):
        for mask, option in (
            (j <= i, {"causal": True, "query_offset": 0}),
            ((j <= i) & (i - j <= 40), {"causal": True, "window": (40, 0), "query_offset": 0}),
            (j < np.array([131, 20])[:, None, None, None], {"key_lengths": [131, 20]}),
        ):
            assert_same_bits(everything(arrays, d_out, mask=mask), everything(arrays, d_out, **option))


@pytest.mark.parametrize("name", ["ragged documents", "odd blocks"])
def test_same_bits_on_any_number_of_threads(rng: np.random.Generator, name: str) -> None:
    for lengths in ((300, 300), (2, 2500)):
        arrays, d_out = masked_arrays(rng, *lengths)
        options = {"mask": pattern_mask(name, *lengths)}
        with threads(1):
            alone = everything(arrays, d_out, **options)
        for n in (2, 7):
            with threads(n):
                assert_same_bits(everything(arrays, d_out, **options), alone)


@pytest.mark.parametrize("kernel", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_far_numbers_of_a_bias_leave_the_rows_beside_them_alone(
    rng: np.random.Generator, dtype: str, kernel: str
) -> None:
    """Blocks with such a number take a longer way; its rounding must be that of the usual one."""
    q, k, v = (rng.standard_normal((2, n, 16)).astype(dtype) for n in (37, 150, 150))
    bias = rng.standard_normal((2, 37, 150)).astype(dtype)
    far = bias.copy()
    far[:, ::5, 3] = -np.inf
    far[:, 1::5, 140] = np.finfo(dtype).max
    with target(kernel):
        near, beside = (rootdk.attention(q, k, v, bias=given) for given in (bias, far))
    same = np.arange(37) % 5 > 1
    np.testing.assert_array_equal(near[:, same], beside[:, same])
    assert not np.array_equal(near[:, ~same], beside[:, ~same])


@pytest.mark.parametrize("kernel", TARGETS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_hidden_keys_hold_has_no_effect(rng: np.random.Generator, bad: float, kernel: str) -> None:
    for name, lengths in product(("documents", "odd blocks", "every third key"), ((2, 300), (60, 300))):
        (query, key, value), d_out = masked_arrays(rng, *lengths)
        mask = pattern_mask(name, *lengths)
        hidden = [3, 130, 131, 290]
        mask[:, hidden] = False
        with target(kernel):
            clean = everything((query, key, value), d_out, mask=mask)
            key[..., hidden, 1], value[..., hidden, 2] = bad, bad
            assert_same_bits(everything((query, key, value), d_out, mask=mask), clean)


GUARDED = """
import ctypes, mmap, sys
import numpy as np, rootdk

def guarded_rows(n, d, hidden):
    "n rows of d floats; those from hidden[0] to hidden[1] lie in pages that nobody may read."
    memory = mmap.mmap(-1, n * d * 4)
    rows = np.frombuffer(memory, np.float32).reshape(1, 1, n, d)
    rows[...] = np.random.default_rng(0).standard_normal(rows.shape)
    first = rows.ctypes.data + hidden[0] * d * 4
    assert first % mmap.PAGESIZE == 0
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t((hidden[1] - hidden[0]) * d * 4), 0) == 0
    return rows

key, value = (guarded_rows(512, 64, (128, 384)) for _ in range(2))
for n_query in (1, 150):
    query = np.random.default_rng(1).standard_normal((1, 1, n_query, 64)).astype(np.float32)
    mask = np.ones((n_query, 512), bool)
    mask[:, 128:384] = False
    if sys.argv[1] == "seen":
        mask[0, 200] = True
    options = {"mask": mask} if sys.argv[2] == "mask" else {"bias": np.where(mask, 0.0, -np.inf)}
    out, pull_back = rootdk.attention_vjp(query, key, value, **options)
    rootdk.measure(query, key, value, **options)
    pull_back(out)
print("alive")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="mprotect")
@pytest.mark.parametrize("how", ["mask", "bias"])
@pytest.mark.parametrize("shown", ["hidden", "seen"])
def test_hidden_blocks_are_not_even_fetched(shown: str, how: str) -> None:
    """They lie in memory that ends the process when it is read; one visible key there does end it."""
    child = subprocess.run([sys.executable, "-c", GUARDED, shown, how], capture_output=True, text=True, check=False)
    assert (child.stdout == "alive\n") == (shown == "hidden"), child.stderr
