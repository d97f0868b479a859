"""jax: layers of Flax (nnx and linen) and Equinox on rootdk, and what their attention does."""

import equinox
import jax
import jax.numpy as jnp
from flax import linen, nnx

from rootdk.jax import dot_product_attention, flax_attention

x = jax.random.normal(jax.random.key(0), (2, 32, 64))  # (batch, tokens, features)

# nnx: the layer's own attention_fn, and the same weights without it.
ours = nnx.MultiHeadAttention(4, 64, rngs=nnx.Rngs(0), decode=False, attention_fn=flax_attention)
theirs = nnx.MultiHeadAttention(4, 64, rngs=nnx.Rngs(0), decode=False)
print(f"nnx: largest difference {float(abs(ours(x) - theirs(x)).max()):.0e}")

# linen: every layer sows a Reading in place of n x n weights.
layer = linen.MultiHeadDotProductAttention(4, attention_fn=flax_attention)
weights = layer.init(jax.random.key(1), x)
_, sown = layer.apply(weights, x, sow_weights=True, mutable=["intermediates"])
(reading,) = sown["intermediates"]["attention_reading"]
print("linen: effective keys of each head", reading.by_head().median_effective_keys.round(1).tolist())


class Layer(equinox.Module):
    """One sequence, (tokens, features); jax.vmap is the batch."""

    project: equinox.nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        """Four heads of 16."""
        query, key, value = jnp.split(jax.vmap(self.project)(x).reshape(len(x), 12, 16), 3, axis=1)
        return dot_product_attention(query, key, value, is_causal=True).reshape(x.shape)


@equinox.filter_jit
@equinox.filter_value_and_grad
def loss(layer: Layer) -> jax.Array:
    """Compiled, batched and differentiated: one call of the kernel forward, one back."""
    return (jax.vmap(layer)(x) ** 2).mean()


value, gradient = loss(Layer(equinox.nn.Linear(64, 192, key=jax.random.key(2))))
print(f"equinox: loss {float(value):.3f}, gradient {float(abs(gradient.project.weight).max()):.0e}")
