"""Reading: derived quantities against the weights themselves, merges against the whole, views and storage."""

import copy
import dataclasses
import io
import json
import math
import pickle
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch
from problems import option_sets, random_arrays
from rich.console import Console

import rootdk
from rootdk import ArgumentError, ArgumentTypeError, HeadSummary, Reading, rendering
from rootdk.backends import problem_of, reference
from rootdk.reading import FIELDS
from rootdk.summary import _COLUMNS

NAMES = list(option_sets(np.random.default_rng(0)))


def reading_of(problem: Any, dtype: Any = np.float64) -> Reading:
    fields = reference.measure(problem)[1]
    columns = {name: fields[name].astype(dtype) for name in FIELDS}
    return Reading(**columns, keys=fields["keys"], has_sinks=problem.sinks is not None)


@pytest.mark.parametrize("name", NAMES)
def test_derived_quantities_equal_the_weights(rng: np.random.Generator, name: str) -> None:
    problem = problem_of(*random_arrays(rng), **option_sets(rng)[name])
    reading = reading_of(problem)
    p, s = reference.weights(problem), reference.logits(problem)
    for index in np.ndindex(reading.shape):
        row = p[index]
        seen = int((s[index] > -np.inf).sum())
        jacobian = np.diag(row) - np.outer(row, row)
        outcomes = seen + (problem.sinks is not None)
        expected = {
            "top_probability": row.max(),
            "effective_keys": row.sum() ** 2 / (row**2).sum() if seen else 0.0,
            "jacobian_trace": np.trace(jacobian),
            "jacobian_norm": np.linalg.norm(jacobian),
            "std": s[index][s[index] > -np.inf].std() if seen else 0.0,
        }
        for field, number in expected.items():
            # The trace and the norm of a row with one key are differences of ones: 1e-8 is the root of rounding.
            assert getattr(reading, field)[index] == pytest.approx(number, rel=1e-10, abs=2e-8), field
        everything = row if problem.sinks is None else np.append(row, 1 - row.sum())
        everything = everything[everything > 1e-14]
        ratio = reading.entropy_ratio[index]
        if outcomes < 2:
            assert math.isnan(ratio)
        elif seen:
            assert ratio == pytest.approx(-(everything * np.log(everything)).sum() / math.log(outcomes), abs=1e-10)


def test_saturated_and_its_threshold() -> None:
    logits = np.array([[0.0, 100.0], [0.0, 4.0], [0.0, 0.0]])
    reading = reading_of(problem_of(logits, np.eye(2), np.eye(2), scale=1.0))
    assert reading.saturated().tolist() == [[True, False, False]]
    assert reading.saturated(0.9).tolist() == [[True, True, False]]


def test_derived_quantities_stay_in_their_range_in_float32(rng: np.random.Generator) -> None:
    """Rounding must not give a negative trace, the root of a negative number, or more effective keys than keys."""
    q, k, v = random_arrays(rng, n_query=200, n_key=5)
    reading = reading_of(problem_of(q * 20, k, v, sinks=rng.standard_normal(4) * 20), np.float32)
    assert (reading.jacobian_trace >= 0).all()
    assert np.isfinite(reading.jacobian_norm).all()
    effective = reading.effective_keys
    resolved = np.isfinite(effective)
    assert resolved.mean() > 0.5
    assert (effective[resolved] >= 1).all()
    assert (effective <= 5)[resolved].all()
    for name in ("std", "top_probability", "effective_keys", "entropy_ratio", "jacobian_trace", "jacobian_norm"):
        assert getattr(reading, name).dtype == np.float32, name


def test_equal_weights_never_count_more_keys_than_there_are() -> None:
    """(sum p)^2 / sum p^2 of n equal weights beside a sink is n, but rounded to float32 it lies above n for some n."""
    crossed = 0
    for n in range(1, 60):
        problem = problem_of(np.zeros((1, 1)), np.zeros((n, 1)), np.zeros((n, 1)), sinks=2.0)
        reading = reading_of(problem, np.float32)
        crossed += bool(((1 - reading.sink_mass) ** 2 / reading.p_squared).item() > n)
        assert reading.effective_keys.item() == pytest.approx(n, rel=1e-5)
        assert reading.effective_keys.item() <= n
    assert crossed > 0


