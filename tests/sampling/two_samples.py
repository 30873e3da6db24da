"""Whether two engines draw from one distribution: a test on the mean log-probability of the tokens they drew.

Completions of one prompt are alike, so that the prompt is what is independent. For each, the difference of the two
engines' means is as likely to have either sign, if they draw alike: the sample is compared with itself under signs
that a coin gives to the differences (a permutation test, exact whatever the distribution is).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.sampling import SampledCompletion

FALSE_ALARMS = 0.001
"""How often engines that draw alike would be told apart."""
N_COINS = 20_000


def p_value(one: Sequence[Sequence[SampledCompletion]], other: Sequence[Sequence[SampledCompletion]]) -> float:
    """How likely a mean difference at least this large is, if the groups of two engines were drawn alike."""
    differences = np.array([_mean(a) - _mean(b) for a, b in zip(one, other, strict=True)])
    signs = 2.0 * np.random.default_rng(0).integers(0, 2, (N_COINS, len(differences)), dtype=np.int8) - 1
    by_chance = np.abs(signs @ differences)
    return float((1 + (by_chance >= abs(differences.sum())).sum()) / (1 + N_COINS))


def _mean(group: Sequence[SampledCompletion]) -> float:
    return float(np.mean([logprob for completion in group for logprob in completion.logprobs]))
