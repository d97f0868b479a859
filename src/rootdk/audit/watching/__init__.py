"""How a running torch model is watched: taps beside its attention calls, and readings of what went through them."""
