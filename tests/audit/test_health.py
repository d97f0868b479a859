"""Health: thresholds as data, verdicts, the guards against false alarms, the trend, the baseline, the report."""

import io
import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import rootdk
from rootdk.audit import THRESHOLDS, Audit, Finding, LayerReading, judge, verdict_of
from rootdk.audit.health import MOST_POINTS, Trend, findings_of, movement_findings
from rootdk.audit.layer import baseline
from rootdk.audit.metrics import grouped
from rootdk.audit.result import LayerAudit
from rootdk.audit.siblings import beside_others
from rootdk.audit.thresholds import critical_deviation
from rootdk.audit.watching.rows import sampled_rows

N, D, HEADS = 64, 32, 4


def layer(
    rng: np.random.Generator, stretch: Any = 1.0, first: Any = 0.0, dtype: str = "float32", **options: Any
) -> LayerReading:
    """Random q and k; head h is stretched by its factor, and leans towards the first key by so much."""
    q, k = rng.standard_normal((2, 2, HEADS, N, D)).astype(np.float32)
    q *= np.broadcast_to(np.asarray(stretch, np.float32), HEADS)[:, None, None]
    lean = np.zeros((1, HEADS, 1, N), np.float32)
    lean[..., 0] = np.broadcast_to(np.asarray(first, np.float32), HEADS)[:, None]
    scores = rootdk.measure(q, k, k)[1]
    reading = rootdk.measure(q, k, k, bias=lean, **options)[1]
    logits = np.einsum("bhid,bhjd->bhij", q, k[:, :, :1])[..., 0] / math.sqrt(D) + lean[..., 0]
    if "softcap" in options:
        logits = options["softcap"] * np.tanh(logits / options["softcap"])
    facts: dict[str, Any] = {"scale": D**-0.5, "scale_given": D**-0.5, "mismatch": 0.0, "d_k": D, "kv_heads": HEADS}
    facts |= {"n_query": N, "n_key": N, "sampled": False, "route": "sdpa", "softcap": options.get("softcap")}
    first_weight = np.exp(logits - reading.log_sum_exp)
    return LayerReading("attn", 0, reading, scores, first_weight, dtype=dtype, **facts)


