"""All chapters, in the order of the argument."""

from rootdk.explorer.chapter import Chapter

from . import choosing, context, formats, formula, gradients, growth, not_dk, proof, sharpening

CHAPTERS: tuple[Chapter, ...] = tuple(
    module.CHAPTER for module in (formula, growth, proof, sharpening, gradients, not_dk, choosing, context, formats)
)
