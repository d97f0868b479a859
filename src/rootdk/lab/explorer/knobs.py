"""Knobs that several chapters share, so that they look and mean the same everywhere."""

from .chapter import Control

RULES = Control(
    "rule",
    "scale",
    "choice",
    "sqrt",
    choices=("sqrt", "none", "dk"),
    labels=("1/√d_k", "none", "1/d_k"),
    help="What every score is multiplied by before softmax.",
)
SEED = Control("seed", "seed", "int", 0, 0, 999, 1, help="Which random numbers are drawn.")


def d_k_knob(default: int, low: int = 4, high: int = 1024) -> Control:
    """Components of a query and a key."""
    return Control("d_k", "d_k", "int", default, low, high, 1, log=True, help="Components of a query and a key.")


def keys_knob(default: int, low: int = 2, high: int = 4096) -> Control:
    """Keys that a query sees."""
    return Control("keys", "keys n", "int", default, low, high, 1, log=True, help="Keys that the query sees.")


def rule_words(name: str, figure: bool = False) -> str:
    """A rule as a person reads it; for a figure, where the page does not set it, with plotly's own subscript.

    >>> rule_words("sqrt"), rule_words("dk", figure=True)
    ('1/√d_k', '1/d<sub>k</sub>')
    """
    words = RULES.labels[RULES.choices.index(name)]
    return words.replace("d_k", "d<sub>k</sub>") if figure else words