CUTS: list[tuple[str, Any, str, float, str | None]] = [
    # metric, head, phase, value, severity; keys = 1024, where sqrt(2 ln n) = 3.72
    ("logit_deviation", 0, "init", 1.0, None),
    ("logit_deviation", 0, "init", 0.19, "note"),
    ("logit_deviation", 0, "init", 1.9, "warning"),
    ("logit_deviation", 0, "init", 3.8, "critical"),
    ("logit_deviation", 0, "trained", 3.8, None),
    ("logit_deviation", 0, "any", 0.01, None),
    ("max_logit", 0, "any", 99.0, None),
    ("max_logit", 0, "any", 101.0, "note"),
    ("logit_lead", 0, "any", 999.0, None),
    ("logit_lead", 0, "trained", 1001.0, "warning"),
    ("logit_lead", 0, "any", 10001.0, "critical"),
    ("max_logit_growth", 0, "any", 1.9, None),
    ("max_logit_growth", 0, "any", 2.1, "warning"),
    ("max_logit_forecast", 0, "any", 1001.0, "critical"),
    ("entropy_ratio", None, "any", [0.04, 0.04, 0.06], None),
    ("entropy_ratio", None, "any", [0.04, 0.04, 0.04], "note"),
    ("entropy_ratio", None, "init", [0.04, 0.04, 0.04], "critical"),
    ("entropy_ratio", None, "trained", [0.995, 0.995], "note"),
    ("entropy_ratio", None, "init", [0.995, 0.995], None),
    ("entropy_drop", None, "any", 0.31, "warning"),
    ("logit_change_trend", 0, "any", 3.1, "note"),
    ("saturated", None, "any", [0.0, 0.0, 1.0], None),
    ("saturated", None, "any", [0.0, 0.6, 1.0], "note"),
    ("saturated", 0, "trained", 0.6, "note"),
    ("saturated", 0, "init", 0.2, "warning"),
    ("saturated", 0, "init", 0.6, "critical"),
    ("jacobian_trace", None, "any", [7e-4, 7e-4], None),
    ("jacobian_trace", None, "any", [7e-6, 7e-6, 0.9], "warning"),
    ("jacobian_trace", 0, "init", 0.29, "warning"),
    ("top_key_mass", None, "any", [0.99, 0.94], None),
    ("top_key_mass", None, "any", [0.99, 0.96], "warning"),
    ("flat_head", 0, "any", 1e-2, None),
    ("flat_head", 0, "any", 1e-4, "warning"),
    ("silent_head", 0, "any", 1.0, "warning"),
    ("measured_over_others", None, "any", 1.1, "warning"),
    ("predicted_over_others", None, "any", 1.1, "warning"),
    ("scale_off_config", None, "any", 1.1, "warning"),
    ("typical_deviation", None, "any", 7.3, None),
    ("typical_deviation", None, "any", 7.5, "warning"),
    ("typical_prediction", None, "any", 4.5, None),
    ("typical_prediction", None, "any", 4.7, "warning"),
    ("unevenness", None, "any", 1.1, None),
    ("unevenness", None, "any", 0.9, "warning"),
    ("gain_over_neighbours", None, "any", 0.9, None),
    ("gain_over_neighbours", None, "any", 1.1, "warning"),
    ("gain_bound", None, "any", 999.0, None),
    ("gain_bound", 3, "any", 1e9, "note"),
    ("cap_ratio", None, "any", [0.1, 1.9, 9.0], None),
    ("cap_ratio", None, "any", [0.1, 2.1, 9.0], "warning"),
    ("cap_ratio", None, "any", [3.1, 3.1], "critical"),
    ("bf16_spacing", 0, "any", 0.25, None),
    ("bf16_spacing", 0, "any", 0.5, "note"),
    ("bf16_spacing", 0, "any", 2.0, "warning"),
    ("bf16_spacing", 0, "any", 8.0, "critical"),
    ("raw_score", 0, "any", 33e3, "warning"),
    ("raw_score", 0, "any", 66e3, "critical"),
    ("min_log_sum_exp", 0, "any", -81.0, "note"),
    ("sink_mass", 0, "trained", 0.6, "note"),
    ("non_finite", 0, "any", 0.01, "critical"),
    ("predicted_deviation", None, "init", 3.8, "critical"),
    ("predicted_deviation", None, "trained", 3.8, None),
    ("spectral_bound", None, "any", 2e3, "note"),
    ("scale_ratio", None, "any", 0.4, "note"),
    ("scale_ratio", None, "any", 2.1, "note"),
]


@pytest.mark.parametrize(("metric", "head", "phase", "value", "severity"), CUTS)
def test_cuts(metric: str, head: int | None, phase: Any, value: Any, severity: str | None) -> None:
    finding = judge("attn", head, metric, value, 1024, phase)
    assert (None if finding is None else finding.severity) == severity
    if finding is not None:
        assert (finding.layer, finding.head, finding.metric) == ("attn", head, metric)
        assert finding.source
        assert finding.remedy


def test_every_row_of_the_table_can_be_crossed() -> None:
    for row in THRESHOLDS:
        limit = row.limit_for(512)
        away = math.inf if row.direction == "above" else -math.inf
        assert row.crossed(np.nextafter(limit, away), 512)
        assert not row.crossed(limit, 512)
        assert not row.crossed(math.nan, 512)
    assert {row.metric for row in THRESHOLDS} >= {metric for metric, *_ in CUTS}
    assert critical_deviation(1024) == pytest.approx(math.sqrt(2 * math.log(1024)))


