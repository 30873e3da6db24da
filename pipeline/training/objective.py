"""What the policy maximizes at each token, before tokens are put together.

Sources: PPO's clip as in DeepSeekMath (arXiv 2402.03300), asymmetric as in DAPO (arXiv 2503.14476), dual as in
arXiv 1912.09729; GSPO (arXiv 2507.18071) for the ratio of a completion; CISPO (MiniMax-M1, arXiv 2506.13585).
Deviations from the papers:
1. Log-ratios are held within 20 of 0, where exp would overflow; beyond, the policy term of a clipped loss has no
   gradient.
2. With `gspo` the correction for the mismatch of engine and trainer is one weight per completion, and a geometric mean
   over tokens, as GSPO's own ratio is: the two multiply to GSPO's ratio against the engine's probabilities, which the
   paper holds to be usable in place of the trainer's (section 5.4). The product over tokens, unbiased, would be at its
   cap or near zero for any long completion.
3. `cispo` has no lower bound, as the paper's experiments have none, and no mask: each token keeps its gradient.
"""

from __future__ import annotations

import torch

from pipeline.params import TrainingParams
from pipeline.training.kl import MAX_LOG_RATIO


def importance_ratio(log_ratio: torch.Tensor, mask: torch.Tensor, is_per_completion: bool) -> torch.Tensor:
    """exp of `log_ratio` [B, C] at each token, or of its mean over a completion's unmasked tokens, at each of them.

    >>> log_ratio, mask = torch.tensor([[0.0, 0.2, 9.0]]), torch.tensor([[True, True, False]])
    >>> importance_ratio(log_ratio, mask, is_per_completion=True)
    tensor([[1.1052, 1.1052, 1.1052]])
    """
    if is_per_completion:
        totals = torch.where(mask, log_ratio, 0.0).sum(dim=1, keepdim=True)
        log_ratio = (totals / mask.sum(dim=1, keepdim=True).clamp(min=1)).expand_as(log_ratio)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def policy_objective(
    ratio: torch.Tensor, current: torch.Tensor, advantages: torch.Tensor, params: TrainingParams
) -> torch.Tensor:
    """The objective [B, C] of tokens with log-probabilities `current` [B, C]; `ratio` [B, C], `advantages` [B, 1].

    That of `cispo` is sg(min(rho, 1 + clip_high)) A log p, where sg(x) is x without its gradient.
    """
    if params.loss == "cispo":
        return ratio.detach().clamp(max=1 + params.clip_high) * advantages * current
    return clipped_objective(ratio, advantages, params.clip_low, params.clip_high, params.dual_clip)


def clipped_objective(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> torch.Tensor:
    """min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A), elementwise; at least dual_clip A where A is negative.

    >>> clipped_objective(torch.tensor([1.5, 0.5, 9.0]), torch.tensor([1.0, -1.0, -1.0]), 0.2, 0.2, dual_clip=3.0)
    tensor([ 1.2000, -0.8000, -3.0000])
    """
    clipped = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if dual_clip is None:
        return clipped
    return torch.where(advantages < 0, torch.maximum(clipped, dual_clip * advantages), clipped)


def clipped_tokens(
    ratio: torch.Tensor, advantages: torch.Tensor, params: TrainingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens whose ratio a lower bound holds back, and those an upper one does: [B, C] each, of type bool.

    With `gspo` all tokens of a completion or none; with `cispo` those whose ratio is capped, which keep a gradient.
    """
    if params.loss == "cispo":
        return torch.zeros_like(ratio, dtype=torch.bool), ratio > 1 + params.clip_high
    is_low = (advantages < 0) & (ratio < 1 - params.clip_low)
    is_high = (advantages > 0) & (ratio > 1 + params.clip_high)
    if params.dual_clip is not None:
        is_high = is_high | ((advantages < 0) & (ratio > params.dual_clip))
    return is_low, is_high
