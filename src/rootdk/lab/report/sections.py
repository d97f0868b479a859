"""What the page says around the figures of each experiment. No number is written here: numbers come from results."""

from dataclasses import dataclass

from . import formulas


@dataclass(frozen=True, slots=True)
class Section:
    """Heading, a paragraph, and the formula that belongs to it."""

    heading: str
    text: str
    formula: str = ""


SECTIONS = {
    "variance": Section(
        "The variance of a score is d_k",
        "The square of a sum of d_k products has d_k squares, which average 1, and d_k (d_k − 1) cross terms, which "
        "average 0. That is exact, and it asks only that components are independent with mean 0 and variance 1: the "
        "law of the components does not matter.",
        formulas.SQUARE,
    ),
    "scores": Section(
        "So the scores of wide heads are wide",
        "Given the query, a row of scores is exactly Gaussian with the length of the query as its width, and that "
        "length is close to √d_k. Dividing by √d_k brings every d_k to the same width.",
        formulas.SCALED,
    ),
    "sharpness": Section(
        "What wide logits do to softmax",
        "Past a width of √(2 ln n) a few keys take all the weight, however many there are. The trace of the Jacobian "
        "goes down with it. Its norm does not simply vanish: it rises first, because a few weights that compete move "
        "much.",
        formulas.FREEZING,
    ),
    "gradient": Section(
        "What of the gradient gets through",
        "The gradient that arrives at the query relative to the output, and the Jacobian of softmax, taken from the "
        "operator by pulling back unit vectors. Without a scale the gradient is large in the mean and dead in many "
        "rows; with 1/d_k it is the factor in front that is small, not the Jacobian.",
        formulas.JACOBIAN,
    ),
    "rules": Section(
        "The scale rules side by side",
        "The same random queries and keys under each rule. This is the start of training; a trained model is another "
        "matter, and 1/d_k is in use where training is tuned for it.",
    ),
    "length": Section(
        "Longer rows",
        "With 1/√d_k the entropy stays a constant below ln n: a longer row looks more and more uniform. Without a "
        "scale it hardly grows at all. A rule with ln n in it sharpens longer rows, and by more than what would keep "
        "the share.",
    ),
    "formats": Section(
        "Number formats",
        "It is said that dividing by d_k makes scores too small to be stored well. A floating-point number has as many "
        "digits when it is small, down to the smallest numbers of the format: the relative error does not move.",
    ),
    "premises": Section(
        "When the premise is wrong",
        "Correlated components and a mean in the queries widen the rows, and 1/√d_k knows nothing of it. A mean in the "
        "keys moves a whole row, and softmax ignores that. Heavy tails change nothing as long as the variance is 1.",
    ),
}
