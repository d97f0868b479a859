"""The few formulas of the page, and its words for what softmax did.

Formulas are MathML: browsers draw it themselves, with nothing to load. Words: one name and one meaning for each
quantity, in the terminal, the report and the docs. A field of a Reading or of a prediction that is shown to a person is
shown under one of these names.
"""

from dataclasses import dataclass


def _math(inside: str) -> str:
    return f'<math display="block">{inside}</math>'


_DK = "<msub><mi>d</mi><mi>k</mi></msub>"
_ROOT = f"<msqrt>{_DK}</msqrt>"
_DOT = "<mo>⟨</mo><mi>q</mi><mo>,</mo><mi>k</mi><mo>⟩</mo>"

ATTENTION = _math(
    f"<mi>softmax</mi><mrow><mo>(</mo><mfrac><mrow><mi>Q</mi><msup><mi>K</mi><mo>⊤</mo></msup></mrow>{_ROOT}</mfrac>"
    f"<mo>)</mo></mrow><mi>V</mi>"
)
# Two lines, so that it fits a narrow screen.
SQUARE = _math(
    f"<mi>E</mi><msup><mrow>{_DOT}</mrow><mn>2</mn></msup><mo>=</mo>"
    f"<munder><mo>∑</mo><mrow><mi>i</mi><mo>,</mo><mi>j</mi></mrow></munder>"
    "<mi>E</mi><mo>[</mo><msub><mi>q</mi><mi>i</mi></msub><msub><mi>q</mi><mi>j</mi></msub><mo>]</mo>"
    "<mi>E</mi><mo>[</mo><msub><mi>k</mi><mi>i</mi></msub><msub><mi>k</mi><mi>j</mi></msub><mo>]</mo>"
) + _math(
    f"<mo>=</mo>{_DK}<mo>·</mo><mn>1</mn><mo>+</mo>{_DK}<mo>(</mo>{_DK}<mo>−</mo><mn>1</mn><mo>)</mo><mo>·</mo><mn>0</mn>"
    f"<mo>=</mo>{_DK}"
)
SCALED = _math(
    f"<mi>Var</mi><mrow><mo>(</mo><mfrac><mrow>{_DOT}</mrow><mi>c</mi></mfrac><mo>)</mo></mrow><mo>=</mo>"
    f"<mfrac>{_DK}<msup><mi>c</mi><mn>2</mn></msup></mfrac><mo>=</mo><mn>1</mn><mspace width='1em'/>"
    f"<mtext>for</mtext><mspace width='1em'/><mi>c</mi><mo>=</mo>{_ROOT}"
)
JACOBIAN = _math(
    "<mi>J</mi><mo>=</mo><mfrac><mrow><mo>∂</mo><mi>p</mi></mrow><mrow><mo>∂</mo><mi>z</mi></mrow></mfrac><mo>=</mo>"
    "<mi>diag</mi><mo>(</mo><mi>p</mi><mo>)</mo><mo>−</mo><mi>p</mi><msup><mi>p</mi><mo>⊤</mo></msup>"
    "<mspace width='1.5em'/><mi>tr</mi><mi>J</mi><mo>=</mo><mn>1</mn><mo>−</mo><mo>∑</mo>"
    "<msubsup><mi>p</mi><mi>i</mi><mn>2</mn></msubsup>"
)
FREEZING = _math(
    "<msub><mi>σ</mi><mi>c</mi></msub><mo>=</mo><msqrt><mrow><mn>2</mn><mi>ln</mi><mi>n</mi></mrow></msqrt>"
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


WORDS = (
    Word("score", "q·k times the scale; softmax makes weights of the scores of a row. Also called logit"),
    Word("score variance", "variance of the scores inside a row"),
    Word("entropy share", "entropy -∑p ln p, divided by ln n, the largest it can be", "1", "0"),
    Word("effective keys", "1 / ∑p²: so many equal weights have the same ∑p²", "n", "1"),
    Word("rows of one key", "share of rows in which one key has over 99 % of the weight", "0", "1"),
    Word(
        "Jacobian trace",
        "1 - ∑p²: how much the weights of a row can still change when its scores change",
        "1 - 1/n",
        "0",
    ),
    Word("relative gradient", "|∂o/∂q| / |o|: how much the output o changes when q changes, relative to its size"),
)
