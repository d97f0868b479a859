"""All chapters, in the order of the argument."""

from rootdk.explorer.chapter import Chapter

from . import formula

CHAPTERS: tuple[Chapter, ...] = (formula.CHAPTER,)
