"""Grouped-query attention of one new position, an attention function that plugs into transformers under a name."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

DECODE_ATTENTION = "rollbook_decode"


def decode_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one new position per row, without repeating keys and values for the heads that share them.

    The query heads of a key head become positions: query [rows, key heads * n, 1, size] is seen as
    [rows, key heads, n, size] against key and value [rows, key heads, length, size]. Anything else (a prefill, a
    position bias) goes to transformers' own.
    """
    rows, n_heads, n_positions, size = query.shape
    is_plain = kwargs.get("position_bias") is None and kwargs.get("cache") is None
    if n_positions > 1 or not is_plain:
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output, None
    grouped = query.view(rows, key.shape[1], n_heads // key.shape[1], size)
    if query.is_cpu:
        attended = _attend_by_products(grouped, key, value, attention_mask, scaling or size**-0.5)
    else:
        attended = torch.nn.functional.scaled_dot_product_attention(
            grouped, key, value, attn_mask=attention_mask, scale=scaling
        )
    return attended.reshape(rows, 1, n_heads, -1), None


def _attend_by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Attention as two batched products, the first of which scales and masks the scores; softmax sums in float32.

    For the few positions of a group torch's fused kernel takes three times as long on a CPU.
    """
    rows, heads, n, _ = query.shape
    if mask is None:
        mask = query.new_zeros(1, 1, 1, 1)
    elif mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
    shift = mask.to(query.dtype).expand(rows, heads, *mask.shape[2:]).flatten(0, 1)
    scores = torch.baddbmm(shift, query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), alpha=scaling)
    return torch.bmm(scores.softmax(dim=-1), value.flatten(0, 1)).view(rows, heads, n, -1)


def use_decode_attention(model: Any) -> None:
    """Switch `model` to `decode_attention` where it runs torch's scaled dot-product attention now."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(DECODE_ATTENTION)


AttentionInterface.register(DECODE_ATTENTION, decode_attention)
AttentionMaskInterface.register(DECODE_ATTENTION, sdpa_mask)