def test_a_random_layer_is_healthy_at_any_phase(rng: np.random.Generator) -> None:
    for phase in ("init", "trained", "any"):
        assert findings_of(layer(rng), phase) == []


def test_a_near_uniform_start_is_one_note(rng: np.random.Generator) -> None:
    (finding,) = findings_of(layer(rng, 0.02), "init")
    assert (finding.metric, finding.severity, finding.head) == ("logit_deviation", "note", None)
    assert verdict_of([finding]) == "healthy"
    (finding,) = findings_of(layer(rng, 0.02), "trained")
    assert (finding.metric, finding.severity) == ("entropy_ratio", "note")


def test_one_sharp_head_is_normal_after_training_and_not_before(rng: np.random.Generator) -> None:
    sharp = layer(rng, [20.0, 1.0, 1.0, 1.0])
    assert {finding.severity for finding in findings_of(sharp, "trained")} <= {"note"}
    assert verdict_of(findings_of(sharp, "any")) == "healthy"
    findings = findings_of(sharp, "init")
    assert verdict_of(findings) == "critical"
    assert {finding.head for finding in findings} == {0}
    # All heads sharp is what a model may have learned; all of them beyond what float32 can pass on is not.
    assert verdict_of(findings_of(layer(rng, 8.0), "trained")) == "healthy"
    every = findings_of(layer(rng, 100.0), "trained")
    assert [(finding.metric, finding.severity, finding.head) for finding in every if finding.severity != "note"] == [
        ("jacobian_trace", "warning", None)
    ]


def test_heads_on_a_sink_are_told_apart(rng: np.random.Generator) -> None:
    """All heads give the first key nearly everything: their entropy collapses, and what is left is spread."""
    resting = layer(rng, first=9.0)
    assert (resting.metrics["entropy_ratio"] < 0.25).all()
    assert (resting.metrics["sink_mass"] > 0.9).all()
    assert (resting.apart["entropy_ratio"] > 0.7).all()
    findings = findings_of(resting, "trained")
    assert [(finding.metric, finding.severity, finding.head) for finding in findings] == [("sink_mass", "note", None)]
    # The same with a learned sink.
    learned = layer(rng, sinks=np.full(HEADS, 7.0))
    assert (learned.metrics["sink_mass"] > 0.5).all()
    assert [finding.metric for finding in findings_of(learned, "trained")] == ["sink_mass"]
    # Where the rest is frozen too, it is no rest.
    both = findings_of(layer(rng, 100.0, first=60.0), "trained")
    assert verdict_of(both) != "healthy"


def test_apart_is_what_the_softmax_over_the_others_shows(rng: np.random.Generator) -> None:
    leaning = layer(rng, 1.5, first=3.0)
    q, k = np.random.default_rng(0).standard_normal((2, 1, 1, N, D))
    bias = np.zeros((1, 1, 1, N))
    bias[..., 0] = 3.0
    whole = rootdk.measure(q, k, k, bias=bias)[1]
    first = np.exp(np.einsum("bhid,bhd->bhi", q, k[:, :, 0]) / math.sqrt(D) + 3.0 - whole.log_sum_exp)
    others = rootdk.measure(q, k[:, :, 1:], k[:, :, 1:])[1]
    facts = {name: getattr(leaning, name) for name in leaning.__dataclass_fields__}
    reading = LayerReading(**facts | {"reading": whole, "scores": whole, "first_weight": first})
    assert reading.apart["entropy_ratio"][0] == pytest.approx(np.median(others.entropy_ratio), rel=1e-9)
    assert reading.apart["jacobian_trace"][0] == pytest.approx(np.median(others.jacobian_trace), rel=1e-9)
    assert reading.apart["saturated"][0] == others.saturated().mean()


