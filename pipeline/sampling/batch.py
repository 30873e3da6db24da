"""The completions that are decoded together: rows that are finished leave, and others take their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import DynamicCache

from pipeline.sampling import FinishReason
from pipeline.sampling.cache import can_join, join_caches
from pipeline.sampling.stopping import StopWatch


@dataclass
class Row:
    """A completion in the making: `place` is its index in the group of `request`, `stream` what it draws from."""

    request: int
    place: int
    seed: int
    stream: np.random.Generator
    watch: StopWatch
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class Batch:
    """B rows, what the model keeps of them, and its logits for their next tokens. All rows end at the same position."""

    rows: list[Row]
    cache: DynamicCache
    mask: torch.Tensor  # [B, length] int64, 1 where a row has a token
    position: torch.Tensor  # [B, 1] int64, of the last token
    logits: torch.Tensor  # [B, vocabulary]

    @property
    def can_grow(self) -> bool:
        """Whether rows can be added."""
        return can_join(self.cache)

    def record(self, tokens: list[int], logprobs: list[float]) -> list[FinishReason | None]:
        """Give each row the token that was drawn for it; how each ends with it, None where it goes on."""
        reasons: list[FinishReason | None] = []
        for row, token, logprob in zip(self.rows, tokens, logprobs, strict=True):
            row.token_ids.append(token)
            row.logprobs.append(logprob)
            reasons.append(row.watch.push(token))
        return reasons

    def keep(self, places: list[int]) -> None:
        """Keep the rows at `places`, in this order; `logits`, of all rows, are for the next step to replace."""
        order = torch.tensor(places, device=self.mask.device)
        self.rows = [self.rows[place] for place in places]
        self.cache.reorder_cache(order)  # the one selection of rows that every kind of cache layer has
        self.mask, self.position = self.mask[order], self.position[order]

    def add(self, other: Batch) -> None:
        """Add the rows of `other`."""
        n_cut = int(self.mask.any(dim=0).int().argmax())  # positions that no row has any more
        length = max(self.mask.shape[1] - n_cut, other.mask.shape[1])
        join_caches(self.cache, other.cache, n_cut)
        masks = (self.mask[:, n_cut:], other.mask)
        self.mask = torch.cat([torch.nn.functional.pad(mask, (length - mask.shape[1], 0)) for mask in masks])
        self.position = torch.cat([self.position, other.position])
        self.logits = torch.cat([self.logits, other.logits])
        self.rows = self.rows + other.rows


def places_to_keep(reasons: Sequence[FinishReason | None]) -> list[int]:
    """Which row each of the first places gets, so that few are copied: the last ones that go on move into the gaps.

    >>> places_to_keep([None, "stop", None, "length", None, None])
    [0, 5, 2, 4]
    """
    going = [place for place, reason in enumerate(reasons) if reason is None]
    movers = iter(sorted((place for place in going if place >= len(going)), reverse=True))
    return [place if reasons[place] is None else next(movers) for place in range(len(going))]
