"""All chapters, in the order of the argument."""

from rootdk.explorer.chapter import Chapter

from . import formula, growth, proof

CHAPTERS: tuple[Chapter, ...] = (formula.CHAPTER, growth.CHAPTER, proof.CHAPTER)