def test_formats_count_only_where_they_are_used(rng: np.random.Generator) -> None:
    wide = 70 / layer(rng).metrics["max_logit"].max()
    metrics = {
        dtype: {finding.metric for finding in findings_of(layer(np.random.default_rng(0), wide, dtype=dtype), "any")}
        for dtype in ("float32", "bfloat16", "float16")
    }
    assert "bf16_spacing" in metrics["bfloat16"]
    assert "bf16_spacing" not in metrics["float32"] | metrics["float16"]
    huge = 5e4 / layer(np.random.default_rng(0)).metrics["raw_score"].max()
    for dtype in metrics:
        names = {finding.metric for finding in findings_of(layer(np.random.default_rng(0), huge, dtype=dtype), "any")}
        assert ("raw_score" in names) == (dtype == "float16")
        assert "max_logit" in names


def test_before_and_after_scale_and_cap(rng: np.random.Generator) -> None:
    capped = layer(rng, 3.0, softcap=5.0)
    numbers = capped.metrics
    assert (numbers["max_logit"] < 5.0).all()
    assert (numbers["max_score"] > 5.0).all()
    np.testing.assert_allclose(numbers["max_logit"], 5 * np.tanh(numbers["max_score"] / 5), rtol=1e-5)
    assert (numbers["raw_score"] >= numbers["max_score"] * math.sqrt(D) * (1 - 1e-6)).all()
    np.testing.assert_allclose(numbers["cap_ratio"], numbers["score_size"] / 5, rtol=1e-5)
    assert (numbers["score_size"] < numbers["raw_score"] / math.sqrt(D)).all()
    assert verdict_of(findings_of(capped, "any")) == "healthy"
    assert {"cap_ratio"} <= {finding.metric for finding in findings_of(layer(rng, 6.0, softcap=5.0), "any")}


def test_a_row_of_nan_is_critical(rng: np.random.Generator) -> None:
    broken = layer(rng)
    broken.reading.variance[0, 1, 5] = math.nan
    (finding,) = findings_of(broken, "any")
    assert (finding.metric, finding.severity, finding.head) == ("non_finite", "critical", 1)


def movement(values: Any, every: int = 20, entropy: Any = 0.4) -> Any:
    trend = Trend()
    for number, value in enumerate(values):
        ratio = entropy[number] if np.ndim(entropy) else entropy
        trend.note("attn", number * every, np.array([value]), np.array([ratio]))
    return trend.movement("attn")


def test_growth_and_where_it_leads() -> None:
    steps = np.arange(0, 1001, 20)
    trend = movement(30 * 3 ** (steps / 1000))
    assert trend.growth[0] == pytest.approx(3.0)
    assert trend.crossing[0] == pytest.approx(1000 * math.log(1000 / 30) / math.log(3))
    assert trend.level[0] == pytest.approx(90.0)
    shrinking = movement(30 * 0.5 ** (steps / 1000))
    assert shrinking.growth[0] == pytest.approx(0.5)
    assert shrinking.crossing[0] == math.inf


def test_what_moves_and_whether_it_moves_ever_more(rng: np.random.Generator) -> None:
    """Size stays, change grows: a logit that swings around 20, first by 0.1 a step and in the end by 0.8."""
    swing = np.where(np.arange(51) % 2, 1.0, -1.0)
    steady = movement(20 + swing, entropy=0.5 + 0.01 * swing)
    assert steady.logit_change[0] == pytest.approx(2 / 20)
    assert steady.logit_change_trend[0] == pytest.approx(1.0)
    assert steady.entropy_change[0] == pytest.approx(0.02 / 20)
    assert steady.entropy_change_trend[0] == pytest.approx(1.0)
    wild = movement(20 + swing * np.where(np.arange(51) < 26, 1.0, 8.0))
    assert wild.growth[0] == 1.0
    assert wild.logit_change_trend[0] > 6
    here = layer(rng)
    assert list(movement_findings(here, steady)) == []
    assert [(f.metric, f.severity) for f in movement_findings(here, wild)] == [("logit_change_trend", "note")]
    quiet = movement(20 + 1e-3 * swing * np.where(np.arange(51) < 26, 1.0, 8.0))
    assert list(movement_findings(here, quiet)) == []
    assert set(wild.to_dict()) >= {"logit_change", "entropy_change", "max_logit_growth"}


