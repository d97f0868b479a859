"""The scale rules: formulas by hand, variance by simulation, names, and how a rule reaches the problem."""

import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import random_arrays

from rootdk import ArgumentError, ArgumentTypeError, ScaleRule, scaling
from rootdk.backends import problem_of

# Every rule once with numbers worked out on paper: d_k = 64, so that 1/sqrt(d_k) = 1/8.
BY_HAND = [
    (scaling.rule("none"), 0, 0, 1.0),
    (scaling.rule("sqrt"), 0, 0, 1 / 8),
    (scaling.rule("dk"), 0, 0, 1 / 64),
    (scaling.rule("t5"), 0, 0, 1.0),
    (scaling.mup(16), 0, 0, 4 / 64),
    (scaling.query_pre_attn_scalar(144), 0, 0, 1 / 12),
    (scaling.attention_multiplier(0.0078125), 0, 0, 1 / 128),
    (scaling.layer_scaled(4), 0, 0, 1 / 40),
    (scaling.rule("entropy_invariant"), 512**2, 0, 2 / 8),
    (scaling.entropy_invariant(10, causal=True), 0, 999, 3 / 8),
    (scaling.ssmax(0.5), math.e**4, 0, 2 / 8),
    (scaling.ssmax(0.5, causal=True), 0, math.e**4 - 1, 2 / 8),
    (scaling.qwen_log_n(100), 0, 50, 1 / 8),
    (scaling.qwen_log_n(100), 0, 9999, 2 / 8),
    (scaling.rule("llama4"), 0, 8190, 1 / 8),
    (scaling.rule("llama4"), 0, 2 * 8192 - 1, (1 + 0.1 * math.log(3)) / 8),
    (scaling.yarn(math.e**5), 0, 0, 2.25 / 8),
    (scaling.yarn(0.5), 0, 0, 1 / 8),
    (scaling.yarn(math.e**5, 0.5), 0, 0, 1.5625 / 8),
    (scaling.qk_norm(), 0, 0, 1.0),
    (scaling.qk_norm_log(1000, 0.5), 0, 998, 1 / 64),
    (scaling.qk_norm_log(1000, 0.5), 0, 1000 * math.e**2 - 1, 2 / 64),
    (scaling.half_width(), 0, 0, 1 / math.sqrt(32)),
    (scaling.both_sides(), 0, 0, 1 / 8),
    (scaling.cosine(), 0, 0, 10.0),
    (scaling.cosine(1000.0), 0, 0, 100.0),
]


@pytest.mark.parametrize(("rule", "keys", "position", "expected"), BY_HAND, ids=lambda x: getattr(x, "name", ""))
def test_factor_by_hand(rule: ScaleRule, keys: Any, position: Any, expected: float) -> None:
    assert rule.factor(64, keys, position) == pytest.approx(expected, rel=1e-14)
    # Arrays give the same numbers, of a common shape.
    many = rule.factor(64, np.full((2, 1), keys), np.full((2, 3), position))
    np.testing.assert_allclose(many, expected, rtol=1e-14)


def test_every_rule_is_tried_and_tells_where_it_comes_from() -> None:
    tried = {rule.name.partition("(")[0] for rule, *_ in BY_HAND}
    assert tried == set(scaling.rules()) | set(scaling._FACTORIES)
    for rule, *_ in BY_HAND:
        assert all((rule.formula, rule.variance, rule.users, rule.source)), rule.name


@pytest.mark.parametrize(("rule", "keys", "position", "expected"), BY_HAND, ids=lambda x: getattr(x, "name", ""))
def test_score_variance_is_what_random_inputs_show(rule: ScaleRule, keys: Any, position: Any, expected: float) -> None:
    rng = np.random.default_rng(5)
    rows, d_k = 40_000, 64
    q, k = rng.standard_normal((2, rows, d_k))
    if rule.unit_length:
        q, k = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (q, k))
    z = rule.factor(d_k, keys, position) * (q * k).sum(axis=-1)
    # The sample variance of rows draws with excess kurtosis 6/d_k (less on the sphere) has this relative deviation.
    deviation = math.sqrt((2 + 6 / d_k) / rows)
    assert z.var() == pytest.approx(rule.score_variance(d_k, keys, position), rel=4.5 * deviation)


@pytest.mark.parametrize("rule", [rule for rule, *_ in BY_HAND] + [scaling.mup(1 / 3), scaling.rule("-2.5e-7")],
                         ids=lambda rule: rule.name)  # fmt: skip
def test_the_name_of_a_rule_is_the_rule(rule: ScaleRule) -> None:
    """To the last digit of its parameters, so that a run or a figure made under a name can be made again."""
    assert scaling.rule(rule.name) == rule


@pytest.mark.parametrize("rule", [rule for rule, *_ in BY_HAND], ids=lambda rule: rule.name)
def test_a_rule_can_be_pickled(rule: ScaleRule) -> None:
    again = pickle.loads(pickle.dumps(rule))
    assert again == rule
    assert again.factor(64, 1000, 500) == rule.factor(64, 1000, 500)


