"""All chapters, in the order of the argument."""

from rootdk.lab.explorer.chapter import Chapter
from rootdk.lab.training import shipped

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
    training,
)

_BEFORE = (
    formula,
    growth,
    proof,
    sharpening,
    gradients,
    not_dk,
    choosing,
    context,
    formats,
)
_TRAINING = training.training_chapter(shipped())
CHAPTERS: tuple[Chapter, ...] = (*(one.CHAPTER for one in _BEFORE), _TRAINING, model.CHAPTER, claims.CHAPTER)
