"""What makes decoding fast on a model's own forward: a preallocated key-value cache, and grouped-query attention.

Both plug into transformers: a cache layer class, and an attention function registered under a name.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

DECODE_ATTENTION = "rollbook_decode"


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped here
    """Keys and values [rows, heads, length, head size] in buffers that hold `capacity` positions from the start.

    The cache of transformers grows by concatenation, which copies all of it for every token.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0
        self.buffers: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the new positions; return all positions so far, as views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.buffers = [
                states.new_empty((*states.shape[:2], self.capacity, states.shape[3]))
                for states in (key_states, value_states)
            ]
        end = self.length + key_states.shape[2]
        if end > self.capacity:  # a slice beyond the buffer is empty, and takes a position without a word
            raise IndexError(f"{end} positions in a cache for {self.capacity}")
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, self.length : end] = states
        self.length = end
        return self._show()

    def get_seq_length(self) -> int:
        """Positions filled so far."""
        return self.length

    def reorder_cache(self, indices: torch.Tensor) -> None:
        """Make the rows those at `indices`; rows that stay where they are, are not copied."""
        n_rows = len(indices)
        if n_rows <= self.buffers[0].shape[0]:
            moved = (indices != torch.arange(n_rows, device=indices.device)).nonzero()[:, 0]
            for buffer in self.buffers:
                buffer[moved, :, : self.length] = buffer[indices[moved], :, : self.length]
            self.buffers = [buffer[:n_rows] for buffer in self.buffers]
        else:
            grown = [buffer.new_empty((n_rows, *buffer.shape[1:])) for buffer in self.buffers]
            for new, old in zip(grown, self.buffers, strict=True):
                new[:, :, : self.length] = old[indices, :, : self.length]
            self.buffers = grown
        self._show()

    def _show(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = (buffer[:, :, : self.length] for buffer in self.buffers)
        return self.keys, self.values


def make_cache(config: Any, capacity: int) -> DynamicCache:
    """A cache for `capacity` positions: preallocated for layers of full attention, transformers' own for others."""
    cache = DynamicCache(config=config)
    cache.layers = [PreallocatedLayer(capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


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
    attended = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    return attended.reshape(rows, 1, n_heads, -1), None


def use_decode_attention(model: Any) -> None:
    """Switch `model` to `decode_attention` where it runs torch's scaled dot-product attention now."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(DECODE_ATTENTION)


AttentionInterface.register(DECODE_ATTENTION, decode_attention)
AttentionMaskInterface.register(DECODE_ATTENTION, sdpa_mask)
