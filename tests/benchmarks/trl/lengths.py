"""Completions of given lengths out of any sampler: a hook on the head says at each token which ones end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.benchmarks.trl.workload import Workload

IMPOSSIBLE = -1e4
"""A logit that is never drawn, and finite, as samplers ask."""


class ForcedLengths:
    """Makes the head of a model draw end tokens as told, in one batch after each `restart`.

    A sampler may keep the finished completions among its rows, or drop them. Where it keeps them, completion i has
    length i; where it drops them, as many end at each token, whichever they are.
    """

    def __init__(self, workload: Workload) -> None:
        self._limit = workload.sizes.max_completion_tokens
        self._end_token_id = workload.end_token_id
        self._lengths: Sequence[int] = ()
        self._n_tokens = 0

    def attach(self, model: Any) -> None:
        """Hook into the head of `model`."""
        model.get_output_embeddings().register_forward_hook(self._force)

    def restart(self, lengths: Sequence[int]) -> None:
        """The next forward of the head draws the first tokens of completions of these lengths."""
        self._lengths = lengths
        self._n_tokens = 0

    def _force(self, _module: Any, _inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        self._n_tokens += 1
        logits[:, -1, self._end_token_id] = IMPOSSIBLE
        ending = [row for row, length in enumerate(self._lengths) if length == self._n_tokens < self._limit]
        if ending:
            rows = ending if len(logits) == len(self._lengths) else list(range(len(ending)))
            logits[rows, -1] = IMPOSSIBLE
            logits[rows, -1, self._end_token_id] = 0.0
        return logits
