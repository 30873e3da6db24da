"""The term `cosine_length`: short where correct, long where wrong, and nothing gained by being cut off.

Source: Yeo et al., Demystifying Long Chain-of-Thought Reasoning in LLMs (arXiv 2502.03373), section 4.2 and its default
values: a cosine from r_0 at no token to r_L at `max_tokens`, r_e beyond.

Deviation:
1. A completion of `max_tokens` or more is beyond, and so is one that the sampling limit cut off before.
"""

from __future__ import annotations

import math

from pipeline.params import Finite, Positive, Section
from pipeline.rewards.completion import Completion

NEEDS_VERDICT = True


class Params(Section):
    """The values at both ends of the cosine, for correct and for wrong completions."""

    max_tokens: Positive
    correct_at_0: Finite = 2.0
    correct_at_max: Finite = 1.0
    wrong_at_0: Finite = -10.0
    wrong_at_max: Finite = 0.0
    exceeded: Finite = -10.0


def score(completion: Completion, params: Params) -> float | None:
    """The value for its verdict and its length in tokens; None without a verdict."""
    if completion.is_correct is None:
        return None
    n_tokens = len(completion.completion_token_ids)
    if n_tokens >= params.max_tokens or completion.finish_reason == "length":
        return params.exceeded
    if completion.is_correct:
        return cosine(n_tokens / params.max_tokens, params.correct_at_0, params.correct_at_max)
    return cosine(n_tokens / params.max_tokens, params.wrong_at_0, params.wrong_at_max)


def cosine(fraction: float, at_0: float, at_1: float) -> float:
    """From `at_0` to `at_1` along half a period.

    >>> [round(cosine(fraction, 2.0, 1.0), 6) for fraction in (0.0, 1 / 3, 0.5, 1.0)]
    [2.0, 1.75, 1.5, 1.0]
    """
    return at_1 + (at_0 - at_1) * (1 + math.cos(math.pi * fraction)) / 2
