"""The scale rules: what <q, k> is multiplied by, each with its formula, its users and its source.

A rule turns (d_k, keys, position) into the factor of the scores. The ones that need nothing else have a name, so that
`scale="dk"` works; the others are functions that return a rule: `scale=scaling.mup(64)`.

Not here, because they are no factor of the scores: QK-norm (gains on normalised q and k), softcap (its own argument)
and QK-clip (it changes weights).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from .checks import real
from .errors import ArgumentError, ArgumentTypeError

Factor = Callable[[int, Any, Any], Any]


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """One rule: z = factor(d_k, keys, position) * <q, k>.

    factor     called as factor(d_k, keys, position), where `keys` is how many keys the call has (key_lengths[b] where
               lengths are given) and `position` is where the query stands among the keys, i + query_offset. Both may
               be arrays that broadcast; the result is a number or an array of their common shape.
    varies     which of "keys" and "position" the factor depends on; what is not named here arrives as None
    variance   of z when the components of q and k are independent with mean 0 and variance 1
    unit_length  True if the rule is meant for q and k that the caller has scaled to length 1

    >>> own = ScaleRule("own", formula="2/d_k", factor=lambda d_k, keys, position: 2 / d_k)
    >>> own.score_variance(64)
    0.0625
    """

    name: str
    formula: str
    factor: Factor
    variance: str = ""
    users: str = ""
    source: str = ""
    varies: frozenset[str] = frozenset()
    unit_length: bool = False

    def score_variance(self, d_k: int, keys: Any = None, position: Any = None) -> Any:
        """Var z = factor^2 * d_k at unit inputs; factor^2 / d_k where q and k are first scaled to length 1.

        >>> rule("sqrt").score_variance(64), rule("none").score_variance(64), rule("dk").score_variance(64)
        (1.0, 64.0, 0.015625)
        """
        arguments = {"keys": keys, "position": position}
        for name in sorted(self.varies):
            if arguments.get(name) is None:
                raise ArgumentError(f"{name}: must be given, the rule {self.name!r} depends on it, got None")
        factor = self.factor(d_k, keys, position)
        if isinstance(factor, (str, bytes)):
            raise ArgumentTypeError(f"factor: the rule {self.name!r} must give numbers, got {factor!r}")
        return factor * factor / d_k if self.unit_length else factor * factor * d_k


def _ln(count: Any) -> Any:
    """ln of a number of keys; an empty row has no logits, so any finite number does for it."""
    return np.log(np.maximum(count, 1)) if isinstance(count, np.ndarray) else math.log(max(count, 1))


def _number(argument: str, value: Any, above: float = -math.inf) -> float:
    number = real(argument, value, "a number")
    if not math.isfinite(number) or number <= above:
        limit = "" if above == -math.inf else f" > {above:g}"
        raise ArgumentError(f"{argument}: must be a finite number{limit}, got {value!r}")
    return number


@dataclass(frozen=True, slots=True)
class _Factor:
    """A formula with its parameters. Not a closure, so that a rule can be pickled and two equal rules are equal."""

    formula: Callable[..., Any]
    parameters: tuple[float, ...]

    def __call__(self, d_k: int, keys: Any, position: Any) -> Any:
        return self.formula(d_k, keys, position, *self.parameters)


def _constant(_d_k: int, _keys: Any, _position: Any, unit: float) -> float:
    return unit


def _over_root(d_k: int, _keys: Any, _position: Any, unit: float) -> float:
    return unit / math.sqrt(d_k)


def _over_width(d_k: int, _keys: Any, _position: Any, unit: float) -> float:
    return unit / d_k


def _log_keys(d_k: int, keys: Any, _position: Any, unit: float) -> Any:
    return unit * _ln(keys) / math.sqrt(d_k)


def _log_position(d_k: int, _keys: Any, position: Any, unit: float) -> Any:
    return unit * _ln(position + 1) / math.sqrt(d_k)


def _log_past_length(d_k: int, _keys: Any, position: Any, unit: float) -> Any:
    growth = unit * _ln(position + 1)
    larger = np.maximum(growth, 1.0) if isinstance(growth, np.ndarray) else max(growth, 1.0)
    return larger / math.sqrt(d_k)


def _steps(d_k: int, _keys: Any, position: Any, floor: float, strength: float) -> Any:
    steps = np.floor((np.maximum(position, -1) + 1) / floor)  # a query before the first key is at step 0
    grown = (1.0 + strength * np.log1p(steps)) / math.sqrt(d_k)
    return grown if isinstance(position, np.ndarray) else float(grown)


_KEYS, _POSITION = frozenset({"keys"}), frozenset({"position"})

NONE = ScaleRule(
    "none",
    "1",
    _Factor(_constant, (1.0,)),
    variance="d_k",
    users="plain dot-product attention",
    source="Luong et al. 2015, arXiv:1508.04025, section 3.1",
)
SQRT = ScaleRule(
    "sqrt",
    "1/sqrt(d_k)",
    _Factor(_over_root, (1.0,)),
    variance="1",
    users="nearly every transformer",
    source="Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1",
)
DK = ScaleRule(
    "dk",
    "1/d_k",
    _Factor(_over_width, (1.0,)),
    variance="1/d_k",
    users="maximal-update parametrisation, Granite",
    source="Yang et al. 2022, arXiv:2203.03466",
)
T5 = ScaleRule(
    "t5",
    "1",
    _Factor(_constant, (1.0,)),
    variance="d_k; 1 under T5's own start, where W_q carries the 1/sqrt(d_k)",
    users="T5 and its descendants",
    source="Raffel et al. 2020, arXiv:1910.10683; the factor is in the initialisation of W_q",
)


def mup(multiplier: float) -> ScaleRule:
    """sqrt(multiplier)/d_k: equal to 1/sqrt(d_k) where d_k = multiplier, and 1/d_k-like as d_k grows.

    >>> mup(64).factor(64, None, None), mup(64).factor(256, None, None)
    (0.125, 0.03125)
    """
    root = math.sqrt(_number("multiplier", multiplier, above=0))
    return ScaleRule(
        f"mup({multiplier:g})",
        "sqrt(multiplier)/d_k",
        _Factor(_over_width, (root,)),
        variance="multiplier/d_k",
        users="models tuned small and trained large",
        source="Yang et al. 2022, arXiv:2203.03466",
    )


def query_pre_attn_scalar(scalar: float) -> ScaleRule:
    """scalar^(-1/2), where a model's configuration gives the number under the root.

    >>> query_pre_attn_scalar(256).factor(128, None, None)
    0.0625
    """
    factor = _number("scalar", scalar, above=0) ** -0.5
    return ScaleRule(
        f"query_pre_attn_scalar({scalar:g})",
        "scalar^(-1/2)",
        _Factor(_constant, (factor,)),
        variance="d_k/scalar",
        users="Gemma 2, Gemma 3",
        source="Gemma 2 report, arXiv:2408.00118; `query_pre_attn_scalar` in config.json",
    )


def attention_multiplier(multiplier: float) -> ScaleRule:
    """The number itself, as a model's configuration gives it.

    >>> attention_multiplier(0.0078125).factor(128, None, None)
    0.0078125
    """
    factor = _number("multiplier", multiplier, above=0)
    return ScaleRule(
        f"attention_multiplier({multiplier:g})",
        "multiplier",
        _Factor(_constant, (factor,)),
        variance="d_k multiplier^2",
        users="Granite 3 and 4",
        source="`attention_multiplier` in config.json",
    )


def layer_scaled(layer: int) -> ScaleRule:
    """1/(sqrt(d_k) (layer + 1)), layers counted from 0: keeps half-precision scores small in deep layers.

    >>> layer_scaled(3).factor(64, None, None)
    0.03125
    """
    if _number("layer", layer) < 0:
        raise ArgumentError(f"layer: must be at least 0, got {layer!r}")
    return ScaleRule(
        f"layer_scaled({layer})",
        "1/(sqrt(d_k) (layer+1))",
        _Factor(_over_root, (1.0 / (layer + 1),)),
        variance="1/(layer+1)^2",
        users="GPT-2 with scale_attn_by_inverse_layer_idx",
        source="Karamcheti et al. 2021, Mistral (Stanford CRFM); `scale_attn_by_inverse_layer_idx` in config.json",
    )


def entropy_invariant(base: float = 512, *, causal: bool = False) -> ScaleRule:
    """ln n/(ln base sqrt(d_k)): the logits of a longer row are wider, and at `base` keys they are those of 1/sqrt(d_k).

    n is the number of keys of the call; with causal=True it is position + 1, what a causal row sees. In spite of its
    name the rule does not hold the entropy at one share of ln n: with random q and k that share falls as rows get
    longer, where under 1/sqrt(d_k) it rises.

    >>> from rootdk import predict
    >>> predict(64, [100, 1e9], "entropy_invariant").mean_entropy_ratio.round(2).tolist()
    [0.94, 0.73]
    >>> predict(64, [100, 1e9], "sqrt").mean_entropy_ratio.round(2).tolist()
    [0.9, 0.98]

    >>> entropy_invariant().factor(64, 512, None)
    0.125
    """
    unit = 1.0 / math.log(_number("base", base, above=1))
    return _log_rule(
        "entropy_invariant" if base == 512 and not causal else f"entropy_invariant({base:g})",
        "ln n/(ln base sqrt(d_k))",
        unit,
        causal,
        variance="(ln n/ln base)^2",
        users="GAU-alpha",
        source="Su Jianlin 2021, kexue.fm/archives/8823",
    )


def ssmax(s: float, *, causal: bool = False) -> ScaleRule:
    """s ln n/sqrt(d_k), scalable softmax: the largest weight does not fade as n grows. s is learned per head.

    n is the number of keys of the call; with causal=True it is position + 1, what a causal row sees, as in a decoder.

    >>> round(ssmax(0.43).factor(64, 1024, None) * 8, 4)
    2.9805
    """
    return _log_rule(
        f"ssmax({s:g})",
        "s ln n/sqrt(d_k)",
        _number("s", s),
        causal,
        variance="(s ln n)^2",
        users="models trained with SSMax",
        source="Nakanishi 2025, arXiv:2501.19399, section 2",
    )


def _log_rule(
    name: str, formula: str, unit: float, causal: bool, *, variance: str, users: str, source: str
) -> ScaleRule:
    if causal:
        name = f"{name[:-1]}, causal)"
    factor = _Factor(_log_position if causal else _log_keys, (unit,))
    return ScaleRule(name, formula, factor, variance, users, source, _POSITION if causal else _KEYS)


def qwen_log_n(train_length: int) -> ScaleRule:
    """max(1, log_L(i))/sqrt(d_k) for the i-th query counted from 1: sharper only past the trained length L.

    >>> qwen_log_n(2048).factor(64, None, 2047), qwen_log_n(2048).factor(64, None, 2048**2 - 1)
    (0.125, 0.25)
    """
    unit = 1.0 / math.log(_number("train_length", train_length, above=1))
    return ScaleRule(
        f"qwen_log_n({train_length})",
        "max(1, ln(i)/ln(L))/sqrt(d_k), i = position + 1",
        _Factor(_log_past_length, (unit,)),
        variance="max(1, log_L i)^2",
        users="Qwen, first generation, with use_logn_attn",
        source="Bai et al. 2023, arXiv:2309.16609",
        varies=_POSITION,
    )


def llama4(floor: float = 8192, strength: float = 0.1) -> ScaleRule:
    """(1 + strength ln(1 + floor((position+1)/floor)))/sqrt(d_k): a temperature that falls in steps along the text.

    >>> llama4().factor(64, None, 8190), round(llama4().factor(64, None, 8191) * 8, 4)
    (0.125, 1.0693)
    """
    floor, strength = _number("floor", floor, above=0), _number("strength", strength, above=0)
    return ScaleRule(
        "llama4" if (floor, strength) == (8192, 0.1) else f"llama4({floor:g}, {strength:g})",
        "(1 + strength ln(1 + floor((position+1)/floor)))/sqrt(d_k)",
        _Factor(_steps, (floor, strength)),
        variance="(1 + strength ln(1 + floor((position+1)/floor)))^2",
        users="Llama 4, in layers without rotary positions",
        source="transformers, Llama4TextConfig: floor_scale, attn_scale, attn_temperature_tuning",
        varies=_POSITION,
    )


def yarn(stretch: float) -> ScaleRule:
    """(0.1 ln stretch + 1)^2/sqrt(d_k), where the context was stretched by that factor; 1 for no stretch.

    >>> round(yarn(16).factor(64, None, None) * 8, 4)
    1.6314
    """
    growth = (0.1 * math.log(max(_number("stretch", stretch, above=0), 1.0)) + 1.0) ** 2
    return ScaleRule(
        f"yarn({stretch:g})",
        "(0.1 ln stretch + 1)^2/sqrt(d_k)",
        _Factor(_over_root, (growth,)),
        variance="(0.1 ln stretch + 1)^4",
        users="models whose rotary context was extended by YaRN",
        source="Peng et al. 2023, arXiv:2309.00071, section 3.4",
    )


def cosine(log_scale: float = math.log(10), cap: float = 100.0) -> ScaleRule:
    """min(e^log_scale, cap): the factor of cosine attention. The caller scales query and key to length 1 first.

    >>> round(cosine().factor(64, None, None), 9), cosine(9.0).factor(64, None, None)
    (10.0, 100.0)
    """
    # Compared as logarithms, so that a large log_scale cannot overflow.
    limit = _number("cap", cap, above=0)
    log_scale = _number("log_scale", log_scale)
    factor = limit if log_scale >= math.log(limit) else math.exp(log_scale)
    return ScaleRule(
        f"cosine({log_scale:g}, {cap:g})",
        "min(e^log_scale, cap), with |q| = |k| = 1",
        _Factor(_constant, (factor,)),
        variance="min(e^log_scale, cap)^2/d_k",
        users="Swin Transformer V2",
        source="Liu et al. 2022, arXiv:2111.09883",
        unit_length=True,
    )


_NAMED: Mapping[str, ScaleRule] = MappingProxyType(
    {named.name: named for named in (NONE, SQRT, DK, T5, entropy_invariant(), llama4())}
)
_FACTORIES = (
    mup,
    query_pre_attn_scalar,
    attention_multiplier,
    layer_scaled,
    entropy_invariant,
    ssmax,
    qwen_log_n,
    llama4,
    yarn,
    cosine,
)


def rules() -> Mapping[str, ScaleRule]:
    """The rules that have a name, by name.

    >>> list(rules())
    ['none', 'sqrt', 'dk', 't5', 'entropy_invariant', 'llama4']
    """
    return _NAMED


def rule(name: str) -> ScaleRule:
    """The rule of that name; an unknown name is an error that lists the known ones.

    >>> rule("sqrt").formula
    '1/sqrt(d_k)'
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"name: must be the name of a rule, got {name!r}")
    if name in _NAMED:
        return _NAMED[name]
    from difflib import get_close_matches

    parametric = {make.__name__: make for make in _FACTORIES if make.__name__ not in _NAMED}
    close = get_close_matches(name.lower(), [*_NAMED, *parametric], n=1)
    hint = ""
    if close and close[0] in parametric:
        hint = f"; {close[0]} needs a parameter: rootdk.scaling.{close[0]}(...)"
    elif close:
        hint = f"; did you mean {close[0]!r}?"
    raise ArgumentError(f"scale: must be one of the names {', '.join(map(repr, _NAMED))}, got {name!r}{hint}")
