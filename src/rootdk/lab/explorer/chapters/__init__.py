"""All chapters, in the order of the argument, and a tour through them."""

from rootdk.lab.explorer.chapter import Chapter
from rootdk.lab.training import shipped

from . import (
    aligned,
    answer,
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

_BEFORE = (answer, formula, growth, proof, sharpening, gradients, not_dk, choosing, aligned, context, formats)
_TRAINING = training.training_chapter(shipped())
CHAPTERS: tuple[Chapter, ...] = (*(chapter.CHAPTER for chapter in _BEFORE), _TRAINING, model.CHAPTER, claims.CHAPTER)

# The argument in ten steps of some twenty seconds: an address, and what to look at there. Each moves one knob at most,
# to a value that an exported page holds.
TOUR: tuple[tuple[str, str], ...] = (
    (
        "answer?d_k=4",
        "One query, 16 keys, three scales. At d_k = 4 the scale matters little: the bars have similar heights.",
    ),
    ("answer", "The same at d_k = 512. Without a scale, in orange, one key takes nearly all the weight. Why?"),
    ("formula?example=sixty-four", "A score is a dot product. These three, 14, 10 and 12, are divided by √64 = 8."),
    ("growth?d_k=16", "Random components of variance 1: the 16 products of q·k add up to a variance of 16."),
    (
        "growth?d_k=1024",
        "With 1024 products they spread 8 times as far. After 1/√d_k, in blue, the spread is the same as before.",
    ),
    ("proof?samples=16384", "Why exactly d_k: of the d × d terms of the square, d have the average 1, all others 0."),
    ("sharpening?rule=none", "Softmax turns spread into sharpness. Without the scale a few keys take all the weight."),
    (
        "gradients?rule=none",
        "Then the derivative vanishes: where one weight is 1, a change of a score changes nothing.",
    ),
    ("not-dk", "Dividing by d_k goes too far: all weights start nearly equal, and the gradient is smaller by √d_k."),
    ("choosing", "Of all powers of d_k only 1/2 gives a flat line. That is why attention divides by √d_k."),
)
