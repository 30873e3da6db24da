"""The term `overlong`: DAPO's soft overlong punishment, 0 up to a length, then falling to -1.

Source: Yu et al., DAPO (arXiv 2503.14476), equation 13, with L_max `max_tokens` and L_cache `buffer_tokens`.
"""

from __future__ import annotations

from pydantic import model_validator

from pipeline.params import Positive, Section
from pipeline.rewards.completion import Completion


class Params(Section):
    """The penalty grows over the last `buffer_tokens` of `max_tokens`."""

    max_tokens: Positive
    buffer_tokens: Positive

    @model_validator(mode="after")
    def _fits(self) -> Params:
        if self.buffer_tokens > self.max_tokens:
            raise ValueError(f"buffer_tokens {self.buffer_tokens} is more than max_tokens {self.max_tokens}")
        return self


def score(completion: Completion, params: Params) -> float:
    """The penalty of its length in tokens, the end token included."""
    return overlong_penalty(len(completion.completion_token_ids), params)


def overlong_penalty(n_tokens: int, params: Params) -> float:
    """From 0 to -1.

    >>> [overlong_penalty(n, Params(max_tokens=100, buffer_tokens=20)) for n in (80, 81, 90, 100, 101)]
    [0.0, -0.05, -0.5, -1.0, -1.0]
    """
    n_over = n_tokens - (params.max_tokens - params.buffer_tokens)
    return -min(max(n_over, 0) / params.buffer_tokens, 1.0) if n_over > 0 else 0.0
