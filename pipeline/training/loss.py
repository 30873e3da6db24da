"""The GRPO loss of a micro-batch, normalized for the whole optimizer step.

Sources: DeepSeekMath (arXiv 2402.03300, equations 3 and 4) for `grpo`, DAPO (arXiv 2503.14476) for `dapo` and
asymmetric clipping, Dr. GRPO (arXiv 2503.20783) for `dr_grpo`, Schulman's "Approximating KL divergence" for k2 and
k3. Deviations from the paper:
1. The importance ratio is taken against the trainer's own log-probabilities before its first step (`old`), not the
   sampling engine's; the mismatch between the two is corrected by a truncated weight on the policy term.
2. k3 goes on linearly beyond a log-ratio of 20, where exp overflows: its gradient stays finite and still pulls
   toward the reference.
3. The KL is weighted with the detached ratio, which makes it right off-policy, and changes nothing on-policy.
4. N and T count the whole optimizer step, so that cutting it into micro-batches changes nothing.
5. The reference is the base model for the whole run; the paper renews it now and then.
6. The log-ratio is held within 20 of 0, where exp would overflow; beyond, the policy term has no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pipeline.params import TrainingParams

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class StepSize:
    """What the terms of a step are divided by, counted over all its micro-batches.

    `n_completions` (N) and `n_tokens` (T) count completions with an unmasked token, and unmasked tokens.
    """

    n_completions: int
    n_tokens: int
    max_completion_tokens: int


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities [B, C] in nats of the completion tokens: four policies, four names."""

    current: torch.Tensor
    old: torch.Tensor
    sampling: torch.Tensor
    reference: torch.Tensor | None


@dataclass(frozen=True)
class Loss:
    """The loss of a micro-batch, and sums over its tokens of what the step's metrics average."""

    loss: torch.Tensor
    policy_loss: torch.Tensor
    kl_sum: torch.Tensor
    clip_low_sum: torch.Tensor
    clip_high_sum: torch.Tensor
    sampling_kl_sum: torch.Tensor
    ratio_max: torch.Tensor


def clipped_objective(ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float) -> torch.Tensor:
    """min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A), elementwise.

    >>> clipped_objective(torch.tensor([1.5, 0.5]), torch.tensor([1.0, -1.0]), 0.2, 0.2)
    tensor([ 1.2000, -0.8000])
    """
    return torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


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


def aggregate(per_token: torch.Tensor, mask: torch.Tensor, loss: str, size: StepSize) -> torch.Tensor:
    """Put `per_token` [B, C] together over the tokens where `mask` is True, as `loss` does.

    >>> size = StepSize(n_completions=2, n_tokens=6, max_completion_tokens=10)
    >>> values = torch.tensor([[2.0] * 5, [10.0] + [0.0] * 4])
    >>> mask = torch.tensor([[True] * 5, [True] + [False] * 4])
    >>> [round(aggregate(values, mask, loss, size).item(), 4) for loss in ("grpo", "dapo", "dr_grpo")]
    [6.0, 3.3333, 1.0]
    """
    masked = torch.where(mask, per_token, 0.0)
    if loss == "grpo":
        means = masked.sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return means.sum() / size.n_completions
    if loss == "dapo":
        return masked.sum() / size.n_tokens
    return masked.sum() / (size.n_completions * size.max_completion_tokens)


def grpo_loss(
    logprobs: TokenLogprobs, advantages: torch.Tensor, mask: torch.Tensor, size: StepSize, params: TrainingParams
) -> Loss:
    """The loss of a micro-batch; the sum over the micro-batches of a step is the loss of the step.

    Args:
        logprobs: [B, C] each; only `current` carries a gradient.
        advantages: [B], the same for every token of a completion.
        mask: [B, C], True where the loss applies.
        size: counts over the whole step.
        params: the loss, its clipping and its KL.
    """
    current, old, sampling = (
        torch.where(mask, values, 0.0) for values in (logprobs.current, logprobs.old, logprobs.sampling)
    )
    ratio = (current - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    per_row = advantages.unsqueeze(1)
    objective = clipped_objective(ratio, per_row, params.clip_low, params.clip_high)
    if params.sampling_ratio_cap is not None:
        log_weight = (old - sampling).detach().clamp(max=MAX_LOG_RATIO)
        objective = objective * log_weight.exp().clamp(max=params.sampling_ratio_cap)
    policy_loss = -aggregate(objective, mask, params.loss, size)
    loss, kl_sum = policy_loss, torch.zeros_like(policy_loss)
    if logprobs.reference is not None:
        reference = torch.where(mask, logprobs.reference, 0.0)
        kl = kl_estimate(current, reference, params.kl_estimator)
        loss = loss + params.kl_coefficient * aggregate(ratio.detach() * kl, mask, params.loss, size)
        kl_sum = kl.detach().sum()
    with torch.no_grad():
        is_low = mask & (per_row < 0) & (ratio < 1 - params.clip_low)
        is_high = mask & (per_row > 0) & (ratio > 1 + params.clip_high)
        return Loss(
            loss=loss,
            policy_loss=policy_loss.detach(),
            kl_sum=kl_sum,
            clip_low_sum=is_low.sum(),
            clip_high_sum=is_high.sum(),
            sampling_kl_sum=kl_estimate(sampling, old, "k3").sum(),
            ratio_max=torch.where(mask, ratio, 0.0).max(),
        )
