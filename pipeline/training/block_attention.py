"""Attention over a packed row on CUDA: FlexAttention, whose kernel skips blocks of scores that nobody needs.

Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention Kernels", arXiv 2412.05496.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import AttentionInterface

from pipeline.training.places import Places

NONE = -1


@dataclass(frozen=True)
class Members:
    """Whose each of the L tokens of a packed row is. Padding is nobody's, and sees padding alone."""

    prompts: torch.Tensor  # [L] int64, the prompt of a token, or of its completion; NONE for padding
    completions: torch.Tensor  # [L] int64; NONE for tokens of prompts
    positions: torch.Tensor  # [L] int64
    masks: dict[int | None, BlockMask] = field(default_factory=dict)
    """Of `mask_for`, by window: layers share them."""

    @classmethod
    def of(cls, places: Places, device: torch.device) -> Members:
        """Those of the row whose prompts and completions have these places."""
        prompt_of, completion_of = torch.full((2, places.n_tokens), NONE).unbind()
        positions = torch.zeros(places.n_tokens, dtype=torch.int64)
        for number, own in enumerate(places.prompts):
            prompt_of[own.start : own.stop] = number
            positions[own.start : own.stop] = torch.arange(len(own))
        for number, (own, prompt) in enumerate(zip(places.completions, places.prompt_of_completion, strict=True)):
            prompt_of[own.start : own.stop] = prompt
            completion_of[own.start : own.stop] = number
            positions[own.start : own.stop] = len(places.prompts[prompt]) + torch.arange(len(own))
        return cls(prompt_of.to(device), completion_of.to(device), positions.to(device))

    def sees(self, query: torch.Tensor, key: torch.Tensor, window: int | None) -> torch.Tensor:
        """Whether the tokens at the places `query` see those at `key`, which broadcast.

        They see their prompt and their own completion up to themselves, and of that the last `window` positions.
        """
        is_of_prompt = (self.prompts[query] == self.prompts[key]) & (self.completions[key] == NONE)
        is_of_own = (self.completions[query] == self.completions[key]) & (self.completions[key] != NONE)
        seen = (is_of_prompt | is_of_own) & (key <= query)
        if window is None:
            return seen
        return seen & (self.positions[query] - self.positions[key] < window)

    def mask_for(self, window: int | None) -> BlockMask:
        """`sees` of the whole row, in blocks."""
        if window not in self.masks:
            n_tokens = len(self.positions)
            self.masks[window] = create_block_mask(
                lambda _batch, _head, query, key: self.sees(query, key, window),
                B=None,
                H=None,
                Q_LEN=n_tokens,
                KV_LEN=n_tokens,
                device=self.positions.device,
            )
        return self.masks[window]


def attend_by_blocks(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    members: Members,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """[1, L, heads, size] from `query` [1, heads, L, size], `key` and `value` [1, key heads, L, size]."""
    attend = AttentionInterface()["flex_attention"]  # compiled once, for every layer and model
    attended: torch.Tensor
    # Positions may have widened queries and keys, and the kernel wants all of one kind.
    query, key = query.to(value.dtype), key.to(value.dtype)
    attended, _ = attend(module, query, key, value, members.mask_for(window), scaling=scaling)
    return attended