def test_hidden_rows_and_rows_of_nan_are_told_apart(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, (), 2, 2, 6, 3)
    q[1, 5] = np.nan
    with np.errstate(all="raise"):
        reading = reading_of(problem_of(q, k, v, causal=True))
        assert reading.top_probability[:, :3].tolist() == [[0.0] * 3] * 2
        assert reading.effective_keys[:, :3].tolist() == [[0.0] * 3] * 2
        assert reading.jacobian_trace[:, :4].tolist() == [[0.0] * 4] * 2
        assert np.isnan(reading.entropy_ratio[:, :4]).all()
        assert reading.non_finite.tolist() == [[False] * 6, [False] * 5 + [True]]
        for name in ("top_probability", "effective_keys", "entropy_ratio", "jacobian_trace", "jacobian_norm"):
            assert math.isnan(getattr(reading, name)[1, 5]), name
        summary = reading.by_head()
    assert summary.rows.tolist() == [6, 6]
    assert summary.hidden_rows.tolist() == [3, 3]
    assert summary.non_finite_rows.tolist() == [0, 1]
    assert summary.mean_keys.tolist() == [2.0, 1.5]
    assert np.isfinite(summary.mean_entropy).all()


@pytest.mark.parametrize("min_keys", [1, 4])
def test_by_head_equals_numpy(rng: np.random.Generator, min_keys: int) -> None:
    problem = problem_of(*random_arrays(rng, (2, 3)), causal=True, query_offset=0, sinks=rng.standard_normal(4))
    reading = reading_of(problem)
    summary = reading.by_head(min_keys)
    assert len(summary) == 4
    for h in range(4):
        use = reading.keys[:, :, h] >= min_keys
        assert use.sum() == 2 * 3 * (8 - min_keys)

        def of(name: str, h: int = h, use: Any = use) -> Any:
            return getattr(reading, name)[:, :, h][use]

        expected = {
            "rows": 42,
            "hidden_rows": 6 * (min_keys - 1),
            "non_finite_rows": 0,
            "mean_keys": of("keys").mean(),
            "mean_std": of("std").mean(),
            "median_std": np.median(of("std")),
            "mean_variance": of("variance").mean(),
            "median_variance": np.median(of("variance")),
            "max_logit": of("max").max(),
            "min_logit": of("min").min(),
            "mean_log_sum_exp": of("log_sum_exp").mean(),
            "min_log_sum_exp": of("log_sum_exp").min(),
            "mean_entropy": of("entropy").mean(),
            "mean_entropy_ratio": of("entropy_ratio").mean(),
            "median_entropy_ratio": np.median(of("entropy_ratio")),
            "mean_effective_keys": of("effective_keys").mean(),
            "median_effective_keys": np.median(of("effective_keys")),
            "mean_top_probability": of("top_probability").mean(),
            "median_top_probability": np.median(of("top_probability")),
            "saturated": reading.saturated()[:, :, h][use].mean(),
            "mean_p_squared": of("p_squared").mean(),
            "mean_jacobian_trace": of("jacobian_trace").mean(),
            "median_jacobian_trace": np.median(of("jacobian_trace")),
            "mean_jacobian_norm": of("jacobian_norm").mean(),
            "median_jacobian_norm": np.median(of("jacobian_norm")),
            "mean_sink_mass": of("sink_mass").mean(),
        }
        assert {field for field in summary.to_dict() if field != "kind"} == expected.keys()
        for name, number in expected.items():
            assert getattr(summary, name)[h] == pytest.approx(number, rel=1e-12), name


def test_by_head_without_a_head_axis_and_without_rows(rng: np.random.Generator) -> None:
    q = rng.standard_normal((5, 4))
    whole = reading_of(problem_of(q, q, q))
    flat = Reading(**{name: getattr(whole, name)[0] for name in (*FIELDS, "keys")}, has_sinks=False)
    assert flat.by_head().to_dict() == whole.by_head().to_dict()
    with np.errstate(all="raise"):
        nothing = reading_of(problem_of(q, q[:0], q[:0])).by_head()
    assert nothing.hidden_rows.tolist() == [5]
    assert np.isnan(nothing.mean_entropy).all()
    empty = reading_of(problem_of(q[None, None, :0], q[None, None], q[None, None])).by_head()
    assert empty.rows.tolist() == [0]
    with pytest.raises(ArgumentError, match="min_keys: must be at least 1, got 0"):
        whole.by_head(0)
    for bad in ("a", 1.5, None, True):
        with pytest.raises(ArgumentTypeError) as caught:
            whole.by_head(bad)  # type: ignore[arg-type]
        assert str(caught.value) == f"min_keys: must be an int, got {bad!r}"
    assert whole.by_head(np.int64(2)).to_dict() == whole.by_head(2).to_dict()  # type: ignore[arg-type]


