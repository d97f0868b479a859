"""The scale rules: the factors of <q, k>, each with its formula, its users and its source.

A rule turns (d_k, keys, position) into the factor of the scores. The ones that need nothing else have a name, so that
`scale="dk"` works; the others are functions that return a rule: `scale=scaling.mup(64)`, or the same as text,
`scale="mup(64)"`. `register` gives a rule of your own a name that works everywhere.

Not here, because they are no factor of the scores: QK-norm (gains on normalised q and k), softcap (its own argument)
and QK-clip (it changes weights).
"""

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from .checks import real
from .errors import ArgumentError, ArgumentTypeError

__all__ = [
    "ScaleRule",
    "attention_multiplier",
    "cosine",
    "entropy_invariant",
    "layer_scaled",
    "llama4",
    "load",
    "mup",
    "query_pre_attn_scalar",
    "qwen_log_n",
    "register",
    "rule",
    "rules",
    "ssmax",
    "unregister",
    "yarn",
]

# One for the whole call, or one for each of its entries and rows.
Factors: TypeAlias = float | NDArray[Any]


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """One rule: z = factor(d_k, keys, position) * <q, k>.

    factor     called as factor(d_k, keys, position), where `keys` is how many keys the call has (key_lengths[b] where
               lengths are given) and `position` is where the query stands among the keys, i + query_offset. Both may
               be arrays that broadcast; the result is a number or an array of their common shape.
    varies     which of "keys" and "position" the factor depends on; what is not named here is passed as None
    variance   of z when the components of q and k are independent with mean 0 and variance 1
    unit_length  True if the rule is meant for q and k that the caller has scaled to length 1

    >>> own = ScaleRule("own", formula="2/d_k", factor=lambda d_k, keys, position: 2 / d_k)
    >>> own.score_variance(64)
    0.0625
    """

    name: str
    formula: str
    factor: Callable[[int, Any, Any], Factors]
    variance: str = ""
    users: str = ""
    source: str = ""
    varies: frozenset[str] = frozenset()
    unit_length: bool = False

    @overload
    def score_variance(self, d_k: int, keys: int | None = None, position: int | None = None) -> float: ...
    @overload
    def score_variance(self, d_k: int, keys: Any = None, position: Any = None) -> Factors: ...
    def score_variance(self, d_k: int, keys: Any = None, position: Any = None) -> Factors:
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


def factor_at(rule: ScaleRule, d_k: int, keys: Any, position: Any) -> Any:
    """rule.factor, called with those of `keys` and `position` on which the rule depends."""
    return rule.factor(d_k, keys if "keys" in rule.varies else None, position if "position" in rule.varies else None)


def _ln(count: Any) -> Any:
    """ln of a number of keys; an empty row has no logits, so any finite number is right for it."""
    return np.log(np.maximum(count, 1)) if isinstance(count, np.ndarray) else math.log(max(count, 1))


def _number(argument: str, value: Any, above: float = -math.inf) -> float:
    number = real(argument, value, "a number")
    if not math.isfinite(number) or number <= above:
        limit = "" if above == -math.inf else f" > {above:g}"
        raise ArgumentError(f"{argument}: must be a finite number{limit}, got {value!r}")
    return number


def _text(value: float) -> str:
    """A parameter in a name: short, and the same number when it is read back."""
    return short if float(short := f"{value:g}") == value else repr(float(value))


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


def _log_past_floor(d_k: int, _keys: Any, position: Any, floor: float, strength: float) -> Any:
    return (1.0 + strength * _ln((position + 1) / floor)) / d_k


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
        f"mup({_text(multiplier)})",
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
        f"query_pre_attn_scalar({_text(scalar)})",
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
        f"attention_multiplier({_text(multiplier)})",
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
    parameters = f"({_text(base)}{', causal' if causal else ''})"
    return ScaleRule(
        "entropy_invariant" if base == 512 and not causal else f"entropy_invariant{parameters}",
        "ln n/(ln base sqrt(d_k))",
        _Factor(_log_position if causal else _log_keys, (unit,)),
        variance="(ln n/ln base)^2",
        users="GAU-alpha",
        source="Su Jianlin 2021, kexue.fm/archives/8823",
        varies=_POSITION if causal else _KEYS,
    )


