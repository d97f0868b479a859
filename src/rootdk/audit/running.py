"""Audits of models that are run here: a transformers folder, and a small model that is part of the package.

run_checkpoint() loads the folder from safetensors and watches one forward pass. demonstrate() shows without torch what
an audit finds: several scale rules get the same blocks of attention with the same random weights, of variance one over
their inputs, on the same random tokens; so a difference between two of them comes from the rule.
"""

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk import scaling
from rootdk.attention import measure
from rootdk.errors import ArgumentError, RootdkError
from rootdk.files import kind_of, shown_text

from .config import Config
from .formats import find_tensors, weights_in
from .health import findings_of, heads_of
from .law import Law, row_variance
from .layer import LayerReading, baseline
from .limits import LARGEST_LENGTH, MOST_GROWTH, MOST_LAYERS, SMALL_MODEL, came
from .result import Audit, LayerAudit, Phase, worst_first
from .watching import watch

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
# Fields of a config for the number of modules, and those for their widths: recognised by parts of their names, since
# every family has its own. A length is not among the widths: with rotary embeddings no weight has that size.
_MODULES = re.compile("layers?$|_layers?_|experts?$|blocks$|depth")
_WIDTHS = re.compile("size|dim|head|embd|inner|bucket|label|vocab|hidden|channel|width|rank|d_model|d_ff|state|num")
_NO_WIDTHS = re.compile("position|length|len$|window|token|theta|chunk|_id$|_ids$")
_FEW, _LEAST_WIDTH = 256, 2**16


class TransformersMissingError(RootdkError, ImportError):
    """Running a model needs torch and transformers, which are extras."""


def run_checkpoint(
    path: str | Path,
    *,
    text: str | None = None,
    tokens: int | None = None,
    seed: int = 0,
    phase: Phase = "any",
    progress: Callable[[str, float], None] | None = None,
) -> Audit:
    """Load a model folder of transformers, run one text or random tokens through it, and judge what was read.

    text     goes through the tokenizer of the folder, and is cut to the longest input of the model
    tokens   how many random tokens, from `seed`; exactly one of text and tokens must be given

    Only safetensors are loaded, nothing is fetched, and no code that comes with the model runs.
    """
    folder = Path(path)
    if (text is None) == (tokens is None):
        raise ArgumentError("text: exactly one of text and tokens must be given")
    if kind_of(folder / "config.json") != "file":
        raise ArgumentError(
            f"path: running a model needs a transformers folder with a config.json, {shown_text(folder)} is none"
        )
    file = weights_in(folder).name
    if ".safetensors" not in file:
        raise ArgumentError(
            f"path: only safetensors are run, {shown_text(file)} is read as weights alone; write them once with "
            "model.save_pretrained(folder)"
        )
    most = _check_sizes(folder)
    transformers, torch = _libraries()
    report = progress or (lambda _name, _share: None)
    report("loading", 0.0)
    with _quiet(transformers.utils.logging):
        model = _loaded(transformers, torch, folder, most)
        if model.main_input_name != "input_ids":
            raise ArgumentError(
                f"path: only models of text can be run, {type(model).__name__} takes {model.main_input_name}; "
                "read_checkpoint reads its weights"
            )
        report("running", 0.4)
        inputs = _inputs(transformers, torch, folder, model.config, text, tokens, seed)
        if getattr(model.config, "is_encoder_decoder", False):
            inputs["decoder_input_ids"] = inputs["input_ids"]
        with torch.no_grad(), watch(model) as watched, _one_line(f"transformers cannot run {shown_text(folder)}"):
            model(**inputs)
    report("judging", 0.9)
    return watched.report(phase)


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise TransformersMissingError(
            f"run_checkpoint: needs torch and transformers, {error.name} is not installed; get them with: "
            "pip install 'rootdk[audit,torch]'"
        ) from error
    return transformers, torch


def _check_sizes(folder: Path) -> float:
    """How many numbers the model may hold; an error if its config asks for more than its weights have.

    A config can ask for any number of layers and any vocabulary, and a library that trusts it builds them. Anything
    larger than the weights need not be built. Code is refused too: an implementation of attention can be the name of a
    repository, from which it would be fetched and run.
    """
    config, tensors = Config.beside(folder).fields, find_tensors(folder)
    shapes = [tensors.shape(name) for name in tensors]
    largest = max((side for shape in shapes for side in shape), default=0)
    for place, key, value in config.leaves():
        if isinstance(value, str) and key.endswith("_implementation") and not value.replace("_", "").isalnum():
            raise ArgumentError(f"path: config.json: {shown_text(place)} must name no code to fetch, got {came(value)}")
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) <= _FEW:
            continue
        most = LARGEST_LENGTH
        if _MODULES.search(key):
            most = min(max(len(shapes), _FEW), MOST_LAYERS)
        elif _WIDTHS.search(key) and not _NO_WIDTHS.search(key):
            most = max(largest, len(shapes), _LEAST_WIDTH)
        if abs(value) > most:
            raise ArgumentError(
                f"path: config.json: {shown_text(place)} must be at most {most}, as its weights have "
                f"{len(shapes)} tensors and no side above {largest}, got {came(value)}"
            )
    return MOST_GROWTH * sum(math.prod(shape) for shape in shapes) + SMALL_MODEL