def assert_same(reading: Reading, expected: Reading, tolerance: float) -> None:
    assert reading.has_sinks == expected.has_sinks
    np.testing.assert_array_equal(reading.keys, expected.keys)
    for name in FIELDS:
        ours, theirs = getattr(reading, name), getattr(expected, name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("sinks", [False, True])
def test_merge_equals_the_whole(rng: np.random.Generator, sinks: bool, dtype: Any) -> None:
    q, k, v = random_arrays(rng, n_query=11, n_key=11)
    k[..., :4, :] += 3  # the parts must differ in mean and in level
    options = {"bias": rng.standard_normal((11, 11)), "scale": 1.0}
    extra = {"sinks": rng.standard_normal(4)} if sinks else {}
    parts = []
    for start, stop in ((0, 4), (4, 5), (5, 11)):
        mask = np.zeros((11, 11), bool)
        mask[:, start:stop] = True
        mask &= np.tri(11, dtype=bool)  # so that some rows see nothing of a part
        parts.append(reading_of(problem_of(q, k, v, mask=mask, **options, **(extra if start == 4 else {})), dtype))
    whole = reading_of(problem_of(q, k, v, causal=True, **options, **extra), dtype)
    # Fewer than 16 roundings, and a share is the exponential of a level that was itself rounded.
    level = np.abs(whole.log_sum_exp).max() + np.abs(whole.max).max() ** 2
    tolerance = (16 + level) * np.finfo(dtype).eps
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert_same(parts[0].merge(parts[1]).merge(parts[2]), whole, tolerance)
        assert_same(parts[2].merge(parts[0].merge(parts[1])), whole, tolerance)


def test_merge_of_rows_that_see_nothing_or_nan(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng)
    nothing = reading_of(problem_of(q, k, v, key_lengths=0))
    usual = reading_of(problem_of(q, k, v))
    assert_same(nothing.merge(usual), usual, 1e-14)
    assert_same(usual.merge(nothing), usual, 1e-14)
    assert_same(nothing.merge(nothing), nothing, 0)
    k[0, 0, 0, 0] = np.nan
    broken = reading_of(problem_of(q, k, v))
    for merged in (usual.merge(broken), broken.merge(usual), broken.merge(nothing)):
        np.testing.assert_array_equal(merged.non_finite, broken.non_finite)
        for name in FIELDS:
            np.testing.assert_array_equal(np.isnan(getattr(merged, name)), broken.non_finite, err_msg=name)


def test_merge_at_huge_levels() -> None:
    """Shares come from differences of log_sum_exp: levels of 1e4 apart must neither overflow nor become NaN."""
    v = np.ones((2, 1))
    low = reading_of(problem_of(np.ones((1, 1)), np.array([[-2e4], [-2e4]]), v, scale=1.0))
    high = reading_of(problem_of(np.ones((1, 1)), np.array([[2e4], [2e4]]), v, scale=1.0))
    merged = low.merge(high)
    assert merged.entropy.item() == pytest.approx(math.log(2))
    assert merged.variance.item() == pytest.approx(4e8)
    assert merged.effective_keys.item() == pytest.approx(2.0)


def test_merge_refuses_what_cannot_be_merged(rng: np.random.Generator) -> None:
    arrays = random_arrays(rng)
    plain, sink = reading_of(problem_of(*arrays)), reading_of(problem_of(*arrays, sinks=np.zeros(4)))
    short = reading_of(problem_of(arrays[0][:, :, :3], *arrays[1:]))
    with pytest.raises(ArgumentError) as caught:
        sink.merge(sink)
    assert str(caught.value) == "other: must be measured without sinks if this reading has them, got sinks in both"
    with pytest.raises(ArgumentError) as caught:
        plain.merge(short)
    assert str(caught.value) == "other: must have the shape (2, 4, 7) of this reading, got (2, 4, 3)"
    with pytest.raises(ArgumentTypeError) as type_caught:
        plain.merge(3)  # type: ignore[arg-type]
    assert str(type_caught.value) == "other: must be a Reading, got int"
    with pytest.raises(ArgumentError) as caught:
        Reading.concatenate([plain, sink])
    assert str(caught.value) == "readings: must all be with sinks or all without, got both"
    with pytest.raises(ArgumentError) as caught:
        Reading.concatenate([])
    assert str(caught.value) == "readings: must hold at least one Reading, got none"
    with pytest.raises(ArgumentTypeError) as type_caught:
        Reading.concatenate([3])  # type: ignore[list-item]
    assert str(type_caught.value) == "readings: must hold Readings, got int"


def test_concatenate_says_what_does_not_fit(rng: np.random.Generator) -> None:
    arrays = random_arrays(rng)
    plain = reading_of(problem_of(*arrays))
    one_batch = reading_of(problem_of(*(array[:1] for array in arrays)))
    flat = Reading(**{name: getattr(plain, name)[0] for name in (*FIELDS, "keys")}, has_sinks=False)
    tensors = {name: torch.from_numpy(getattr(plain, name)) for name in (*FIELDS, "keys")}
    cases: list[tuple[Any, Any, str]] = [
        (plain, -1, "readings: must be several Readings, got Reading"),
        (iter([]), -1, "readings: must hold at least one Reading, got none"),
        ([plain, one_batch], -1,
         "readings: must have shapes that are alike but for axis -1, got (2, 4, 7) and (1, 4, 7)"),
        ([plain, flat], 0, "readings: must have shapes that are alike but for axis 0, got (2, 4, 7) and (4, 7)"),
        ([plain], 3, "axis: must be from -3 to 2 for readings of shape (2, 4, 7), got 3"),
        ([plain], -4, "axis: must be from -3 to 2 for readings of shape (2, 4, 7), got -4"),
        ([plain], "rows", "axis: must be an int, got 'rows'"),
        ([plain], True, "axis: must be an int, got True"),
        ([plain, Reading(**tensors, has_sinks=False)], -1,
         "readings: must all be of one array library, got numpy and torch"),
    ]  # fmt: skip
    for readings, axis, message in cases:
        with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
            Reading.concatenate(readings, axis)
        assert str(caught.value) == message


def test_concatenate_equals_the_whole(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, kv_heads=4)
    whole = reading_of(problem_of(q, k, v))
    rows = [reading_of(problem_of(q[:, :, part], k, v)) for part in (slice(0, 3), slice(3, 7))]
    heads = [reading_of(problem_of(q[:, part], k[:, part], v[:, part])) for part in (slice(0, 1), slice(1, 4))]
    batch = [reading_of(problem_of(q[part], k[part], v[part])) for part in (slice(0, 1), slice(1, 2))]
    assert_same(Reading.concatenate(rows), whole, 1e-13)
    assert_same(Reading.concatenate(part for part in rows), whole, 1e-13)
    assert_same(Reading.concatenate(heads, axis=-2), whole, 1e-13)
    assert_same(Reading.concatenate(batch, axis=0), whole, 1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_storage_round_trip(rng: np.random.Generator, dtype: Any) -> None:
    q, k, v = random_arrays(rng)
    q[0, 0, 3] = np.nan
    reading = reading_of(problem_of(q, k, v, key_lengths=[9, 0]), dtype)  # has NaN, -inf and +inf
    text = reading.to_json()
    back = Reading.from_dict(json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")))
    assert_same(back, reading, 0)
    assert back.shape == reading.shape
    summary = reading.by_head()
    again = HeadSummary.from_dict(json.loads(summary.to_json()))
    assert again.to_dict() == summary.to_dict()
    assert again.rows.dtype == np.int64
    with pytest.raises(ArgumentError) as caught:
        Reading.from_dict(summary.to_dict())
    assert str(caught.value) == "data: must be a dictionary of kind 'rootdk.Reading', got 'rootdk.HeadSummary'"


@pytest.mark.parametrize("made", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("axes", [2, 4])
def test_what_measure_gives_is_a_reading_like_any_other(rng: np.random.Generator, made: Any, axes: int) -> None:
    """Its fields are views of one block, made when they are asked for; nothing but the time tells."""
    arrays = [made(a if axes == 4 else a[0, 0]) for a in random_arrays(rng, heads=2, kv_heads=2)]
    reading = rootdk.measure(*arrays, causal=True, sinks=rng.standard_normal(2 if axes == 4 else 1))[1]
    names = (*FIELDS, "keys", "has_sinks")
    plain = Reading(**{name: getattr(reading, name) for name in names})
    assert repr(plain) == repr(reading)
    assert plain.shape == reading.shape == tuple(arrays[0].shape[:-1])
    assert plain.to_json() == reading.to_json()
    assert plain.by_head().to_dict() == reading.by_head().to_dict()
    for same in (
        copy.copy(reading),
        copy.deepcopy(reading),
        pickle.loads(pickle.dumps(reading)),
        dataclasses.replace(reading),
        Reading(**dataclasses.asdict(reading)),
        Reading.concatenate([reading]),
    ):
        assert same.to_json() == plain.to_json()
        assert type(same.entropy) is type(plain.entropy)
    assert dataclasses.replace(reading, has_sinks=False).has_sinks is False
    reading.entropy[...] = 7.0  # a view, not a copy
    assert (reading.entropy == 7.0).all()
    assert (reading.p_squared != 7.0).all()
    with pytest.raises(dataclasses.FrozenInstanceError):
        reading.entropy = plain.entropy  # type: ignore[misc]


def test_a_name_that_is_no_field(rng: np.random.Generator) -> None:
    measured = rootdk.measure(*random_arrays(rng))[1]
    for reading in (measured, Reading(**{name: getattr(measured, name) for name in (*FIELDS, "keys", "has_sinks")})):
        assert not hasattr(reading, "perplexity")
        with pytest.raises(AttributeError, match=r"^'Reading' object has no attribute 'entropi'$") as caught:
            reading.entropi  # type: ignore[attr-defined]  # noqa: B018
        assert (caught.value.name, caught.value.obj) == ("entropi", reading)
    with pytest.raises(AttributeError, match="no attribute 'max'"):
        object.__new__(Reading).max  # noqa: B018 -- as copy and pickle see it for a moment


def test_storage_that_lacks_something(rng: np.random.Generator) -> None:
    reading = reading_of(problem_of(*random_arrays(rng)))
    data = reading.to_dict()
    with pytest.raises(ArgumentError) as caught:
        Reading.from_dict({name: data[name] for name in ("kind", "shape", "fields")})
    assert str(caught.value) == "data: must hold 'shape', 'dtype', 'has_sinks', 'fields', got no 'dtype', 'has_sinks'"
    data["fields"].pop("entropy")
    with pytest.raises(ArgumentError) as caught:
        Reading.from_dict(data)
    assert str(caught.value).startswith("data['fields']: must hold 'log_sum_exp', 'max', ")
    assert str(caught.value).endswith(", 'keys', got no 'entropy'")
    with pytest.raises(ArgumentError) as caught:
        Reading.from_dict(data | {"fields": [1.0]})
    assert str(caught.value) == "data['fields']: must be a dictionary, got list"
    summary = reading.by_head().to_dict()
    del summary["max_logit"]
    with pytest.raises(ArgumentError) as caught:
        HeadSummary.from_dict(summary)
    assert str(caught.value).endswith("got no 'max_logit'")


class Cells(HTMLParser):
    """The text of every cell, and a check that tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] in {"td", "th"}:
            self.cells.append(data)


def test_views(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, heads=4)
    reading = reading_of(problem_of(q, k, v))
    summary = reading.by_head()
    for shown in (reading, summary):
        html = shown._repr_html_()
        parsed = Cells(html)
        columns = parsed.cells.index("0")
        assert parsed.cells[:2] == ["head", "rows"]
        assert parsed.cells[columns::columns] == ["0", "1", "2", "3"]
        assert len(parsed.cells) == 5 * columns
        assert f"{summary.max_logit[2]:.3g}" in parsed.cells
        # Self-contained, and no colour but the notebook's own, so that light and dark both work.
        assert parsed.tags <= {"div", "table", "caption", "thead", "tbody", "tr", "th", "td"}
        assert not any(word in html for word in ("http", "src=", "#", "rgb", "url("))
        terminal = in_terminal(shown)
        first = [line.split()[0] for line in terminal.splitlines() if re.match(r" *\d+ ", line)]
        assert first == ["0", "1", "2", "3"] or first[1:] == ["0", "1", "2", "3"]
        assert rendering.brief(summary.max_logit[2]) in terminal.split()
    assert "sink" not in Cells(reading._repr_html_()).cells
    assert repr(reading) == "Reading(shape=(2, 4, 7), dtype=float64, has_sinks=False)"
    assert repr(summary) == "HeadSummary(heads=4, rows=[14, 14, 14, 14])"


def in_terminal(shown: Any, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


# Every number as wide as it comes: long rows, large logits, shares that are neither 0 nor 1.
WIDE = {
    "rows": 98304,
    "hidden_rows": 65432,
    "non_finite_rows": 12345,
    "mean_keys": 131072.0,
    "max_logit": -12345.6,
    "median_std": 12345.6,
    "median_effective_keys": 98765.4,
}


def test_views_fit_80_columns_with_every_column() -> None:
    fields = HeadSummary.__dataclass_fields__
    numbers = {name: np.array([WIDE.get(name, 0.12345)] * 128) for name in fields}
    for shown in (HeadSummary(**numbers), HeadSummary(**(numbers | {"saturated": np.full(128, np.nan)}))):
        text = in_terminal(shown)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80
        row = next(line for line in text.splitlines() if line.startswith(" 127 "))
        assert row.split()[:9] == ["127", "98304", "65432", "12345", "131k", "12346", "-12346", ".123", "98765"]
        assert len(row.split()) == 14
        for heading in ("head", "hidden", "NaN", "logit", "share", "trace", "sink"):
            assert heading in text.split()


def test_a_reading_fits_80_columns_with_every_column(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, n_query=9, n_key=4)
    q[0, 0, 8] = np.nan
    text = in_terminal(reading_of(problem_of(q, k, v, causal=True, sinks=np.ones(4))))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert {"hidden", "NaN", "sink"} <= set(text.split())


def test_the_caption_says_what_each_column_is(rng: np.random.Generator) -> None:
    summary = reading_of(problem_of(*random_arrays(rng), sinks=np.ones(4))).by_head()
    title, headings, _ = summary.table()
    assert title == (
        "4 heads, medians over rows, except count: rows; mean: keys, sink; maximum: max logit; share: rows of one key"
    )
    # By the names of the fields: what is called neither a median nor an exception would be a lie of the caption.
    for column in _COLUMNS:
        kind = column.statistic
        assert column.field.startswith(("median_", "mean_")[kind == "mean"]) or kind in {"count", "maximum", "share"}
        if kind != "median" and column.heading in headings:
            assert column.heading in title.partition("except")[2]
    assert "mean: keys;" in reading_of(problem_of(*random_arrays(rng))).by_head().table()[0]


def test_views_show_what_must_not_hide(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, n_query=9, n_key=4)
    q[0, 0, 8] = np.nan
    cells = Cells(reading_of(problem_of(q, k, v, causal=True, sinks=np.ones(4)))._repr_html_()).cells
    assert {"hidden", "non-finite", "sink"} <= set(cells)


def test_views_escape_text() -> None:
    html = rendering.html_table("<script>", ["a&b"], [["<b>"]])
    assert "<script>" not in html
    assert Cells(html).cells == ["a&b", "<b>"]


@pytest.mark.parametrize("name", ["causal", "everything"])
def test_torch_fields_give_the_same(rng: np.random.Generator, name: str) -> None:
    """Derived quantities and merges use only what NumPy and torch share, so that tensors work the same."""
    problem = problem_of(*random_arrays(rng, n_query=12), **option_sets(rng, n_query=12)[name])
    ours = reading_of(problem, np.float32)
    columns = {field: torch.from_numpy(getattr(ours, field)) for field in (*FIELDS, "keys")}
    theirs = Reading(**columns, has_sinks=ours.has_sinks)
    for quantity in ("std", "top_probability", "effective_keys", "entropy_ratio", "jacobian_trace", "jacobian_norm"):
        tensor = getattr(theirs, quantity)
        assert tensor.dtype == torch.float32
        np.testing.assert_allclose(tensor.numpy(), getattr(ours, quantity), rtol=1e-6, atol=1e-6, err_msg=quantity)
    np.testing.assert_array_equal(theirs.saturated(0.5).numpy(), ours.saturated(0.5))
    assert theirs.to_dict() == ours.to_dict()
    assert repr(theirs) == "Reading(shape=(2, 4, 12), dtype=torch.float32, has_sinks=" + f"{ours.has_sinks})"
    plain = Reading(**columns, has_sinks=False)
    merged = theirs.merge(plain)
    expected = ours.merge(Reading.from_dict(plain.to_dict()))
    for field in FIELDS:
        np.testing.assert_allclose(getattr(merged, field).numpy(), getattr(expected, field), rtol=1e-6, atol=1e-6)
    joined = Reading.concatenate([theirs, theirs])
    assert joined.shape == (2, 4, 24)
    np.testing.assert_allclose(joined.by_head().mean_entropy, ours.by_head().mean_entropy, rtol=1e-12)
