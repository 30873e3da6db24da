"""The KL of the policy to the reference: of each token, for the loss, or of each completion, for the reward.

Sources: Schulman's "Approximating KL divergence" for k1, k2 and k3, RLOO (arXiv 2402.14740) for the KL in the reward.
Deviations:
1. k3 goes on linearly beyond a log-ratio of 20, where exp overflows: its gradient stays finite and still pulls
   toward the reference.
2. The KL in the reward is not divided by a standard deviation: its coefficient is in units of the advantage, whatever
   `scale` makes of the rewards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

MAX_LOG_RATIO = 20.0


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor, estimator: str) -> torch.Tensor:
    """KL of the policy to the reference at each token, from samples of the policy: k1, k2 or k3, in nats.

    With d = reference - logprobs: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1.

    >>> kl_estimate(torch.tensor([-1.0, -2.0]), torch.tensor([-2.0, -1.0]), "k3")
    tensor([0.3679, 0.7183])
    """
    difference = reference - logprobs
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return difference.square() / 2
    near = difference.clamp(max=MAX_LOG_RATIO)
    # relu, and not difference - near, whose gradients, 1 and -1 times the slope, would swallow that of expm1.
    beyond = torch.relu(difference - MAX_LOG_RATIO)
    return torch.expm1(near) - near + math.expm1(MAX_LOG_RATIO) * beyond


def completion_kl(old: Sequence[float], reference: Sequence[float]) -> float:
    """k1 of a completion in nats: the sum of old - reference over its unmasked tokens.

    Its expectation is the KL of the whole completion. It serves in the reward alone: in the loss its expected gradient
    is zero.

    >>> completion_kl([-1.0, -2.0], [-1.5, -1.75])
    0.25
    """
    return math.fsum(ours - theirs for ours, theirs in zip(old, reference, strict=True))


def penalize_kl(
    advantages: Sequence[float], kl: Sequence[float], group_ids: Sequence[str], coefficient: float, baseline: str
) -> list[float]:
    """Advantages of rewards from which coefficient * KL is taken, given those of the rewards alone.

    A_i' = A_i - coefficient * (K_i - b_i), with b_i the mean of K over the rows of i's group (`baseline: mean`) or over
    the others of them (`leave_one_out`). A row that is alone in its group keeps its advantage: it has no baseline.

    Args:
        advantages: one per trained completion, as are the next two.
        kl: `completion_kl` of each, in nats.
        group_ids: the group of each.
        coefficient: how much reward a nat costs.
        baseline: that of `normalize`.

    >>> penalize_kl([1.0, -1.0], [3.0, 1.0], ["a", "a"], coefficient=0.1, baseline="mean")
    [0.9, -0.9]
    """
    groups: dict[str, list[float]] = {}
    for group, value in zip(group_ids, kl, strict=True):
        groups.setdefault(group, []).append(value)
    penalized = []
    for advantage, value, group in zip(advantages, kl, group_ids, strict=True):
        members = groups[group]
        n = len(members)
        centered = value - math.fsum(members) / n
        if baseline == "leave_one_out" and n > 1:
            centered *= n / (n - 1)  # K - mean(others) = n / (n - 1) * (K - mean(all))
        penalized.append(advantage - coefficient * centered)
    return penalized