def _loaded(transformers: Any, torch: Any, folder: Path, most: float) -> Any:
    """The class that the config names, in the types of the file; pickles and foreign code are refused."""
    options = {"local_files_only": True, "trust_remote_code": False}
    with _one_line(f"transformers cannot load {shown_text(folder)}"):
        config = transformers.AutoConfig.from_pretrained(folder, **options)
        # The class that the config names, if it is one of a model; a config may name anything.
        named = config.architectures[0] if isinstance(config.architectures, list) and config.architectures else None
        kind: Any = getattr(transformers, named, None) if isinstance(named, str) else None
        if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
            kind = transformers.AutoModel
        with torch.device("meta"):  # shapes alone
            empty = kind.from_config(config) if kind is transformers.AutoModel else kind(config)
        size = sum(tensor.numel() for tensor in (*empty.parameters(), *empty.buffers()))
        if size > most:
            raise ArgumentError(f"path: config.json asks for a model of {size} numbers, its weights allow {most:.0f}")
        return kind.from_pretrained(folder, use_safetensors=True, dtype="auto", **options).eval()


@contextmanager
def _one_line(message: str) -> Iterator[None]:
    """Whatever another library raises about a file, as one line."""
    try:
        yield
    except RootdkError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ArgumentError(f"path: {message}: {shown_text(lines[0], 400)}") from error


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Without the library's own progress bar, and without its messages, which may quote files."""
    before, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if before:
            logging.enable_progress_bar()


def _inputs(
    transformers: Any, torch: Any, folder: Path, config: Any, text: str | None, tokens: int | None, seed: int
) -> dict[str, Any]:
    limit = next((getattr(config, name) for name in _LENGTHS if isinstance(getattr(config, name, None), int)), None)
    if tokens is not None:
        if tokens < 2 or (limit is not None and tokens > limit):
            most = "any number" if limit is None else limit
            raise ArgumentError(f"tokens: must be from 2 to {most}, got {tokens}")
        draw = torch.Generator().manual_seed(seed)
        return {"input_ids": torch.randint(0, config.get_text_config().vocab_size, (1, tokens), generator=draw)}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a library raises about a file
        raise ArgumentError(
            f"text: {shown_text(folder)} has no tokenizer that transformers can load; tokens= takes random ones"
        ) from error
    with _one_line(f"the tokenizer of {shown_text(folder)} cannot read the text"):
        ids = tokenizer(text, truncation=limit is not None, max_length=limit, return_tensors="pt")["input_ids"]
    if ids.shape[-1] < 2:
        raise ArgumentError(f"text: must be at least 2 tokens long, got {ids.shape[-1]}")
    return {"input_ids": ids}


RULES = ("none", "sqrt", "dk")
LAYERS, HEADS, D_K, TOKENS = 3, 8, 64, 256
_WIDTH = HEADS * D_K
Floats = NDArray[np.float32]


def demonstrate(
    rules: Sequence[str] = RULES, seed: int = 0, progress: Callable[[str, float], None] | None = None
) -> Audit:
    """Audit the model under each of the rules; layers are named rule.layers.number.attention.

    >>> report = demonstrate(["none", "sqrt"])
    >>> report.verdict, report.verdict_on("sqrt.layers.0.attention")
    ('critical', 'healthy')
    """
    layers, findings = [], []
    for number, rule in enumerate(rules):
        draw = np.random.default_rng(seed)
        tokens = draw.standard_normal((TOKENS, _WIDTH), np.float32)
        for layer in range(LAYERS):
            name = f"{rule}.layers.{layer}.attention"
            if progress is not None:
                progress(name, (number * LAYERS + layer) / (len(rules) * LAYERS))
            reading, predicted, out = _attend(draw, tokens, name, scaling.rule(rule))
            tokens = tokens + out
            findings += [  # no model's weights can be clipped here: only the scale can change
                replace(finding, remedy=finding.remedy.partition(", or make W_q")[0])
                for finding in findings_of(reading, "init")
            ]
            heads = tuple(
                head | {"predicted_deviation": deviation}
                for head, deviation in zip(heads_of(reading), predicted, strict=True)
            )
            facts = {fact: getattr(reading, fact) for fact in ("scale", "d_k", "keys", "n_query", "n_key")}
            layers.append(LayerAudit(name, heads, baseline(reading), facts))
    about = f"demonstration, one small untrained model under the scales {', '.join(rules)}"
    return Audit(tuple(layers), worst_first(findings), "init", {"model_type": about})


def _attend(
    draw: np.random.Generator, tokens: Floats, name: str, rule: scaling.ScaleRule
) -> tuple[LayerReading, list[float], Floats]:
    """One block: norm, projections, causal attention that is measured, projection back."""
    query, key, value, back = draw.standard_normal((4, _WIDTH, _WIDTH), np.float32) / np.float32(np.sqrt(_WIDTH))
    normed = tokens / np.sqrt(np.mean(tokens**2, axis=-1, keepdims=True))
    projected = ((normed @ weight).reshape(TOKENS, HEADS, D_K) for weight in (query, key, value))
    q, k, v = (np.ascontiguousarray(rows.swapaxes(0, 1)) for rows in projected)
    scale = float(rule.factor(D_K, TOKENS, TOKENS - 1))
    out, reading = measure(q, k, v, causal=True, scale=scale)
    first_logit = scale * np.einsum("hnd,hd->hn", q, k[:, 0])
    layer = LayerReading(
        name, 0, reading, reading, np.exp(first_logit - reading.log_sum_exp), "demonstration", "float32",
        d_k=D_K, kv_heads=HEADS, n_query=TOKENS, n_key=TOKENS, scale=scale, scale_given=scale,
    )  # fmt: skip
    predicted = [scale * row_variance(a, b) ** 0.5 for a, b in zip(_laws(query), _laws(key), strict=True)]
    return layer, predicted, out.swapaxes(0, 1).reshape(TOKENS, _WIDTH) @ back


def _laws(weight: Any) -> list[Law]:
    """The laws of the queries or keys that these weights make, head by head."""
    return [Law(np.zeros(D_K), head.T @ head) for head in np.split(weight.astype(np.float64), HEADS, axis=1)]
