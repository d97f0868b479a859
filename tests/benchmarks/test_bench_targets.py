"""The bench's verdicts on made-up times: every target flips when its number does, and nothing is dropped in silence."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.command import headline, show
from benchmarks.section import Report, geometric_mean
from benchmarks.sections import all_sections, attention, judge, models, tiny


def times(**seconds: float) -> dict[str, Any]:
    """Best and median alike; an underscore stands for a space."""
    return {name.replace("_", " "): {"best": s, "median": s, "calls": 5} for name, s in seconds.items()}


def row(name: str = "made up", n: int = 2048, d: int = 64, causal: bool = False, **seconds: float) -> dict[str, Any]:
    shape = {"batch": 1, "heads": 1, "kv_heads": 1, "n": n, "d": d, "causal": causal}
    rates = {"best": 1e9, "median": 1e9}
    return {
        "name": name,
        "shape": shape,
        "flops": 1e9,
        "sgemm": rates,
        "bytes": 1e9,
        "seconds": times(**seconds),
        "left_out": {},
    }


def full_report() -> Report:
    """Every section, every target just reached."""
    pair = {"rootdk": 1.0, "measure": 1.05}
    return {
        "machine": {"rootdk": "0", "kernel target": "plain", "cpu": "made up", "compiler": "made up"},
        "threads": 1,
        "peers": {"torch": "0"},
        "absent": {},
        "load_before": None,
        "quick": False,
        "sections": list(all_sections()),
        "forward": [row(n=4096, rootdk=1.0, measure=1.05, torch=1.5, torch_by_hand=5.25)],
        "measure": [
            row(**pair) | {"measure_over_attention": {"best": 1.06, "median": 1.06}},
            row(d=32, **pair) | {"measure_over_attention": {"best": 1.12, "median": 1.12}},
        ],
        "read": [
            row(d=d, rootdk=1.0, measure=1.05, read=share)
            | {f"read_over_{other}": {"best": share, "median": share} for other in ("attention", "measure")}
            for d, share in ((64, 0.6), (32, 0.68))
        ],
        "backward": [row(rootdk=1.0, torch=1.4)],
        "half": [
            row(kind, rootdk=1.0, torch=1.5, torch_float32=2.0) | {"kind": kind} for kind in ("bfloat16", "float16")
        ],
        "decode": [
            row(kind, rootdk=1.0, torch=2.0, sum_numpy=3.0, sum_torch=0.85) | {"kind": kind}
            for kind in ("float32", "bfloat16")
        ],
        "options": [row("bool mask, forward", rootdk=1.0, torch=1.0)],
        "masks": [
            row(f"causal as a mask{gradient * ' with gradient'}", rootdk=1.1, torch=2.75, option=1.0)
            | {"gradient": gradient, "kind": "mask", "wanted": 1.5, "over_option": {"best": 1.1, "median": 1.1}}
            for gradient in (False, True)
        ]
        + [
            row("documents as segments", rootdk=1.1, torch=6.0, batch=1.0)
            | {"gradient": False, "kind": "segments", "wanted": 4.0, "over_batch": {"best": 1.1, "median": 1.1}}
        ],
        "wide": [
            row(f"d = {d}, {gradient}", d=d, rootdk=1.0, torch=1.001 if gradient else wanted) | {"gradient": gradient}
            for gradient in (False, True)
            for d, wanted in attention.WIDE.items()
        ],
        "avx2": [row("short", rootdk=1.0, torch=1.1), row("long", rootdk=1.0, torch=1.92)],
        "tangent": [row(rootdk=1.0, torch=5.01)],
        "jax": [
            row(kind, rootdk=1.0, jax=wanted) | {"kind": kind}
            for kind, wanted in (("forward", 4.01), ("gradient", 3.01))
        ],
        "tiny": [
            row(rootdk=15e-6, rootdk_on_tensors=15e-6, torch=10e-6)
            | {"gradient": gradient, "shape": asdict(tiny.TINY[0])}
            for gradient in (False, True)
        ]
        + [
            row(rootdk=15e-6, rootdk_on_tensors=10e-6, torch=torch) | {"gradient": gradient, "shape": asdict(shape)}
            for shape in tiny.SMALL
            for gradient, torch in ((False, 10e-6), (True, 9.05e-6))
        ],
        "beside": [row("128 tokens", rootdk=1.0, torch=1.0, layers_alone=0.5)],
        "models": [row(name, rootdk=1.0, torch=models.WANTED) for name in models.MODELS],
        "watch": [
            row(name, watched=limit, unwatched=1.0) | {"watched_over_unwatched": {"best": limit, "median": limit}}
            for name, limit in (("exact", 1.03), ("rows=64", 1.03), ("every=10", 1.03))
        ],
        "ring": [
            row("causal", one_process=1.0, **{"2_ranks": 0.625})
            | {"efficiency": {"1 rank": {"best": 1.0, "median": 1.0}, "2 ranks": {"best": 0.8, "median": 0.8}}},
            row("memory, 2 ranks"),
        ],
        "explorer": [
            row(name)
            | {"seconds": {at: {"p50": 0.01, "p95": 0.04} for at in ("defaults", "largest")}}
            | {"updates": 9, "largest_bytes": 1000}
            for name in ("growth", "proof")
        ],
        "import": {
            "seconds": times(rootdk=0.15, numpy=0.1),
            "above_numpy": {"best": 0.05, "median": 0.05, "calls": 5},
            "frameworks": [],
        },
        "memory": {
            "keys": 9,
            "d": 64,
            "input_bytes": 0,
            "output_bytes": 0,
            "full_scores_bytes": 0,
            "extra_bytes": 2**30 - 1,
        },
    }


def headlines(verdicts: list[dict[str, Any]]) -> list[str]:
    return list(headline(verdicts))


def verdicts(report: Report) -> dict[str, bool | None]:
    judged = judge(report)
    by_name = {verdict["name"]: verdict["met"] for verdict in judged}
    assert len(by_name) == len(judged), "two targets of one name"
    return by_name


def seconds(*path: str | int) -> Callable[[Report, str, float], None]:
    """A change to one statistic of one contestant; the path leads from the report to its times."""

    def change(report: Report, statistic: str, factor: float) -> None:
        place: Any = report
        for step in path:
            place = place[step]
        place[statistic] *= factor

    return change


# Every target of the table in the order in which it is shown: its name, and what makes it fail by a factor.
TARGETS: list[tuple[str, Callable[[Report, str, float], None], float]] = [
    ("forward against torch, geometric mean", seconds("forward", 0, "seconds", "torch"), 0.99),
    ("forward against torch, slowest shape", seconds("forward", 0, "seconds", "torch"), 0.66),
    ("long full forward as a share of sgemm, lowest", seconds("forward", 0, "sgemm"), 1.2),
    ("forward + backward against torch, geometric mean", seconds("backward", 0, "seconds", "torch"), 0.99),
    ("forward + backward against torch, slowest shape", seconds("backward", 0, "seconds", "torch"), 0.7),
    ("d = 256, forward, lowest", seconds("wide", 0, "seconds", "torch"), 0.99),
    ("d = 576, forward, lowest", seconds("wide", 1, "seconds", "torch"), 0.99),
    ("d = 256, forward + backward, lowest", seconds("wide", 2, "seconds", "torch"), 0.99),
    ("d = 576, forward + backward, lowest", seconds("wide", 3, "seconds", "torch"), 0.99),
    ("AVX2, forward against torch, geometric mean", seconds("avx2", 1, "seconds", "torch"), 0.99),
    ("AVX2, forward against torch, slowest shape", seconds("avx2", 0, "seconds", "torch"), 0.99),
    ("bfloat16 forward against torch, geometric mean", seconds("half", 0, "seconds", "torch"), 0.99),
    ("float16 forward against torch, geometric mean", seconds("half", 1, "seconds", "torch"), 0.99),
    ("decode, float32, as a share of a plain sum", seconds("decode", 0, "seconds", "sum torch"), 0.99),
    ("decode, bfloat16, as a share of a plain sum", seconds("decode", 1, "seconds", "sum torch"), 0.99),
    ("measure / attention, d >= 64, highest", seconds("measure", 0, "measure_over_attention"), 1.01),
    ("measure / attention, d = 32, highest", seconds("measure", 1, "measure_over_attention"), 1.01),
    ("measure against torch unmeasured, slowest shape", seconds("forward", 0, "seconds", "torch"), 0.69),
    ("measure against torch by hand, 4096 keys, lowest", seconds("forward", 0, "seconds", "torch by hand"), 0.99),
    ("read / attention, n >= 1000, d >= 64, highest", seconds("read", 0, "read_over_attention"), 1.01),
    ("read / attention, n >= 1000, d = 32, highest", seconds("read", 1, "read_over_attention"), 1.01),
    ("tiny call in NumPy, microseconds", seconds("tiny", 0, "seconds", "rootdk"), 1.01),
    ("tiny call on tensors / torch's, highest", seconds("tiny", 0, "seconds", "rootdk on tensors"), 1.01),
    ("tiny forward + backward / torch's, highest", seconds("tiny", 1, "seconds", "rootdk on tensors"), 1.01),
    ("small call against torch, lowest", seconds("tiny", 4, "seconds", "torch"), 0.99),
    ("small forward + backward, lowest", seconds("tiny", 3, "seconds", "torch"), 0.99),
    ("bool mask, forward", seconds("options", 0, "seconds", "torch"), 0.99),
    ("causal as a mask", seconds("masks", 0, "seconds", "torch"), 0.59),
    ("causal as a mask with gradient", seconds("masks", 1, "seconds", "torch"), 0.59),
    ("masks, forward, geometric mean", seconds("masks", 0, "seconds", "torch"), 0.99),
    ("masks, forward + backward, geometric mean", seconds("masks", 1, "seconds", "torch"), 0.79),
    ("causal as a mask over causal as a flag", seconds("masks", 1, "over_option"), 1.01),
    ("documents as segments", seconds("masks", 2, "seconds", "torch"), 0.7),
    ("documents as segments over documents as a batch", seconds("masks", 2, "over_batch"), 1.01),
    ("forward derivative against torch, geometric mean", seconds("tangent", 0, "seconds", "torch"), 0.99),
    ("jax forward against jax.nn, geometric mean", seconds("jax", 0, "seconds", "jax"), 0.99),
    ("jax forward and gradient against jax.nn, geometric mean", seconds("jax", 1, "seconds", "jax"), 0.99),
    ("between torch's layers, 128 tokens", seconds("beside", 0, "seconds", "torch"), 0.99),
    *((name, seconds("models", i, "seconds", "torch"), 0.99) for i, name in enumerate(models.MODELS)),
    ("training step, watched exactly / unwatched", seconds("watch", 0, "watched_over_unwatched"), 1.01),
    ("training step, 64 rows watched / unwatched", seconds("watch", 1, "watched_over_unwatched"), 1.01),
    ("training step, every tenth watched / unwatched", seconds("watch", 2, "watched_over_unwatched"), 1.01),
    ("ring of 2 ranks, efficiency, lowest", seconds("ring", 0, "efficiency", "2 ranks"), 0.99),
    ("import rootdk, seconds", seconds("import", "seconds", "rootdk"), 1.01),
]


def test_every_target_is_judged_and_reached() -> None:
    judged = verdicts(full_report())
    others = {
        "explorer, a move of a knob, p95, ms",
        "import rootdk, frameworks loaded",
        "memory above inputs and output, 9 keys",
    }
    assert set(judged) == {name for name, _, _ in TARGETS} | others
    assert all(met is True for met in judged.values())
    assert headlines(judge(full_report())) == ["every target reached"]


@pytest.mark.parametrize("statistic", ["best", "median"])
@pytest.mark.parametrize(("name", "change", "factor"), TARGETS, ids=[name for name, _, _ in TARGETS])
def test_a_target_flips_with_its_number(
    name: str, change: Callable[[Report, str, float], None], factor: float, statistic: str
) -> None:
    """One of best and median is enough to miss a target, and the top of the page says so."""
    report = full_report()
    change(report, statistic, factor)
    assert verdicts(report)[name] is False
    lines = headlines(judge(report))
    assert lines[0].startswith("falls short: ")
    assert any(line.startswith(f"  {name}: ") for line in lines)


def test_memory_and_frameworks_flip() -> None:
    report = full_report()
    report["memory"]["extra_bytes"] = 2**30
    report["import"]["frameworks"] = ["torch"]
    short = [name for name, met in verdicts(report).items() if met is False]
    assert short == ["import rootdk, frameworks loaded", "memory above inputs and output, 9 keys"]


def test_the_fastest_plain_sum_counts() -> None:
    report = full_report()
    report["decode"][0]["seconds"] |= times(**{"sum_numpy,_threads": 0.5})
    assert verdicts(report)["decode, float32, as a share of a plain sum"] is False


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 10.0, 100.0]) == pytest.approx(10.0)
    assert geometric_mean([1e300, 1e300]) == pytest.approx(1e300)
    with pytest.raises(ValueError, match="at least one"):
        geometric_mean([])


def test_a_mean_and_the_slowest_are_two_targets() -> None:
    report = full_report()
    report["forward"] = [row(rootdk=1, torch=3), row(rootdk=1, torch=0.9)]
    judged = verdicts(report)
    assert judged["forward against torch, geometric mean"]
    assert judged["forward against torch, slowest shape"] is False


def test_only_what_was_run_is_judged() -> None:
    names = set()
    for section in all_sections():
        judged = verdicts(full_report() | {"sections": [section]})
        assert judged
        assert not names & set(judged)
        names |= set(judged)
    assert names == set(verdicts(full_report()))


def test_the_slowest_chapter_of_the_explorer_counts() -> None:
    report = full_report()
    report["explorer"][1]["seconds"]["largest"]["p95"] = 0.0401
    (judged,) = [verdict for verdict in judge(report) if verdict["name"].startswith("explorer")]
    assert judged["met"] is False
    assert judged["reached"] == "40.0 / 40.1"
    assert judged["why"].endswith("proof")
    report["explorer"] = []
    (judged,) = [verdict for verdict in judge(report) if verdict["name"].startswith("explorer")]
    assert judged["met"] is None


def test_what_rootdk_cannot_do_is_short_and_says_why() -> None:
    report = full_report()
    report["options"] = [row("bias gradient", torch=1.0) | {"left_out": {"rootdk": "ArgumentError: not yet"}}]
    (judged,) = [verdict for verdict in judge(report) if verdict["name"] == "bias gradient"]
    assert judged["met"] is False
    assert judged["reached"] == "no result"
    assert "not yet" in "\n".join(headlines(judge(report)))


def test_a_dead_rival_leaves_its_target_unjudged_with_the_reason() -> None:
    report = full_report()
    del report["half"][0]["seconds"]["torch"]
    report["half"][0]["left_out"] = {"torch": "died with SIGILL"}
    name = "bfloat16 forward against torch, geometric mean"
    assert verdicts(report)[name] is None
    lines = headlines(judge(report))
    judged = [verdict for verdict in judge(report) if verdict["met"] is not None]
    assert lines[0] == f"every target that was judged is reached ({len(judged)})"
    assert lines[1:] == ["not judged: 1", f"  {name}: torch died with SIGILL"]


def test_a_rival_that_is_out_of_some_rows_is_named() -> None:
    report = full_report()
    out = row(rootdk=1.0) | {"left_out": {"torch": "gave up"}}
    report["backward"].append(out)
    judged = {verdict["name"]: verdict for verdict in judge(report)}["forward + backward against torch, geometric mean"]
    assert judged["met"]
    assert judged["why"] == "1 of 2 left out: torch gave up"


def test_a_rival_that_needed_help_is_named() -> None:
    report = full_report()
    report["half"][0]["notes"] = {"torch": "died with SIGILL; timed with A=B"}
    judged = {verdict["name"]: verdict for verdict in judge(report)}["bfloat16 forward against torch, geometric mean"]
    assert judged["met"]
    assert judged["why"] == "torch died with SIGILL; timed with A=B"


def test_without_torch_its_targets_are_there_and_not_judged() -> None:
    report = full_report()
    report |= {"peers": {}, "absent": {"torch": "not installed"}, "half": [], "options": [], "beside": [], "watch": []}
    report["ring"] = []
    report["forward"] = [row(n=4096, rootdk=1.0, measure=1.05)]
    report["backward"] = [row(rootdk=1.0)]
    by_name = {verdict["name"]: verdict for verdict in judge(report)}
    names = ("forward against torch, geometric mean", "float16 forward against torch, geometric mean")
    names += ("fused options against torch", "between torch's layers", "training step, watched exactly / unwatched")
    names += ("ring of 2 ranks, efficiency, lowest",)
    for name in names:
        assert by_name[name]["met"] is None
        assert "torch" in by_name[name]["why"]
    assert by_name["long full forward as a share of sgemm, lowest"]["met"]


def test_a_quick_report_shows_figures_and_judges_nothing() -> None:
    judged = judge(full_report() | {"quick": True})
    assert [verdict["name"] for verdict in judged] == [verdict["name"] for verdict in judge(full_report())]
    assert all(verdict["met"] is None for verdict in judged)
    assert judged[0]["reached"] == "1.50 / 1.50"


def shown(report: Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    show(report | {"targets": judge(report)})
    return capsys.readouterr().out


def test_the_page_starts_with_what_falls_short(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = shown(full_report(), capsys, monkeypatch)
    assert page.startswith("every target reached\n")
    report = full_report()
    report["options"][0]["seconds"]["torch"]["median"] = 0.5
    page = shown(report, capsys, monkeypatch)
    count = len(judge(report))
    short = f"falls short: 1 of {count} targets\n  bool mask, forward: 1.00 / 0.50, wanted >= 1.00\nrootdk 0"
    assert page.startswith(short)
    assert "sgemm in this run: 1 to 1 GFLOP/s" in page


def test_the_page_fits_and_names_every_target(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = full_report()
    report["half"][0]["left_out"] = {"torch": "died with SIGILL"}
    page = shown(report, capsys, monkeypatch)
    assert max(map(len, page.splitlines())) <= 80
    for name in verdicts(report):
        assert name in page
    assert "bfloat16: torch left out: died with SIGILL" in page
    assert "the part above it 0.050 / 0.050 s" in page.replace("\n", " ")


def test_a_row_without_rootdk_does_not_break_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = full_report()
    for key in ("half", "decode", "options", "tiny", "beside"):
        report[key][0] |= {"seconds": {}, "left_out": {"rootdk": "died with SIGSEGV"}}
    assert "died with SIGSEGV" in shown(report, capsys, monkeypatch)


def test_a_quick_page_says_that_it_is_not_for_quoting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for quick in (False, True):
        page = shown(full_report() | {"quick": quick}, capsys, monkeypatch)
        assert (" met" in page) != quick
        assert ("not for quoting" in page) == quick
