"""The GRPO loss of a micro-batch, normalized for the whole optimizer step.

Sources: DeepSeekMath (arXiv 2402.03300, equations 3 and 4) for `grpo`, DAPO (arXiv 2503.14476) for `dapo`, Dr. GRPO
(arXiv 2503.20783) for `dr_grpo`, GSPO (arXiv 2507.18071) for `gspo`, MiniMax-M1 (arXiv 2506.13585) for `cispo`.
Deviations from the papers:
1. The importance ratio is taken against the trainer's own log-probabilities before its first step (`old`), not the
   sampling engine's; the mismatch between the two is corrected by a truncated weight on the policy term.
2. The KL of a token is weighted with that token's detached ratio, whatever the ratio of the policy term is: it is right
   off-policy, and changes nothing on-policy.
3. N and T count the whole optimizer step, so that cutting it into micro-batches changes nothing.
4. The reference stays what `reference` names for the whole run; DeepSeekMath renews it now and then.
5. The entropy bonus is put together like the tokens of the loss, not always as a mean over tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pipeline.params import TrainingParams
from pipeline.training.kl import kl_estimate
from pipeline.training.objective import clipped_tokens, importance_ratio, policy_objective


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
    """Log-probabilities [B, C] in nats of the completion tokens: four policies, four names.

    `entropy` [B, C] is that of the current policy, with its gradient; only an entropy bonus needs it.
    """

    current: torch.Tensor
    old: torch.Tensor
    sampling: torch.Tensor
    reference: torch.Tensor | None
    entropy: torch.Tensor | None = None

    def masked(self, mask: torch.Tensor) -> TokenLogprobs:
        """With 0 wherever `mask` is False: what stands there, be it NaN, reaches neither value nor gradient."""
        values: dict[str, torch.Tensor | None] = vars(self)
        kept: dict[str, Any] = {name: x if x is None else torch.where(mask, x, 0.0) for name, x in values.items()}
        return TokenLogprobs(**kept)


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


def aggregate(per_token: torch.Tensor, mask: torch.Tensor, loss: str, size: StepSize) -> torch.Tensor:
    """Put `per_token` [B, C] together over the tokens where `mask` is True, as `loss` does.

    >>> size = StepSize(n_completions=2, n_tokens=6, max_completion_tokens=10)
    >>> values = torch.tensor([[2.0] * 5, [10.0] + [0.0] * 4])
    >>> mask = torch.tensor([[True] * 5, [True] + [False] * 4])
    >>> [round(aggregate(values, mask, loss, size).item(), 4) for loss in ("grpo", "dapo", "dr_grpo")]
    [6.0, 3.3333, 1.0]
    """
    masked = torch.where(mask, per_token, 0.0)
    if loss in ("grpo", "gspo"):
        means = masked.sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return means.sum() / size.n_completions
    if loss in ("dapo", "cispo"):
        return masked.sum() / size.n_tokens
    return masked.sum() / (size.n_completions * size.max_completion_tokens)


def grpo_loss(
    logprobs: TokenLogprobs, advantages: torch.Tensor, mask: torch.Tensor, size: StepSize, params: TrainingParams
) -> Loss:
    """The loss of a micro-batch; the sum over the micro-batches of a step is the loss of the step.

    It is minus the objective, plus `kl_coefficient` times the KL unless that is in the reward, minus
    `entropy_coefficient` times the entropy.

    Args:
        logprobs: [B, C] each; only `current` and `entropy` carry a gradient.
        advantages: [B], the same for every token of a completion.
        mask: [B, C], True where the loss applies.
        size: counts over the whole step.
        params: the loss, its clipping, its KL and its entropy bonus.
    """
    logprobs, advantages = logprobs.masked(mask), advantages.unsqueeze(1)
    log_ratio = logprobs.current - logprobs.old
    is_per_completion = params.loss == "gspo"
    ratio = importance_ratio(log_ratio, mask, is_per_completion)
    objective = policy_objective(ratio, logprobs.current, advantages, params)
    if params.sampling_ratio_cap is not None:
        mismatch = importance_ratio((logprobs.old - logprobs.sampling).detach(), mask, is_per_completion)
        objective = objective * mismatch.clamp(max=params.sampling_ratio_cap)
    policy_loss = -aggregate(objective, mask, params.loss, size)

    loss, kl = policy_loss, torch.zeros_like(ratio)
    if logprobs.reference is not None:
        kl = kl_estimate(logprobs.current, logprobs.reference, params.kl_estimator)
        if params.kl_in == "loss":
            weighted = importance_ratio(log_ratio.detach(), mask, is_per_completion=False) * kl
            loss = loss + params.kl_coefficient * aggregate(weighted, mask, params.loss, size)
    if params.entropy_coefficient > 0:
        if logprobs.entropy is None:
            raise ValueError("an entropy bonus needs the entropy of the tokens")
        loss = loss - params.entropy_coefficient * aggregate(logprobs.entropy, mask, params.loss, size)

    with torch.no_grad():
        is_low, is_high = clipped_tokens(ratio, advantages, params)
        return Loss(
            loss=loss,
            policy_loss=policy_loss.detach(),
            kl_sum=kl.detach().sum(),
            clip_low_sum=(mask & is_low).sum(),
            clip_high_sum=(mask & is_high).sum(),
            sampling_kl_sum=kl_estimate(logprobs.sampling, logprobs.old, "k3").sum(),
            ratio_max=torch.where(mask, ratio, 0.0).max(),
        )
