"""The words for what softmax did: one name and one meaning for each quantity, in the terminal, the report and the docs.

A field of a Reading or of a prediction that is shown to a person is shown under one of these names.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """One quantity.

    meaning   what it is, in the letters of the page; p are the weights of a row, n is the number of its keys
    equal     its value for n equal weights, "" where it has none
    one_key   its value where one weight is 1
    """

    name: str
    meaning: str
    equal: str = ""
    one_key: str = ""


SCORE = Word("score", "q·k times the scale; softmax makes weights of the scores of a row. Also called logit")
SCORE_VARIANCE = Word("score variance", "variance of the scores inside a row")
ENTROPY_SHARE = Word("entropy share", "entropy -∑p ln p, divided by ln n, the largest it can be", "1", "0")
EFFECTIVE_KEYS = Word("effective keys", "1 / ∑p²: so many equal weights have the same ∑p²", "n", "1")
ROWS_OF_ONE_KEY = Word("rows of one key", "share of rows in which one key has over 99 % of the weight", "0", "1")
JACOBIAN_TRACE = Word(
    "Jacobian trace", "1 - ∑p²: how much the weights of a row can still change when its scores change", "1 - 1/n", "0"
)
RELATIVE_GRADIENT = Word(
    "relative gradient", "|∂o/∂q| / |o|: how much the output o changes when q changes, relative to its size"
)
WORDS = (
    SCORE, SCORE_VARIANCE, ENTROPY_SHARE, EFFECTIVE_KEYS, ROWS_OF_ONE_KEY, JACOBIAN_TRACE, RELATIVE_GRADIENT
)  # fmt: skip
