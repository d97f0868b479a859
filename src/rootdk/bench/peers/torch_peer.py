"""torch: its fused CPU attention, forward alone and with its gradient."""

from typing import Any

from rootdk.bench.peers.peer import Peer
from rootdk.bench.shapes import Inputs
from rootdk.bench.timing import Call


def open_peer(threads: int) -> Peer:
    """Set torch's pool to the run's number of threads."""
    import torch

    torch.set_num_threads(threads)
    return Peer("torch", torch.__version__, prepare, prepare_backward)


def prepare(inputs: Inputs) -> Call:
    """Share the arrays' memory; no copy, no gradient."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    query, key, value = (torch.from_numpy(array) for array in (inputs.query, inputs.key, inputs.value))
    causal, grouped = inputs.shape.causal, inputs.shape.heads != inputs.shape.kv_heads

    def call() -> Any:
        with torch.no_grad():
            return scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)

    return call


def prepare_backward(inputs: Inputs) -> Call:
    """Forward and the gradient to query, key and value in one call."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    leaves = [torch.from_numpy(array).requires_grad_() for array in (inputs.query, inputs.key, inputs.value)]
    d_out = torch.from_numpy(inputs.d_out)
    causal, grouped = inputs.shape.causal, inputs.shape.heads != inputs.shape.kv_heads

    def call() -> Any:
        out = scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=grouped)
        return torch.autograd.grad(out, leaves, d_out)

    return call


def prepare_by_hand(inputs: Inputs) -> Call:
    """What `rootdk.measure` returns, as a torch user would get it: all scores in memory, then the sums over them."""
    import torch

    group = inputs.shape.heads // inputs.shape.kv_heads
    query, key, value = (torch.from_numpy(array) for array in (inputs.query, inputs.key, inputs.value))
    key, value = (array.repeat_interleave(group, dim=1) for array in (key, value))
    hidden = torch.ones(inputs.shape.n, inputs.shape.n, dtype=torch.bool).triu(1) if inputs.shape.causal else None

    def call() -> Any:
        with torch.no_grad():
            scores = query @ key.transpose(-1, -2) / inputs.shape.d**0.5
            if hidden is None:
                low, mean, variance = scores.amin(-1), scores.mean(-1), scores.var(-1, correction=0)
            else:
                seen = (~hidden).sum(-1)
                low = scores.masked_fill(hidden, torch.inf).amin(-1)
                mean = scores.masked_fill(hidden, 0).sum(-1) / seen
                variance = (scores - mean[..., None]).masked_fill(hidden, 0).square().sum(-1) / seen
                scores = scores.masked_fill(hidden, -torch.inf)
            log_sum_exp = scores.logsumexp(-1)
            weights = (scores - log_sum_exp[..., None]).exp()
            entropy = log_sum_exp - (weights * scores.clamp(min=-1e30)).sum(-1)
            squared = weights * weights
            cubed = squared * weights
            out = weights @ value
            return out, (log_sum_exp, scores.amax(-1), low, mean, variance, entropy, squared.sum(-1), cubed.sum(-1))

    return call
