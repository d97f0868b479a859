"""The laboratory: what the scale does, computed, measured, trained and shown.

checks           experiments and claims: what theory predicts beside what was measured, with a verdict
training         training runs: as plain data, and what makes them
report           results as one HTML page that opens offline
proof            why the variance is d_k, step by step: `rootdk prove`
recommendation   theory and advice for one setting: `rootdk predict`
first_look       several scales on the same random q and k: `rootdk look`
drawing, formulas, palette.css   what report, explorer and experiments draw with
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from . import checks, first_look, proof, recommendation, report, training

__all__ = ["checks", "first_look", "proof", "recommendation", "report", "training"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> _Any:
        """Modules are loaded at first use, like those of rootdk."""
        if name in __all__:
            return _import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