def test_a_plateau_with_noise_is_a_plateau(rng: np.random.Generator) -> None:
    trend = movement(50 * np.exp(0.1 * rng.standard_normal(51)))
    assert trend.growth[0] == 1.0
    assert trend.crossing[0] == math.inf


def test_too_few_steps_are_no_trend() -> None:
    assert movement([1.0, 2.0, 4.0, 8.0]) is None
    assert movement([1.0, 2.0, 4.0, 8.0, 16.0], every=20) is None
    assert movement([1.0, 2.0, 4.0, 8.0, 16.0], every=25) is not None
    assert Trend().movement("attn") is None


def test_a_long_run_takes_no_more_memory_than_a_short_one() -> None:
    trend = Trend()
    for step in range(5000):
        trend.note("attn", step, np.array([float(step + 1)]), np.array([0.5]))
    known = [step for step, *_ in trend.points["attn"]]
    assert len(known) <= MOST_POINTS
    assert (known[0], known[-1]) == (0, 4999)
    assert trend.movement("attn").growth[0] > 1


def test_findings_of_a_trend(rng: np.random.Generator) -> None:
    steps = np.arange(0, 1001, 20)
    here = layer(rng, 6.0)
    reading = LayerReading(**{name: getattr(here, name) for name in here.__dataclass_fields__})
    growing = movement(30 * 3 ** (steps / 1000))
    metrics = [(f.metric, f.severity) for f in movement_findings(reading, growing)]
    assert metrics == [("max_logit_growth", "warning")]
    growth, forecast = movement_findings(reading, growing, 5000)
    assert (growth.metric, growth.severity) == ("max_logit_growth", "warning")
    assert (forecast.metric, forecast.severity) == ("max_logit_forecast", "critical")
    assert forecast.value == pytest.approx(30 * 3**5)
    # Leaving a near-uniform start: logits grow tenfold and stay small.
    assert list(movement_findings(reading, movement(0.5 * 10 ** (steps / 1000)))) == []
    falling = movement(np.full(51, 5.0), entropy=np.linspace(0.9, 0.5, 51))
    assert falling.entropy_drop == pytest.approx(1 - 0.5 / 0.9)
    low = layer(rng, 20.0)
    assert [f.metric for f in movement_findings(low, falling)] == ["entropy_drop"]
    assert list(movement_findings(layer(rng), falling)) == []


def test_the_baseline_is_what_random_q_and_k_show(rng: np.random.Generator) -> None:
    reading = layer(rng)
    predicted = baseline(reading)
    expected = rootdk.predict(D, N, D**-0.5, rows=2 * N)
    assert predicted["logit_deviation"] == expected.median_std[0]
    for metric in ("logit_deviation", "entropy_ratio", "jacobian_trace", "max_logit"):
        assert np.median(reading.metrics[metric]) == pytest.approx(predicted[metric], rel=0.15), metric
    facts = {name: getattr(reading, name) for name in reading.__dataclass_fields__}
    assert baseline(LayerReading(**facts | {"scale": math.nan})) == {}


