"""run_checkpoint(): a transformers folder, loaded from safetensors and watched through one forward pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rootdk.errors import ArgumentError, RootdkError

from .report import Report
from .thresholds import Phase

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


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
) -> Report:
    """Load a model folder of transformers, run one text or so many random tokens through it, and judge what was read.

    text     goes through the tokenizer of the folder, and is cut to what the model takes
    tokens   how many random ones, from `seed`; exactly one of the two must be given

    Only safetensors are loaded, nothing is fetched, and no code that comes with the model runs.
    """
    folder = Path(path)
    if (text is None) == (tokens is None):
        raise ArgumentError("text: exactly one of text and tokens must be given")
    if not (folder / "config.json").is_file():
        raise ArgumentError(f"path: running a model needs a transformers folder with a config.json, {folder} is none")
    transformers, torch = _libraries()
    told = progress if progress is not None else lambda _name, _share: None
    told("loading", 0.0)
    model = _loaded(transformers, folder)
    if model.main_input_name != "input_ids":
        raise ArgumentError(
            f"path: only models of text can be run, {type(model).__name__} takes {model.main_input_name}; "
            "read_checkpoint reads its weights"
        )
    told("running", 0.4)
    given = _inputs(transformers, torch, folder, model.config, text, tokens, seed)
    if getattr(model.config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = given["input_ids"]
    from rootdk.audit.watching import watch

    with torch.no_grad(), watch(model) as seen:
        model(**given)
    told("judging", 0.9)
    return seen.report(phase)  # type: ignore[no-any-return]


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


def _loaded(transformers: Any, folder: Path) -> Any:
    """The class that the config names, in the types of the file; pickles and foreign code are refused."""
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **options)
        kind = getattr(transformers, (config.architectures or ["AutoModel"])[0], transformers.AutoModel)
        with _quiet(transformers.utils.logging):
            return kind.from_pretrained(folder, use_safetensors=True, dtype="auto", **options).eval()
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ArgumentError(f"path: transformers cannot load {folder}: {reason}") from error


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Without the library's own bar: there is one already, or none is wanted."""
    before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()


def _inputs(
    transformers: Any, torch: Any, folder: Path, config: Any, text: str | None, tokens: int | None, seed: int
) -> dict[str, Any]:
    limit = next((getattr(config, name) for name in _LENGTHS if isinstance(getattr(config, name, None), int)), None)
    if tokens is not None:
        if tokens < 2 or (limit is not None and tokens > limit):
            raise ArgumentError(
                f"tokens: must be from 2 to {limit if limit is not None else 'any number'}, got {tokens}"
            )
        draw = torch.Generator().manual_seed(seed)
        return {"input_ids": torch.randint(0, config.get_text_config().vocab_size, (1, tokens), generator=draw)}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ArgumentError(
            f"text: {folder} has no tokenizer that transformers can load; tokens= takes random ones"
        ) from error
    ids = tokenizer(text, truncation=limit is not None, max_length=limit, return_tensors="pt")["input_ids"]
    if ids.shape[-1] < 2:
        raise ArgumentError(f"text: must be at least 2 tokens long, got {ids.shape[-1]}")
    return {"input_ids": ids}
