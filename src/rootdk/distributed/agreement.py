"""Before work starts every rank says what it was asked to do, and all of them refuse if the answers differ.

Ranks that go on with other shapes or options would wait for messages that nobody sends, or, worse, receive blocks of
another size: gloo ends the process then, without a word. So the check comes first, costs one small message between any
two ranks, and gives the same error everywhere.
"""

import hashlib
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import ArgumentError, ArgumentTypeError, RootdkError
from ..scaling import ScaleRule
from .peers import Peers

# Shapes, and the axis along which they may differ: the number of rows of a shard.
_SHARDED = {"query": -2, "key": -2, "value": -2, "shard": 0}


def agree(peers: Peers, note: dict[str, Any], wrong: RootdkError | None = None) -> list[dict[str, Any]]:
    """The notes of all ranks, if they agree; else an error, the same on every rank.

    wrong   what this rank's own arguments are refused for: the others hear of it, and refuse too
    """
    notes = peers.meet(note if wrong is None else {"refused": type(wrong).__name__, "why": str(wrong)[:1500]})
    for rank, one in enumerate(notes):
        if "refused" in one:
            kind = ArgumentTypeError if one["refused"] == "ArgumentTypeError" else ArgumentError
            raise kind(one["why"] if peers.size == 1 else f"{one['why']} (on rank {rank})") from wrong
    for name in ("call", "number", *note):
        answers = [_shared(name, one.get(name)) for one in notes]
        if any(answer != answers[0] for answer in answers):
            raise ArgumentError(f"{name}: {_EXPECTED.get(name, 'must be the same on every rank')}, got {_who(answers)}")
    return notes


def digest(given: Any) -> Any:
    """An option as a note can carry it: numbers and names as they are, arrays by their shape and a hash.

    >>> digest(True), digest("dk"), digest(0.125)
    (True, 'dk', 0.125)
    >>> digest(np.array([3, 5]))
    'int64 (2,) #a9928084'
    """
    if given is None or isinstance(given, (bool, float)):
        return given
    if isinstance(given, (int, str)):
        return given if len(str(given)) <= 60 else _short(str(given))
    if isinstance(given, ScaleRule):
        # By what it does too: two rules may have one name, and other parameters.
        return _short(f"the rule {given.name} ({given.factor(64, 1024, np.arange(4)[:, None])!r})")
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = given.numpy() if given.dtype.itemsize != 2 else given.float().numpy()
    if isinstance(given, (np.ndarray, np.generic, list, tuple)):
        array = np.asarray(given)
        if array.dtype != object:
            content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:8]
            return f"{array.dtype} {array.shape} #{content}"
    return _short(repr(given))


def _short(text: str) -> str:
    """A note has little room: the beginning of a long text, and a hash of all of it."""
    return text if len(text) <= 60 else f"{text[:40]}... #{hashlib.sha256(text.encode()).hexdigest()[:8]}"


_EXPECTED = {
    "call": "every rank must make the same calls in the same order",
    "number": "every rank must have made the same number of calls",
    **dict.fromkeys(_SHARDED, "must have the same shape on every rank, but for its number of rows"),
}


def _shared(name: str, answer: Any) -> Any:
    if name in _SHARDED and isinstance(answer, list):
        answer = list(answer)
        answer[_SHARDED[name]] = "n"
    return answer


def _who(answers: list[Any]) -> str:
    """Each answer with the ranks that gave it, the most frequent first.

    >>> _who([True, True, False, True])
    'True on ranks 0, 1, 3 and False on rank 2'
    """
    ranks: dict[str, list[int]] = {}
    for rank, answer in enumerate(answers):
        text = "(" + ", ".join(map(str, answer)) + ")" if isinstance(answer, list) else repr(answer)
        ranks.setdefault(text, []).append(rank)
    ordered = sorted(ranks.items(), key=lambda item: (-len(item[1]), item[1]))
    return " and ".join(f"{text} on rank{'s' * (len(at) > 1)} {', '.join(map(str, at))}" for text, at in ordered)
