"""The few formulas of the page, and its words for what softmax did.

Formulas are MathML: browsers draw it themselves, with nothing to load. Words: one name and one meaning for each
quantity, in the terminal, the report and the docs. A field of a Reading or of a prediction that is shown to a person is
shown under one of these names.
"""

from dataclasses import dataclass


def _math(inside: str) -> str:
    return f'<math display="block">{inside}</math>'


def _mi(name: str) -> str:
    return f"<mi>{name}</mi>"


def _mo(sign: str) -> str:
    return f"<mo>{sign}</mo>"


_DK = "<msub><mi>d</mi><mi>k</mi></msub>"
_ROOT = f"<msqrt>{_DK}</msqrt>"
_DOT = f"{_mo('⟨')}{_mi('q')}{_mo(',')}{_mi('k')}{_mo('⟩')}"

ATTENTION = _math(
    f"<mi>softmax</mi><mrow>{_mo('(')}<mfrac><mrow>{_mi('Q')}<msup>{_mi('K')}<mo>⊤</mo></msup></mrow>{_ROOT}</mfrac>"
    f"{_mo(')')}</mrow>{_mi('V')}"
)
# Two lines, so that it fits a narrow screen.
SQUARE = _math(
    f"<mi>E</mi><msup><mrow>{_DOT}</mrow><mn>2</mn></msup>{_mo('=')}"
    f"<munder><mo>∑</mo><mrow><mi>i</mi>{_mo(',')}<mi>j</mi></mrow></munder>"
    "<mi>E</mi><mo>[</mo><msub><mi>q</mi><mi>i</mi></msub><msub><mi>q</mi><mi>j</mi></msub><mo>]</mo>"
    "<mi>E</mi><mo>[</mo><msub><mi>k</mi><mi>i</mi></msub><msub><mi>k</mi><mi>j</mi></msub><mo>]</mo>"
) + _math(
    f"{_mo('=')}{_DK}{_mo('·')}<mn>1</mn>{_mo('+')}{_DK}{_mo('(')}{_DK}{_mo('−')}<mn>1</mn>{_mo(')')}{_mo('·')}<mn>0</mn>"
    f"{_mo('=')}{_DK}"
)
SCALED = _math(
    f"<mi>Var</mi><mrow>{_mo('(')}<mfrac><mrow>{_DOT}</mrow><mi>c</mi></mfrac>{_mo(')')}</mrow>{_mo('=')}"
    f"<mfrac>{_DK}<msup><mi>c</mi><mn>2</mn></msup></mfrac>{_mo('=')}<mn>1</mn><mspace width='1em'/>"
    f"<mtext>for</mtext><mspace width='1em'/><mi>c</mi>{_mo('=')}{_ROOT}"
)
JACOBIAN = _math(
    f"<mi>J</mi>{_mo('=')}<mfrac><mrow><mo>∂</mo><mi>p</mi></mrow><mrow><mo>∂</mo><mi>z</mi></mrow></mfrac>{_mo('=')}"
    f"<mi>diag</mi>{_mo('(')}<mi>p</mi>{_mo(')')}{_mo('−')}<mi>p</mi><msup><mi>p</mi><mo>⊤</mo></msup>"
    f"<mspace width='1.5em'/><mi>tr</mi><mi>J</mi>{_mo('=')}<mn>1</mn>{_mo('−')}<mo>∑</mo>"
    "<msubsup><mi>p</mi><mi>i</mi><mn>2</mn></msubsup>"
)
FREEZING = _math(
    f"<msub><mi>σ</mi><mi>c</mi></msub>{_mo('=')}<msqrt><mrow><mn>2</mn><mi>ln</mi><mi>n</mi></mrow></msqrt>"
)


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
