"""All chapters, in the order of the argument."""

from rootdk.explorer.chapter import Chapter

from . import formula, gradients, growth, proof, sharpening

CHAPTERS: tuple[Chapter, ...] = (formula.CHAPTER, growth.CHAPTER, proof.CHAPTER, sharpening.CHAPTER, gradients.CHAPTER)
