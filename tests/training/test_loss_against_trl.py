"""The loss and its gradient against TRL's own, on the same tensors.

TRL's `_compute_loss` runs with a stand-in for its trainer: the model's forward pass gives the log-probabilities and
entropies of the case, and everything that follows is TRL's. Its conventions:
- `gspo` is loss type grpo with ratios of the level "sequence".
- TRL weights the KL with a ratio that carries a gradient, if at all; ours carries none. So the KL is compared where all
  ratios are 1, without TRL's weight.
- With `cispo`, `epsilon_high` is the cap itself, ours is 1 + clip_high.
- `delta` is the dual clip; it caps positive advantages too, which the upper clip has done before.
- The entropy bonus is always a mean over tokens, which is ours for `dapo` and `cispo`.
- `importance_sampling_ratio`, the truncated weight of the sampling engine, comes with the batch.
- A completion without unmasked tokens counts in TRL's number of completions, so that no case has one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.params import TrainingParams
from pipeline.training.loss import TokenLogprobs, grpo_loss
from tests.slow_loss import LOSSES, MicroBatch, binding, draw_micro_batch, size_of

grpo_trainer = pytest.importorskip("trl.trainer.grpo_trainer", reason="TRL is not installed")

MAX_COMPLETION_TOKENS = 10
ADDED: dict[str, dict[str, Any]] = {
    "plain": {},
    "KL": {"kl_coefficient": 0.3},
    "dual clip": {"dual_clip": 1.3},
    "sampling correction": {"sampling_ratio_cap": 1.2},
    "entropy bonus": {"entropy_coefficient": 0.2},
}
CASES = [
    (loss, added)
    for loss in LOSSES
    for added in ADDED
    if not (loss == "cispo" and added == "dual clip")
    and not (loss not in ("dapo", "cispo") and added == "entropy bonus")
]


def trl_loss(params: TrainingParams, logprobs: TokenLogprobs, advantages: torch.Tensor, mask: torch.Tensor) -> Any:
    """TRL's loss, and its metrics."""
    metrics: dict[str, Any] = {"train": defaultdict(list)}
    is_capped = params.loss == "cispo"
    trainer = SimpleNamespace(
        loss_type="grpo" if params.loss == "gspo" else params.loss,
        importance_sampling_level="sequence" if params.loss == "gspo" else "token",
        epsilon_low=params.clip_low,
        epsilon_high=params.clip_high + (1 if is_capped else 0),
        beta=params.kl_coefficient if logprobs.reference is not None else 0.0,
        entropy_coef=params.entropy_coefficient,
        args=SimpleNamespace(delta=params.dual_clip, use_bias_correction_kl=False, steps_per_generation=1),
        use_vllm=params.sampling_ratio_cap is not None,
        vllm_importance_sampling_correction=params.sampling_ratio_cap is not None,
        max_completion_length=MAX_COMPLETION_TOKENS,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1,
            sync_gradients=True,
            gather=lambda values: values,
            reduce=lambda values, reduction: values,
        ),
        current_gradient_accumulation_steps=1,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_adaptive_entropy=False,
        _entropy_bonus_enabled=params.entropy_coefficient > 0,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs.current, logprobs.entropy, None),
        _metrics=metrics,
    )
    prompts = torch.ones(len(mask), 1, dtype=torch.long)
    batch = {
        "prompt_ids": prompts,
        "prompt_mask": prompts,
        "completion_ids": mask.long(),
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": logprobs.old,
        "ref_per_token_logps": logprobs.reference,
        "importance_sampling_ratio": sampling_weight(params, logprobs, mask),
        "num_items_in_batch": mask.sum(),
    }
    return grpo_trainer.GRPOTrainer._compute_loss(trainer, None, batch), metrics["train"]


def sampling_weight(params: TrainingParams, logprobs: TokenLogprobs, mask: torch.Tensor) -> torch.Tensor:
    """The truncated weight, [B, C] or [B, 1]."""
    log_weight = logprobs.old - logprobs.sampling
    if params.loss == "gspo":
        log_weight = ((log_weight * mask).sum(dim=1) / mask.sum(dim=1)).unsqueeze(1)
    return log_weight.exp().clamp(max=params.sampling_ratio_cap or math.inf)


def case_of(batch: MicroBatch, params: TrainingParams) -> TokenLogprobs:
    logprobs = batch.logprobs
    if params.kl_coefficient == 0:
        logprobs = replace(logprobs, reference=None)
    else:
        logprobs = replace(logprobs, old=logprobs.current.clone())
    return replace(logprobs, current=leaf(logprobs.current), entropy=leaf(logprobs.entropy))


def leaf(values: torch.Tensor | None) -> torch.Tensor:
    assert values is not None
    return values.clone().requires_grad_()


@pytest.mark.parametrize(("loss", "added"), CASES)
def test_trl_agrees(loss: str, added: str) -> None:
    params = binding(loss, **{"kl_coefficient": 0.0, **ADDED[added]})
    n_compared = 0
    for batch in filter(lambda batch: all(map(any, batch.mask)), map(draw_micro_batch, range(12))):
        logprobs, mask = case_of(batch, params), torch.tensor(batch.mask)
        advantages = torch.tensor(batch.advantages, dtype=torch.float64)
        ours = grpo_loss(logprobs, advantages, mask, size_of(mask, MAX_COMPLETION_TOKENS), params)
        theirs, metrics = trl_loss(params, logprobs, advantages, mask)
        assert ours.loss.item() == pytest.approx(theirs.item(), rel=1e-9, abs=1e-12)
        for leaves in (logprobs.current, logprobs.entropy):
            assert torch.allclose(gradient(ours.loss, leaves), gradient(theirs, leaves), rtol=1e-9, atol=1e-12)
        if loss in ("grpo", "dapo", "dr_grpo") and added != "dual clip":
            fractions = [value / mask.sum() for value in (ours.clip_low_sum, ours.clip_high_sum)]
            found = [metrics[f"clip_ratio/{side}_mean"][0] for side in ("low", "high")]
            assert fractions == pytest.approx(found)
        n_compared += 1
    assert n_compared > 5


def gradient(loss: torch.Tensor, at: torch.Tensor | None) -> torch.Tensor:
    assert at is not None
    return torch.autograd.grad(loss, at, allow_unused=True, retain_graph=True, materialize_grads=True)[0]