def test_a_named_rule_bears_its_name() -> None:
    for name, rule in scaling.rules().items():
        assert rule.name == name
    assert scaling.entropy_invariant(10).name == "entropy_invariant(10)"
    assert scaling.entropy_invariant(causal=True).name == "entropy_invariant(512, causal)"


@pytest.mark.parametrize(
    ("rule", "given", "message"),
    [
        (scaling.ssmax(0.5), {"position": 3}, "keys: must be given, the rule 'ssmax(0.5)' depends on it, got None"),
        (scaling.rule("llama4"), {"keys": 3}, "position: must be given, the rule 'llama4' depends on it, got None"),
        (
            ScaleRule("both", "", lambda d_k, keys, position: 1.0, varies=frozenset({"keys", "position"})),
            {"keys": 3},
            "position: must be given, the rule 'both' depends on it, got None",
        ),
        (
            ScaleRule("text", "", lambda d_k, keys, position: "2"),
            {},
            "factor: the rule 'text' must give numbers, got '2'",
        ),
    ],
)
def test_score_variance_says_what_it_needs(rule: ScaleRule, given: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        rule.score_variance(64, **given)
    assert str(caught.value) == message


@pytest.mark.parametrize("bad", [3, None, scaling.SQRT.factor, ["sqrt"]])
def test_a_name_is_text(bad: Any) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        scaling.rule(bad)
    assert str(caught.value) == f"name: must be the name of a rule, got {bad!r}"


def test_a_factor_that_needs_what_it_did_not_name_fails_loudly(rng: np.random.Generator) -> None:
    rule = ScaleRule("forgot", "1/keys", lambda d_k, keys, position: 1 / keys)
    with pytest.raises(TypeError):
        problem_of(*random_arrays(rng), scale=rule)


def test_rule_by_keys_is_one_number_without_lengths(rng: np.random.Generator) -> None:
    problem = problem_of(*random_arrays(rng), scale="entropy_invariant")
    assert problem.row_scale is None
    assert problem.scale == pytest.approx(math.log(9) / math.log(512) / math.sqrt(8))


def test_rule_by_keys_follows_the_lengths(rng: np.random.Generator) -> None:
    problem = problem_of(*random_arrays(rng), scale=scaling.ssmax(1.0), key_lengths=[4, 0])
    assert problem.scale == 1.0
    np.testing.assert_allclose(problem.row_scale, np.broadcast_to([[math.log(4)], [0.0]], (2, 7)) / math.sqrt(8))
    assert problem.row_scale.flags.c_contiguous


def test_rule_by_position_follows_the_offset(rng: np.random.Generator) -> None:
    problem = problem_of(*random_arrays(rng), scale=scaling.qwen_log_n(2), query_offset=[1, -5])
    position = np.arange(7) + np.array([[1], [-5]])
    expected = np.maximum(np.log2(np.maximum(position + 1, 1)), 1) / math.sqrt(8)
    np.testing.assert_allclose(problem.row_scale, expected)


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("sqr", "got 'sqr'; did you mean 'sqrt'?"),
        ("SQRT", "got 'SQRT'; did you mean 'sqrt'?"),
        ("mup", "got 'mup'; mup needs a parameter: mup(...)"),
        ("xyzzy", "got 'xyzzy'"),
    ],
)
def test_an_unknown_name_lists_the_known(name: str, ending: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        scaling.rule(name)
    known = "scale: must be one of the names 'none', 'sqrt', 'dk', 't5', 'entropy_invariant', 'ssmax', 'llama4', "
    assert str(caught.value) == f"{known}one with parameters such as 'mup(64)', or a number, {ending}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scaling.mup(0), "multiplier: must be a finite number > 0, got 0"),
        (lambda: scaling.mup(math.inf), "multiplier: must be a finite number > 0, got inf"),
        (lambda: scaling.query_pre_attn_scalar(-1), "scalar: must be a finite number > 0, got -1"),
        (lambda: scaling.layer_scaled(-1), "layer: must be at least 0, got -1"),
        (lambda: scaling.qwen_log_n(1), "train_length: must be a finite number > 1, got 1"),
        (lambda: scaling.entropy_invariant(0.5), "base: must be a finite number > 1, got 0.5"),
        (lambda: scaling.ssmax(math.nan), "s: must be a finite number, got nan"),
        (lambda: scaling.ssmax("2"), "s: must be a number, got '2'"),
        (lambda: scaling.yarn(0), "stretch: must be a finite number > 0, got 0"),
        (lambda: scaling.yarn(2, math.nan), "mscale: must be a finite number, got nan"),
        (lambda: scaling.qk_norm_log(0), "floor: must be a finite number > 0, got 0"),
        (lambda: scaling.qk_norm_log(8, 0), "strength: must be a finite number > 0, got 0"),
        (lambda: scaling.llama4(0), "floor: must be a finite number > 0, got 0"),
        (lambda: scaling.cosine(cap=-1), "cap: must be a finite number > 0, got -1"),
        (lambda: scaling.attention_multiplier("2"), "multiplier: must be a number, got '2'"),
    ],
)
def test_parameters_are_checked(make: Any, message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mup()", "scale: must be called as mup(multiplier), got 'mup()'"),
        ("mup(64, causal)", "scale: must be called as mup(multiplier), got 'mup(64, causal)'"),
        ("ssmax(1, 2)", "scale: must be called as ssmax(s, causal), got 'ssmax(1, 2)'"),
        ("mup(d_k)", "scale: the parameters of mup must be numbers, got 'mup(d_k)'"),
        ("mup(0)", "multiplier: must be a finite number > 0, got 0"),
        ("1e999", "scale: must be a finite number, got inf"),
    ],
)
def test_a_text_that_is_no_rule_says_why(text: str, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        scaling.rule(text)
    assert str(caught.value) == message


@pytest.fixture
def own() -> Iterator[ScaleRule]:
    rule = ScaleRule("own", "3/d_k", lambda d_k, keys, position: 3 / d_k)
    yield scaling.register(rule)
    scaling.unregister("own")


def test_a_registered_rule_goes_everywhere(own: ScaleRule, rng: np.random.Generator) -> None:
    from rootdk import attention, predict
    from rootdk.lab.checks.sampler import factor_of
    from rootdk.lab.training import RunSpec

    arrays = random_arrays(rng)
    assert scaling.rules()["own"] is own
    np.testing.assert_array_equal(attention(*arrays, scale="own"), attention(*arrays, scale=3 / arrays[0].shape[-1]))
    assert predict(64, 256, "own").mean_variance == predict(64, 256, 3 / 64).mean_variance
    assert factor_of("own", 64, 256) == 3 / 64
    assert RunSpec(rule="own").rule == "own"
    assert scaling.register(own) is own


def test_what_cannot_be_registered(own: ScaleRule) -> None:
    other = ScaleRule("own", "1", lambda d_k, keys, position: 1.0)
    wanted = "a letter, then up to 39 letters, digits, '_', '.' or '-'"
    for bad, message in (
        (other, "rule: must have a name that is free, got 'own'"),
        (ScaleRule("sqrt", "1", other.factor), "rule: must have a name that is free, got 'sqrt'"),
        (ScaleRule("mup", "1", other.factor), "rule: must have a name that is free, got 'mup'"),
        (ScaleRule("a b", "1", other.factor), f"rule: must have a name of {wanted}, got 'a b'"),
        (ScaleRule(None, "1", other.factor), f"rule: must have a name of {wanted}, got None"),
        (ScaleRule("x", "1", 2.0), "rule: must have a factor that can be called, got 2.0"),
        (2.0, "rule: must be a ScaleRule, got float"),
    ):  # fmt: skip
        with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
            scaling.register(bad)
        assert str(caught.value) == message
    with pytest.raises(ArgumentError, match="name: must be that of a registered rule, got 'sqrt'"):
        scaling.unregister("sqrt")


def test_a_fingerprint_is_of_what_a_rule_says(own: ScaleRule) -> None:
    before = scaling.fingerprint("own")
    scaling.unregister("own")
    assert scaling.fingerprint("own") == scaling.fingerprint("sqrt") == ""
    for factor, same in ((lambda d_k, keys, position: 3 * (1 / d_k) if d_k == 64 else 3 / d_k, True),
                         (lambda d_k, keys, position: 3 / d_k + (d_k == 512) * 1e-9, False)):  # fmt: skip
        scaling.register(ScaleRule("own", "", factor))
        assert (scaling.fingerprint("own") == before) == same
        scaling.unregister("own")
    scaling.register(own)


def test_a_rule_of_a_module_is_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rules.py").write_text(
        "from rootdk.scaling import ScaleRule\n"
        "mine = ScaleRule('mine', 'ln n/d_k', lambda d_k, n, at: n / d_k, varies=frozenset({'keys'}))\nnumber = 3\n"
    )
    (tmp_path / "my_broken_rules.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    mine = scaling.load("my_rules:mine")
    try:
        assert scaling.rule("mine") is mine
        assert pickle.loads(pickle.dumps(mine)).factor(64, 8, None) == 1 / 8
        assert scaling.load("my_rules:mine") == mine
    finally:
        scaling.unregister("mine")
    for reference, message in (
        ("my_rules", "rule: must be written as module:name, got 'my_rules'"),
        ("my_rules:number", "rule: 'my_rules:number' must be a ScaleRule, got int"),
        (
            "my_rules:none",
            "rule: cannot load 'my_rules:none': AttributeError: module 'my_rules' has no attribute 'none'",
        ),
        ("nowhere_at_all:x", "rule: cannot load 'nowhere_at_all:x': ModuleNotFoundError: No module named"),
        ("my_broken_rules:x", "rule: cannot load 'my_broken_rules:x': ZeroDivisionError: division by zero"),
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
            scaling.load(reference)
        assert str(caught.value).startswith(message)
