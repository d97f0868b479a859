"""MultiHeadAttention: nn.MultiheadAttention with the same weights, and the options of rootdk."""

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import attention, measure
from ..backends import torch as adapter
from ..backends.torch.second import dropped, weights
from ..checks import count
from ..errors import ArgumentError
from ..options import Learnable, Options, resolve
from ..reading import Reading
from ..scaling import ScaleRule


class MultiHeadAttention(nn.MultiheadAttention):  # type: ignore[misc]
    """nn.MultiheadAttention on rootdk: the same arguments and the same state dict, so that checkpoints go both ways.

    What it adds, all keyword-only:

    kv_heads     fewer key heads than query heads: embed_dim // num_heads * kv_heads numbers per key and per value, kept
                 as separate q, k and v projections. None is num_heads.
    d_k          numbers per head in a query and in a key, which may be others than in a value; kept as separate weights
                 as well. None is embed_dim // num_heads.
    scale        as in rootdk.attention: None, a number, a name, a rule of rootdk.scaling
    softcap      as in rootdk.attention
    qk_norm      True normalises every head's queries and keys to root mean square 1 (nn.RMSNorm), with a learned gain:
                 q_norm.weight and k_norm.weight
    measure      True keeps the Reading of the last forward pass in `last_reading`

    need_weights=True (the default, as in torch) computes the weights beside the output in plain torch: n x n numbers.
    Pass need_weights=False unless they are wanted.

    >>> import torch, rootdk.torch
    >>> theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    >>> ours = rootdk.torch.MultiHeadAttention(16, 4, batch_first=True, measure=True)
    >>> ours.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> x = torch.randn(2, 5, 16)
    >>> torch.allclose(ours(x, x, x)[0], theirs(x, x, x)[0], atol=1e-5)
    True
    >>> ours.last_reading.shape
    (2, 4, 5)
    """

    in_proj_bias: Any
    bias_k: Any
    bias_v: Any

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        kv_heads: int | None = None,
        d_k: int | None = None,
        scale: float | str | ScaleRule | None = None,
        softcap: float | None = None,
        qk_norm: bool = False,
        measure: bool = False,
    ) -> None:
        embed_dim, num_heads = count("embed_dim", embed_dim), count("num_heads", num_heads)
        if embed_dim % num_heads:
            raise ArgumentError(f"num_heads: must divide embed_dim = {embed_dim}, got {num_heads}")
        kdim = None if kdim is None else count("kdim", kdim)
        vdim = None if vdim is None else count("vdim", vdim)
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        self.kv_heads = num_heads if kv_heads is None else count("kv_heads", kv_heads)
        if num_heads % self.kv_heads:
            raise ArgumentError(f"kv_heads: must divide num_heads = {num_heads}, got {kv_heads}")
        self.d_k = self.head_dim if d_k is None else count("d_k", d_k)
        self.scale, self.softcap, self.measure = scale, softcap, measure
        self.last_reading: Reading[Tensor] | None = None
        factory_kwargs = {"device": device, "dtype": dtype}
        self.q_norm = nn.RMSNorm(self.d_k, **factory_kwargs) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.d_k, **factory_kwargs) if qk_norm else None
        if self.kv_heads != num_heads or self.d_k != self.head_dim:
            self._project_apart(factory_kwargs)

    @property
    def _widths(self) -> list[int]:
        """How many numbers the projections give to all queries, keys and values at one place."""
        return [self.d_k * self.num_heads, self.d_k * self.kv_heads, self.head_dim * self.kv_heads]

    def _project_apart(self, factory_kwargs: dict[str, Any]) -> None:
        """One weight each for q, k and v, as nn.MultiheadAttention has them where their inputs differ in width."""
        wide, narrow, values = self._widths
        self._qkv_same_embed_dim = False
        self.register_parameter("in_proj_weight", None)
        self.q_proj_weight = nn.Parameter(torch.empty((wide, self.embed_dim), **factory_kwargs))
        self.k_proj_weight = nn.Parameter(torch.empty((narrow, self.kdim), **factory_kwargs))
        self.v_proj_weight = nn.Parameter(torch.empty((values, self.vdim), **factory_kwargs))
        if self.in_proj_bias is not None:
            self.in_proj_bias = nn.Parameter(torch.empty(sum(self._widths), **factory_kwargs))
        if self.bias_k is not None:
            self.bias_k = nn.Parameter(torch.empty((1, 1, narrow), **factory_kwargs))
            self.bias_v = nn.Parameter(torch.empty((1, 1, values), **factory_kwargs))
        self._reset_parameters()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The output and the weights (None without need_weights), with nn.MultiheadAttention's shapes and masks.

        A bool mask hides where it is True; a float mask is added. is_causal says that attn_mask is the causal one,
        which must be given as well; it is then not read.
        """
        if is_causal and attn_mask is None:
            raise RuntimeError("attn_mask: must be the causal mask when is_causal=True, got None")
        adapter.refuse_shapeless(query=query, key=key, value=value)
        batched = query.dim() == 3
        if not batched:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))

        q, k, v = self._heads(query, key, value)
        mask, bias = self._masks(attn_mask if not self._reads_causal(is_causal) else None, key_padding_mask, q, k)
        options: dict[str, Any] = {"scale": self.scale, "softcap": self.softcap, "mask": mask, "bias": bias}
        if self._reads_causal(is_causal):
            options |= {"causal": True, "query_offset": 0}
        if self.training and self.dropout > 0:
            seed = torch.randint(2**63 - 1, (1,), device="cpu")
            # A number that a compiler cannot know stays a tensor.
            options |= {"dropout": self.dropout, "seed": seed if adapter.traced(q, k, v, bias) else int(seed)}
        if self.measure:
            out, self.last_reading = measure(q, k, v, **options)
        else:
            out = attention(q, k, v, **options)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        shown = self._weights(q, k, options, average_attn_weights) if need_weights else None

        if not batched:
            return out[0], None if shown is None else shown[0]
        return (out if self.batch_first else out.transpose(0, 1)), shown

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projected, with the keys that bias_k and add_zero_attn append: (batch, heads, n, head_dim) each."""
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        widths = self._widths
        biases: Any = (None, None, None)
        if self.in_proj_bias is not None:
            biases = self.in_proj_bias.split(widths)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.split(widths)
        if query is key is value and self.in_proj_weight is not None:
            # One product for all three, as torch does it.
            together = nn.functional.linear(query, self.in_proj_weight, self.in_proj_bias)
            parts = together.split(widths, dim=-1)
        else:
            inputs = (query, key, value)
            parts = tuple(nn.functional.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True))
        q, k, v = parts
        batch = q.shape[0]
        if self.bias_k is not None:
            k = torch.cat([k, self.bias_k.expand(batch, -1, -1)], dim=1)
            v = torch.cat([v, self.bias_v.expand(batch, -1, -1)], dim=1)
        heads = (self.num_heads, self.kv_heads, self.kv_heads)
        q, k, v = (t.unflatten(-1, (count, -1)).transpose(1, 2) for t, count in zip((q, k, v), heads, strict=True))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.add_zero_attn:
            k, v = (torch.cat([t, t.new_zeros(batch, self.kv_heads, 1, t.shape[-1])], dim=2) for t in (k, v))
        return q, k, v

    def _reads_causal(self, is_causal: bool) -> bool:
        """Whether the hint replaces the mask; appended keys lie beyond the diagonal, so with them the mask is read."""
        return is_causal and self.bias_k is None and not self.add_zero_attn

    def _masks(self, attn_mask: Any, padding: Any, q: Tensor, k: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """One bool mask, True keeps, and one bias; appended keys are always visible."""
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unflatten(0, (q.shape[0], self.num_heads))
        mask = bias = None
        for given in (attn_mask, None if padding is None else padding[:, None, None, :]):
            if given is None:
                continue
            appended = k.shape[2] - given.shape[-1]
            if given.dtype == torch.bool:
                visible = nn.functional.pad(~given, (0, appended), value=True)
                mask = visible if mask is None else mask & visible
            elif given.is_floating_point():
                added = nn.functional.pad(given, (0, appended))
                bias = added if bias is None else bias + added
            else:
                raise RuntimeError(f"attn_mask and key_padding_mask: must be bool or floating point, got {given.dtype}")
        return mask, bias

    def _weights(self, q: Tensor, k: Tensor, options: dict[str, Any], average: bool) -> Tensor:
        seed = options.get("seed")
        call_options = Options(**options)._replace(seed=None if seed is None else int(seed))
        problem, _ = resolve(adapter, q, k, k, call_options)
        shown = dropped(problem, weights(problem, Learnable(q, k, bias=call_options.bias))).to(q.dtype)
        return shown.mean(dim=1) if average else shown