def ssmax(s: float = 0.43, *, causal: bool = False) -> ScaleRule:
    """s ln n/sqrt(d_k), scalable softmax: the largest weight does not fade as n grows. s is learned per head.

    Without one it is 0.43, that of the paper's first figure.

    n is the number of keys of the call; with causal=True it is position + 1, what a causal row sees, as in a decoder.

    >>> round(ssmax(0.43).factor(64, 1024, None) * 8, 4)
    2.9805
    """
    unit = _number("s", s)
    parameters = f"({_text(s)}{', causal' if causal else ''})"
    return ScaleRule(
        "ssmax" if s == 0.43 and not causal else f"ssmax{parameters}",
        "s ln n/sqrt(d_k)",
        _Factor(_log_position if causal else _log_keys, (unit,)),
        variance="(s ln n)^2",
        users="models trained with SSMax",
        source="Nakanishi 2025, arXiv:2501.19399, section 2",
        varies=_POSITION if causal else _KEYS,
    )


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
        "llama4" if (floor, strength) == (8192, 0.1) else f"llama4({_text(floor)}, {_text(strength)})",
        "(1 + strength ln(1 + floor((position+1)/floor)))/sqrt(d_k)",
        _Factor(_steps, (floor, strength)),
        variance="(1 + strength ln(1 + floor((position+1)/floor)))^2",
        users="Llama 4, in layers without rotary positions",
        source="transformers, Llama4TextConfig: floor_scale, attn_scale, attn_temperature_tuning",
        varies=_POSITION,
    )


def yarn(stretch: float, mscale: float = 1.0) -> ScaleRule:
    """(0.1 mscale ln stretch + 1)^2/sqrt(d_k), where the context was stretched by that factor; 1 for no stretch.

    YaRN multiplies the rotated q and k, each with the root of it. Latent attention multiplies the scale itself, since
    part of its q and k is not rotated; `mscale` is then `mscale_all_dim` of the config.

    >>> round(yarn(16).factor(64, None, None) * 8, 4), round(yarn(40, 0.707).factor(192, None, None) * 192**0.5, 4)
    (1.6314, 1.5896)
    """
    growth = math.log(max(_number("stretch", stretch, above=0), 1.0)) * _number("mscale", mscale)
    return ScaleRule(
        f"yarn({_text(stretch)})" if mscale == 1.0 else f"yarn({_text(stretch)}, {_text(mscale)})",
        "(0.1 mscale ln stretch + 1)^2/sqrt(d_k)",
        _Factor(_over_root, ((0.1 * growth + 1.0) ** 2,)),
        variance="(0.1 mscale ln stretch + 1)^4",
        users="models whose rotary context was extended by YaRN; DeepSeek-V2 and V3, Kimi K2, by mscale_all_dim",
        source="Peng et al. 2023, arXiv:2309.00071, section 3.4; `mscale_all_dim` in config.json",
    )


def qk_norm() -> ScaleRule:
    """1, after QK-norm: q and k have length sqrt(d_k) times their gains, and the gains act as the scale."""
    return ScaleRule(
        "qk_norm()",
        "1, after q and k were normed",
        _Factor(_constant, (1.0,)),
        variance="d_k, times the squares of the gains",
        users="Gemma 3n, Gemma 4",
        source="transformers, Gemma4TextAttention: scaling = 1.0",
    )


def qk_norm_log(floor: float, strength: float = 0.1) -> ScaleRule:
    """(1 + strength ln max(n/floor, 1))/d_k after QK-norm, n = position + 1: sharper only past `floor` keys."""
    floor, strength = _number("floor", floor, above=0), _number("strength", strength, above=0)
    return ScaleRule(
        f"qk_norm_log({_text(floor)}, {_text(strength)})",
        "(1 + strength ln max(n/floor, 1))/d_k, n = position + 1, after q and k were normed",
        _Factor(_log_past_floor, (floor, strength)),
        variance="(1 + strength ln max(n/floor, 1))^2/d_k, times the squares of the gains",
        users="Inkling, in layers that see the whole context",
        source="transformers, InklingTextConfig: log_scaling_n_floor, log_scaling_alpha",
        varies=_POSITION,
    )


def half_width() -> ScaleRule:
    """(d_k/2)^(-1/2), where a head sees two streams side by side and is scaled as if it saw one."""
    return ScaleRule(
        "half_width()",
        "(d_k/2)^(-1/2)",
        _Factor(_over_root, (math.sqrt(2.0),)),
        variance="2",
        users="Zamba, Zamba 2",
        source="Glorioso et al. 2024, arXiv:2405.16712; transformers, ZambaAttention",
    )