class Attend(torch.nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(self.factor * x, x, x)


def watched(factor: float = 1.0) -> Any:
    model = torch.nn.Sequential(Attend(), Attend(factor))
    with rootdk.watch(model) as watch:
        model(torch.randn(2, HEADS, N, D, generator=torch.Generator().manual_seed(0)))
    return watch


def test_the_report_as_json() -> None:
    report = watched(4000.0).report("trained")
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["schema_version"] == 1
    assert data["verdict"] == report.verdict == "critical"
    assert [layer["name"] for layer in data["layers"]] == ["0", "1"]
    for layer in data["layers"]:
        assert len(layer["heads"]) == HEADS
        assert {"max_logit", "entropy_ratio", "raw_score", "logit_deviation", "jacobian_trace"} <= set(
            layer["heads"][0]
        )
        assert layer["scale"] == D**-0.5
        assert set(layer["baseline"]) <= set(layer["heads"][0])
    keys = {"layer", "head", "metric", "severity", "value", "threshold", "source", "remedy"}
    assert all(set(finding) == keys for finding in data["findings"])
    assert data["findings"][0]["severity"] == "critical"
    assert report.flagged == ["1"]
    assert report.verdict_on("0") == "healthy"
    assert report.verdict_on("1") == "critical"


def test_a_nan_is_null_in_json() -> None:
    report = Audit([LayerAudit("attn", [{"max_logit": math.nan}])], [])
    assert report.to_dict()["layers"][0]["heads"] == [{"max_logit": None}]
    assert report.verdict == "healthy"


def test_verdicts_by_head() -> None:
    findings = [
        Finding("a", 1, "max_logit", "warning", 1.0, 0.0, "", ""),
        Finding("a", 2, "x", "note", 1.0, 0.0, "", ""),
    ]
    report = Audit([], findings)
    assert [report.verdict_on("a", head) for head in (0, 1, 2)] == ["healthy", "warning", "healthy"]
    assert report.verdict_on("b") == "healthy"


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_the_terminal_view_fits_and_tells_what_to_do(factor: float) -> None:
    seen = watched(factor)
    seen.unread["2"] = "its tensors are meta"
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(seen.report("trained"))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert f"attention: {seen.report('trained').verdict}" in text
    assert ("qk_clip_" in text) == (factor > 1)
    assert "Not read: 2: its tensors are meta" in text
    predicted = baseline(seen.readings["0"])["logit_deviation"]
    assert f"{predicted:.3g}" in text


def test_the_terminal_view_cuts_no_verdict_off() -> None:
    """Numbers of every size: a table that is wider than the terminal loses its last column first."""
    metrics = ("logit_deviation", "max_logit", "entropy_ratio", "saturated", "jacobian_trace", "sink_mass")
    layers = [
        LayerAudit(f"model.layers.{i}.self_attn", [dict.fromkeys(metrics, size)], {}, {"scale": 1 / 128})
        for i, size in enumerate((0.00123456, 0.0123456, 0.123456, 1.23456, 123.456, 12345.6))
    ]
    finding = Finding("model.layers.0.self_attn", None, "max_logit", "critical", 1e4, 1e3, "source", "remedy")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(Audit(layers, [finding]))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    verdicts = [line.split()[-1] for line in lines if re.match(r"[0-5] ", line)]
    assert verdicts == ["critical"] + ["healthy"] * 5


def test_a_watch_that_read_nothing_is_not_healthy() -> None:
    """A gate must not pass a model of which nothing was seen."""
    with rootdk.watch(torch.nn.Linear(2, 2)) as watch:
        watch.model(torch.ones(1, 2))
    report = watch.report()
    assert (report.verdict, [finding.metric for finding in report.findings]) == ("warning", ["layers_read"])
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(report)
    assert "warning" in console.export_text()


def test_too_few_rows_or_keys_are_no_verdict() -> None:
    """Neither an alarm nor healthy by silence; a NaN needs no statistics."""
    draw = torch.Generator().manual_seed(0)
    for rows, batch, judged in ((15, 9, False), (31, 1, False), (32, 1, True), (16, 2, True)):
        model = Attend(4000.0)
        with rootdk.watch(model) as watch:
            model(torch.randn(batch, HEADS, rows, D, generator=draw))
        report = watch.report()
        assert report.layers[0].judged is judged
        assert (report.verdict == "unjudged") is not judged
        assert report.verdict_on("Attend") == report.verdict
        assert (report.flagged == []) is not judged
        assert ("too little to judge" in str(report)) is not judged
        assert "healthy" not in str(report).replace("Not healthy", "")
    broken = torch.randn(1, HEADS, 5, D, generator=draw)
    broken[0, 1, 2] = math.nan
    with rootdk.watch(model) as watch:
        model(broken)
    assert watch.report().verdict == "critical"


def test_a_head_that_does_nothing_is_named() -> None:
    class Dead(torch.nn.Module):
        def forward(self, x: Any, silent: bool) -> Any:
            factor = torch.ones(HEADS, 1, 1)
            factor[2] = 0.0
            query, value = (x, factor * x) if silent else (factor * x, x)
            return torch.nn.functional.scaled_dot_product_attention(query, x, value)

    for silent in (False, True):
        model = Dead()
        with rootdk.watch(model) as watch:
            model(torch.randn(2, HEADS, N, D, generator=torch.Generator().manual_seed(0)), silent)
        (finding,) = watch.report().findings
        assert (finding.metric, finding.head) == ("silent_head" if silent else "flat_head", 2)


def test_a_layer_that_is_sharp_by_its_input_alone_is_a_note() -> None:
    """Embeddings without a norm make the first layer as sharp as a spoilt W_q; its weights tell the two apart."""
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.TransformerEncoder(block, 4, enable_nested_tensor=False).eval()
    for layer in model.layers:
        torch.nn.init.xavier_uniform_(layer.self_attn.in_proj_weight)
    x = 40.0 * torch.randn(2, 64, 64)
    with rootdk.watch(model) as seen, torch.no_grad():
        model(x)
    report = seen.report()
    noted = {finding.metric for finding in report.findings if finding.layer == "layers.0.self_attn"}
    assert {"measured_over_others", "jacobian_trace"} <= noted
    assert report.verdict == "healthy"
    with torch.no_grad():
        model.layers[2].self_attn.in_proj_weight[:64] *= 400.0
    with rootdk.watch(model) as seen, torch.no_grad():
        model(x / 40.0)
    assert seen.report().flagged == ["layers.2.self_attn"]
    # Where most layers are so, it is no matter of one layer's input.
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.in_proj_weight[:64] *= 400.0
    with rootdk.watch(model) as seen, torch.no_grad():
        model(x / 40.0)
    assert "jacobian_trace" in {finding.metric for finding in seen.report().findings if finding.severity == "warning"}


def test_a_head_that_decayed_in_training_is_a_note() -> None:
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.TransformerEncoder(block, 3, enable_nested_tensor=False).eval()
    for factor, severity in ((1e-10, "note"), (0.0, "warning")):
        with torch.no_grad():
            for rows in (slice(16, 32), slice(80, 96)):
                model.layers[1].self_attn.in_proj_weight[rows] *= factor
                model.layers[1].self_attn.in_proj_bias[rows] *= factor
            with rootdk.watch(model) as seen:
                model(torch.randn(2, 64, 64))
        findings = [finding for finding in seen.report().findings if finding.metric == "flat_head"]
        assert [(finding.head, finding.severity) for finding in findings] == [(1, severity)]


def test_the_key_that_most_rows_point_at(rng: np.random.Generator) -> None:
    class Lean(torch.nn.Module):
        def forward(self, x: Any, bias: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=bias)

    bias = torch.zeros(2, HEADS, N, N)
    bias[:, 1, :, 5] = 9.0
    x = torch.randn(2, HEADS, N, D, generator=torch.Generator().manual_seed(0))
    with rootdk.watch(Lean()) as watch:
        watch.model(x, bias)
    reading = watch.readings["Lean"]
    weights = torch.softmax(x @ x.mT * D**-0.5 + bias, -1)
    places = sampled_rows(N, min(N, 32), torch.device("cpu"))
    assert reading.pointed.key[:, 1].tolist() == [5, 5]
    assert reading.metrics["top_key_share"][1] > 0.8
    assert reading.metrics["top_key_mass"][1] == pytest.approx(float(weights[:, 1, places, 5].mean()), rel=1e-5)
    assert reading.metrics["top_key_share"][0] < 0.5
    # Of sequences that differ, the mean.
    with rootdk.watch(Lean()) as watch:
        watch.model(x, bias * torch.tensor([0.0, 1.0])[:, None, None, None])
    shares = watch.readings["Lean"].pointed.share[:, 1]
    assert shares[0] < 0.5 < 0.8 < shares[1]
    assert watch.readings["Lean"].metrics["top_key_share"][1] == pytest.approx(float(shares.mean()))
    # Every head on one key: a layer that passes nothing on.
    bias[..., 5] = 30.0
    with rootdk.watch(Lean()) as watch:
        watch.model(x, bias)
    assert ("top_key_mass", "warning") in {(finding.metric, finding.severity) for finding in watch.report().findings}


def test_remedies_are_lines_that_run() -> None:
    """Grouped over layers, with their real names: pasted, they mend the model."""
    torch.manual_seed(0)
    encoder = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
    model = torch.nn.TransformerEncoder(encoder, 4)
    x = torch.randn(2, 48, 64)
    with torch.no_grad():
        for number in (1, 2):
            model.layers[number].self_attn.in_proj_weight[:64] *= 100
    with rootdk.watch(model) as watch:
        model(x)
    (group,) = [group for group in grouped(watch.report().to_dict()) if group.metric == "jacobian_trace"]
    assert group.places == "layers.{1,2}.self_attn"
    exec(group.remedy, {"rootdk": rootdk, "model": model, "seen": watch})
    with rootdk.watch(model) as watch:
        model(x)
    assert watch.report().verdict == "healthy"


def gained(gains: list[float], normed: bool = False, name: str = "input_gain") -> list[str]:
    """The layers whose gain stands out."""
    heads = [{"predicted_deviation": 1.0} | ({"gain_bound": 10.0} if normed else {})]
    layers = [LayerAudit(f"h.{number}", heads, facts={name: gain, "d_k": 8}) for number, gain in enumerate(gains)]
    findings = beside_others(layers, 1024, measured=False)
    return [finding.layer for finding in findings if finding.metric == "gain_over_neighbours"]


def test_a_gain_beside_its_neighbours() -> None:
    """Doubled, where gains change slowly; not where they do not, nor where QK-norm divides it out again."""
    slowly = [1.0, 1.05, 1.1, 1.1, 1.2, 1.15, 1.2]
    doubled = [gain * (1 + (number == 3)) for number, gain in enumerate(slowly)]
    assert gained(slowly) == []
    assert gained(doubled) == ["h.3"]
    assert gained(doubled, name="product_gain", normed=True) == ["h.3"]
    assert gained(doubled, normed=True) == []
    # Three layers have no usual step: a factor of 1.6 counts.
    assert gained([1.0, 2.0, 1.0]) == ["h.1"]
    # The norms before the projections of Gemma 3 270M, which works.
    restless = [
        14.6,
        26.7,
        32.8,
        30.0,
        50.3,
        18.0,
        27.4,
        26.0,
        26.1,
        22.5,
        25.5,
        9.7,
        31.1,
        21.4,
        30.1,
        38.6,
        39.7,
        23.1,
    ]
    assert gained(restless) == []
    assert gained([gain * (1 + 4 * (number == 3)) for number, gain in enumerate(restless)]) == ["h.3"]


def test_a_scale_off_the_config_says_both() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=64
    )
    model = transformers.BertModel(config).eval()
    model.encoder.layer[1].attention.self.scaling = 1.0
    with torch.no_grad(), rootdk.watch(model) as watch:
        model(torch.arange(48)[None])
    (finding,) = [finding for finding in watch.report().findings if finding.metric == "scale_off_config"]
    assert finding.layer == "encoder.layer.1.attention.self"
    assert finding.remedy == "set the scale to 0.25, as the config has it; the model ran with 1"
