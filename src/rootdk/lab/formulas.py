"""The few formulas of the page, as MathML: browsers draw it themselves, with nothing to load."""


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