def both_sides() -> ScaleRule:
    """d_k^(-1/4) on q and again on k: 1/sqrt(d_k) in all, with q and k that stay small in half precision."""
    return ScaleRule(
        "both_sides()",
        "d_k^(-1/4) d_k^(-1/4)",
        _Factor(_over_root, (1.0,)),
        variance="1",
        users="Whisper as first published, torch's own attention, openai_privacy_filter",
        source="transformers, OpenAIPrivacyFilterAttention: scaling = head_dim**-0.25",
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
        f"cosine({_text(log_scale)}, {_text(cap)})",
        "min(e^log_scale, cap), with |q| = |k| = 1",
        _Factor(_constant, (factor,)),
        variance="min(e^log_scale, cap)^2/d_k",
        users="Swin Transformer V2",
        source="Liu et al. 2022, arXiv:2111.09883",
        unit_length=True,
    )


_BUILT_IN: Mapping[str, ScaleRule] = MappingProxyType(
    {named.name: named for named in (NONE, SQRT, DK, T5, entropy_invariant(), ssmax(), llama4())}
)
_registered: dict[str, ScaleRule] = {}
_FACTORIES: Mapping[str, Callable[..., ScaleRule]] = {
    make.__name__: make
    for make in (
        *(mup, query_pre_attn_scalar, attention_multiplier, layer_scaled, entropy_invariant, ssmax, qwen_log_n),
        *(llama4, yarn, qk_norm, qk_norm_log, half_width, both_sides, cosine),
    )
}
_CALL = re.compile(r"(?P<name>[a-z]\w*)\s*\((?P<arguments>[^()]*)\)", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}", re.ASCII)


def rules() -> Mapping[str, ScaleRule]:
    """The rules that have a name, by name: those of this module, then registered ones.

    >>> list(rules())
    ['none', 'sqrt', 'dk', 't5', 'entropy_invariant', 'ssmax', 'llama4']
    """
    return MappingProxyType({**_BUILT_IN, **_registered})


def register(rule: ScaleRule) -> ScaleRule:
    """Give a rule of your own its name: `scale="name"`, the study, the page and the training study can then use it.

    A name belongs to one rule; the same rule may come again. The rule is returned.

    >>> _ = register(ScaleRule("double", "2/sqrt(d_k)", lambda d_k, keys, position: 2 / d_k**0.5))
    >>> from rootdk import predict
    >>> predict(64, 1024, "double").mean_variance.round(2).tolist()
    [4.0]
    >>> unregister("double")
    """
    if not isinstance(rule, ScaleRule):
        raise ArgumentTypeError(f"rule: must be a ScaleRule, got {type(rule).__name__}")
    if not isinstance(rule.name, str) or not _NAME.fullmatch(rule.name):
        wanted = "a letter, then up to 39 letters, digits, '_', '.' or '-'"
        raise ArgumentError(f"rule: must have a name of {wanted}, got {rule.name!r}")
    if not callable(rule.factor):
        raise ArgumentTypeError(f"rule: must have a factor that can be called, got {rule.factor!r}")
    taken = rules().get(rule.name)
    if (taken is not None and not _same(taken, rule)) or rule.name in _FACTORIES.keys() - _BUILT_IN.keys():
        raise ArgumentError(f"rule: must have a name that is free, got {rule.name!r}")
    # Of the two forms of one rule the loaded one is kept: it can be pickled.
    if taken is None or isinstance(rule.factor, _Loaded):
        _registered[rule.name] = rule
    return rule


def _same(taken: ScaleRule, rule: ScaleRule) -> bool:
    """Whether both are one rule, perhaps as a module registers it on import and as `load` found it there."""
    loaded, written = (taken, rule) if isinstance(taken.factor, _Loaded) else (rule, taken)
    if not isinstance(loaded.factor, _Loaded) or isinstance(written.factor, _Loaded):
        return taken == rule
    # During its import the module may not have the name yet.
    in_module = getattr(sys.modules.get(loaded.factor.module), loaded.factor.name, written)
    return written.factor.__module__ == loaded.factor.module and in_module == written


def load(reference: str) -> ScaleRule:
    """Import and register the rule that "module:name" names. It runs the code of that module, so ask for your own.

    The rule that comes back can be pickled whatever its factor is: another process imports the module too.

    >>> load("my_rules.py")
    Traceback (most recent call last):
    rootdk.errors.ArgumentError: rule: must be written as module:name, got 'my_rules.py'
    """
    module, _, name = str(reference).partition(":")
    if not module or not name:
        raise ArgumentError(f"rule: must be written as module:name, got {reference!r}")
    factor = _Loaded(module, name)
    try:
        value = factor.rule()
    except Exception as error:
        raise ArgumentError(f"rule: cannot load {reference!r}: {type(error).__name__}: {error}") from error
    if not isinstance(value, ScaleRule):
        raise ArgumentTypeError(f"rule: {reference!r} must be a ScaleRule, got {type(value).__name__}")
    return register(replace(value, factor=factor))


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The factor of a rule in a user's module, which may be a lambda: identified by its place there."""

    module: str
    name: str

    def rule(self) -> Any:
        return getattr(import_module(self.module), self.name)

    def itself(self) -> Any:
        """The function that was written there."""
        return self.rule().factor

    def __call__(self, d_k: int, keys: Any, position: Any) -> Any:
        return self.itself()(d_k, keys, position)


