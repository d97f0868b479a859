"""rootdk for jax: jax's own signature, the same with a Reading, and Flax's.

    from rootdk.jax import dot_product_attention             jax.nn.dot_product_attention, on the CPU
    from rootdk.jax import measured_dot_product_attention    and a Reading of the same pass
    from rootdk.jax import flax_attention                    attention_fn of the layers of Flax, nnx and linen

rootdk.attention, measure, read and weights take arrays of jax with or without this import, under jit, grad, vmap and
shard_map as well.
"""

try:
    import jax as _jax
except ImportError as _error:
    from ..errors import JaxMissingError as _Missing

    raise _Missing("rootdk.jax") from _error

from .functional import dot_product_attention, flax_attention, measured_dot_product_attention

del _jax

__all__ = ["dot_product_attention", "flax_attention", "measured_dot_product_attention"]
