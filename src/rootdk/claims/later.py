"""The claims that need training: listed, and not checked until a study adds their checks."""

from .ledger import LATER, PAPER, Claim

_STUDY = "comes with the training study"

CLAIMS = (
    Claim(
        16,
        "Without the scale learning slows or fails, the more so the larger d_k is.",
        LATER,
        _STUDY,
        title="learning slows without it",
    ),
    Claim(
        18,
        "Dividing by sqrt(d_k) works over a wide range of d_k.",
        LATER,
        _STUDY,
        title="works over a wide range of d_k",
    ),
    Claim(
        21,
        "Additive and dot-product attention do equally well for small d_k; for large d_k additive attention does "
        "better than dot-product attention without a scale.",
        f"{PAPER}, section 3.2.1, after Britz et al. 2017",
        _STUDY,
        title="additive against dot product",
    ),
    Claim(
        22,
        "The loss breaks when q and k are rescaled until logits reach a thousand to ten thousand.",
        "Wortsman et al. 2023 (arXiv 2309.14322)",
        _STUDY,
        title="loss breaks at logits of 1e3",
    ),
    Claim(
        23,
        "A collapse of the attention entropy goes with unstable training.",
        "Zhai et al. 2023 (arXiv 2303.06296)",
        _STUDY,
        title="entropy collapse and instability",
    ),
)
