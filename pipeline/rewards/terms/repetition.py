"""The term `repetition`: minus the fraction of tokens that repeat what was said before.

Source: the N-gram repetition penalty of Yeo et al., Demystifying Long Chain-of-Thought Reasoning in LLMs
(arXiv 2502.03373), appendix, where N is 40: each token of an n-gram that occurred earlier gets the penalty.

Deviation:
1. The paper penalises tokens; a completion here has one reward, and gets their share. `weight` is the penalty.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from pipeline.params import Positive, Section
from pipeline.rewards.completion import Completion


class Params(Section):
    """How many tokens in a row make a repetition."""

    ngram_tokens: Positive = 40


def score(completion: Completion, params: Params) -> float:
    """From 0, where nothing is repeated, down to -1."""
    return -repeated_fraction(completion.completion_token_ids, params.ngram_tokens)


def repeated_fraction(token_ids: Sequence[int], n: int) -> float:
    """The fraction of tokens that are in an n-gram which occurred earlier.

    >>> repeated_fraction([1, 2, 3, 1, 2, 3, 4, 5], 3)
    0.375
    """
    packed = array("i", token_ids)  # its slices as bytes are n-grams that are fast to hash
    width = packed.itemsize
    content = packed.tobytes()
    seen: set[bytes] = set()
    n_repeated = end = 0
    for start in range(len(packed) - n + 1):
        ngram = content[start * width : (start + n) * width]
        if ngram in seen:
            n_repeated += start + n - max(start, end)
            end = start + n
        seen.add(ngram)
    return n_repeated / len(packed) if len(packed) else 0.0