def unregister(name: str) -> None:
    """Undo `register`; a name that is not registered is an error.

    >>> unregister("sqrt")
    Traceback (most recent call last):
    rootdk.errors.ArgumentError: name: must be that of a registered rule, got 'sqrt'
    """
    if name not in _registered:
        raise ArgumentError(f"name: must be that of a registered rule, got {name!r}")
    del _registered[name]


_PROBED_WIDTHS = tuple(2**power for power in range(14))
_PROBED_KEYS = np.array([1, 2, 3, 8, 64, 512, 1024, 8192, 262_144])


def fingerprint(name: str) -> str:
    """A short hash of a registered rule's factors at many settings, used in keys of cached results.

    Empty for the rules of this module, which change with its code alone.

    >>> fingerprint("sqrt")
    ''
    """
    if name not in _registered:
        return ""
    import hashlib  # takes milliseconds, and only studies and training runs ask

    registered, digest = _registered[name], hashlib.sha256()
    for d_k in _PROBED_WIDTHS:
        for keys in _PROBED_KEYS.tolist():
            try:
                factor = factor_at(registered, d_k, keys, keys - 1)
            except Exception as error:  # noqa: BLE001 -- it may be a rule for some widths only
                factor = type(error).__name__
            digest.update(repr(factor).encode() + b"\0")
    return digest.hexdigest()


def rule(name: str) -> ScaleRule:
    """The rule that a text names: a name, a rule with its parameters, or a number.

    An unknown name is an error that lists the known ones. `rule(other.name)` is `other` for every rule of this module.

    >>> rule("sqrt").formula, rule("mup(64)").factor(64, None, None), rule("0.2").factor(64, None, None)
    ('1/sqrt(d_k)', 0.125, 0.2)
    >>> rule("ssmax(0.5, causal)") == ssmax(0.5, causal=True)
    True
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"name: must be the name of a rule, got {name!r}")
    if named := _BUILT_IN.get(name) or _registered.get(name):
        return named
    if _NUMBER.fullmatch(name):
        return _number_rule(float(name))
    if (call := _CALL.fullmatch(name)) and call["name"] in _FACTORIES:
        return _called(_FACTORIES[call["name"]], name, call["arguments"])
    from difflib import get_close_matches

    known = rules()
    close = get_close_matches(name.lower(), [*known, *_FACTORIES], n=1)
    hint = ""
    if close and close[0] not in known:
        hint = f"; {close[0]} needs a parameter: {close[0]}(...)"
    elif close:
        hint = f"; did you mean {close[0]!r}?"
    raise ArgumentError(
        f"scale: must be one of the names {', '.join(map(repr, known))}, one with parameters such as 'mup(64)', or a "
        f"number, got {name!r}{hint}"
    )


def _number_rule(number: float) -> ScaleRule:
    """The scale itself, as `attention_multiplier` has it, and 0 and negative numbers too."""
    factor = _number("scale", number)
    return ScaleRule(_text(factor), _text(factor), _Factor(_constant, (factor,)), variance=f"d_k {_text(factor)}^2")


def _called(make: Callable[..., ScaleRule], text: str, arguments: str) -> ScaleRule:
    parts = [part.strip() for part in arguments.split(",")] if arguments.strip() else []
    causal = parts[-1:] == ["causal"]
    numbers = parts[:-1] if causal else parts
    if not all(_NUMBER.fullmatch(part) for part in numbers):
        raise ArgumentError(f"scale: the parameters of {make.__name__} must be numbers, got {text!r}")
    values = [float(part) for part in numbers]
    # Layers and lengths are whole numbers, in the name too.
    values = [int(value) if value.is_integer() else value for value in values]
    try:
        return make(*values, **({"causal": True} if causal else {}))
    except TypeError:
        import inspect

        wanted = f"{make.__name__}({', '.join(inspect.signature(make).parameters)})"
        raise ArgumentError(f"scale: must be called as {wanted}, got {text!r}") from None
