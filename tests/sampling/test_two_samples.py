from __future__ import annotations

import numpy as np

from pipeline.sampling import SampledCompletion
from tests.sampling.two_samples import FALSE_ALARMS, p_value


def groups(seed: int, shift: float = 0.0, n_groups: int = 32) -> list[list[SampledCompletion]]:
    """Four completions of each group, around a mean of the group's own, which is far from that of the others."""
    draw = np.random.default_rng(seed)
    return [
        [SampledCompletion([1] * 5, (shift - group + draw.normal(size=5)).tolist(), "length", 0) for _ in range(4)]
        for group in range(n_groups)
    ]


def test_what_was_drawn_alike_is_seldom_told_apart() -> None:
    found = [p_value(groups(2 * seed), groups(2 * seed + 1)) for seed in range(20)]
    assert min(found) > FALSE_ALARMS
    # If they are alike, p-values are uniform: of 20, ten are below 1/2, give or take 2.2.
    assert 4 <= sum(value < 0.5 for value in found) <= 16


def test_a_shift_is_seen_though_groups_differ_by_more() -> None:
    # 640 tokens on each side: the difference has a standard deviation of sqrt(2 / 640) = 0.056.
    assert p_value(groups(0), groups(1, shift=0.3)) <= FALSE_ALARMS


def test_by_hand() -> None:
    one = [[SampledCompletion([1], [value], "stop", 0)] for value in (-1.0, -2.0)]
    other = [[SampledCompletion([1], [value - 0.5], "stop", 0)] for value in (-1.0, -2.0)]
    # Differences 0.5 and 0.5: of the signs ++, +-, -+, -- two give a sum as far from 0.
    assert abs(p_value(one, other) - 0.5) < 0.02
