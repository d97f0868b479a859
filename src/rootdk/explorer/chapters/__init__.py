"""All chapters, in the order of the argument."""

from rootdk.explorer.chapter import Chapter

from . import (
    choosing,
    claims,
    context,
    formats,
    formula,
    gradients,
    growth,
    model,
    not_dk,
    proof,
    sharpening,
)

_MODULES = (
    formula,
    growth,
    proof,
    sharpening,
    gradients,
    not_dk,
    choosing,
    context,
    formats,
    model,
    claims,
)
CHAPTERS: tuple[Chapter, ...] = tuple(module.CHAPTER for module in _MODULES)
