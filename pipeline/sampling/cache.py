"""A key-value cache in buffers that have room for some positions more, whose rows come and go."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

STEP = 64
"""Positions by which buffers grow."""


class SteppedLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped here
    """Keys and values [rows, heads, capacity, head size]: `length` positions, and 0 behind them up to the capacity.

    The cache of transformers grows by concatenation, which copies all of it for every token. Here that happens every
    `STEP` tokens. In a step, which has one new position, the whole buffers are shown, for the mask to leave out what is
    behind the length: products of tensors without gaps are several times as fast.
    """

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    @property
    def capacity(self) -> int:
        """Positions that the buffers have room for."""
        return self.keys.shape[2] if self.is_initialized else 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the new positions; return all so far and, for a step, the room behind them too."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = (states[:, :, :0] for states in (key_states, value_states))
        shown, _ = self.get_mask_sizes(key_states.shape[2])
        end = self.length + key_states.shape[2]
        if end > self.capacity:
            self.keys, self.values = (_grown(buffer, self.length, end) for buffer in (self.keys, self.values))
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            buffer[:, :, self.length : end] = states
        self.length = end
        return self.keys[:, :, :shown], self.values[:, :, :shown]

    def get_seq_length(self) -> int:
        """Positions filled so far."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Positions that `update` will show, and the first of them.

        The very first position is shown alone: transformers leaves out the mask of a single one that comes first.
        """
        length = self.length + query_length
        is_step = query_length == 1 and self.length > 0
        return (_stepped(length) if is_step else length), 0

    def reorder_cache(self, indices: torch.Tensor) -> None:
        """Make the rows those at `indices`; rows that stay where they are, are not copied."""
        n_rows = len(indices)
        if n_rows > self.keys.shape[0]:
            self.keys, self.values = self.keys[indices], self.values[indices]
            return
        moved = (indices != torch.arange(n_rows, device=indices.device)).nonzero()[:, 0]
        for buffer in (self.keys, self.values):
            buffer[moved, :, : self.length] = buffer[indices[moved], :, : self.length]
        self.keys, self.values = self.keys[:n_rows], self.values[:n_rows]

    def join(self, other: SteppedLayer, n_cut: int) -> SteppedLayer:
        """Own rows without their first `n_cut` positions, then those of `other`; both end at the same position.

        What is before the shorter ones is 0: a mask keeps out no NaN.
        """
        joined = SteppedLayer()
        joined.lazy_initialization(self.keys, self.values)
        joined.length = max(self.length - n_cut, other.length)
        joined.keys, joined.values = (
            _joined(mine[:, :, n_cut : self.length], theirs[:, :, : other.length], joined.length)
            for mine, theirs in ((self.keys, other.keys), (self.values, other.values))
        )
        return joined


def _stepped(length: int) -> int:
    return -(-length // STEP) * STEP


def _grown(buffer: torch.Tensor, length: int, needed: int) -> torch.Tensor:
    """A larger buffer, for at least `needed` positions, with the first `length` of `buffer`."""
    grown = buffer.new_zeros((*buffer.shape[:2], _stepped(needed), buffer.shape[3]))
    grown[:, :, :length] = buffer[:, :, :length]
    return grown


def _joined(first: torch.Tensor, second: torch.Tensor, length: int) -> torch.Tensor:
    n_rows, n_heads, _, size = first.shape
    joined = first.new_zeros((n_rows + len(second), n_heads, _stepped(length), size))
    joined[:n_rows, :, length - first.shape[2] : length] = first
    joined[n_rows:, :, length - second.shape[2] : length] = second
    return joined


def make_cache(config: Any) -> DynamicCache:
    """An empty cache: in steps for layers of full attention, transformers' own for others."""
    cache = DynamicCache(config=config)
    cache.layers = [SteppedLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def can_join(cache: DynamicCache) -> bool:
    """Whether rows can be added to `cache`."""
    return all(type(layer) is SteppedLayer for layer in cache.layers)


def join_caches(cache: DynamicCache, other: DynamicCache, n_cut: int) -> None:
    """Add the rows of `other` to `cache`, see `SteppedLayer.join`: layer by layer, to hold no second copy."""
    for i, layer in enumerate(other.layers):
        cache.layers[i] = cache.layers[i].join(layer, n_cut)
