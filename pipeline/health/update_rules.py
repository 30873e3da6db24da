"""Rules on the optimizer steps: how far the policy moved, and whether it still explores."""

from __future__ import annotations

from typing import Any

from pipeline.health.evidence import Evidence, point_at
from pipeline.health.finding import Finding, Limit, bounded
from pipeline.metrics import finite
from pipeline.params import HealthParams


def kl_bounded(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where the mean KL to the reference is above `max_kl`, nats per token."""
    finding = bounded(
        "kl_bounded",
        "KL to the reference",
        step_mean(evidence, "kl", "no reference is loaded"),
        Limit(limits.max_kl),
        "Lower training.learning_rate, or raise training.kl_coefficient",
    )
    return point_at(finding, evidence, _steps(evidence, "kl", f"kl > {limits.max_kl:g}", "kl desc"), "step")


def clipping_bounded(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where more than `max_clip_fraction` of the tokens are clipped.

    Judged only with more than one optimizer step on the rollouts: in the first the policy is the one that sampled
    them, so every ratio is 1.
    """
    value = step_mean(evidence, "clip_fraction", "it was not measured")
    if evidence.metrics["update"]["n_steps"] == 1 and finite(value) is not None:
        value = "a single optimizer step has every ratio at 1"
    advice = "Take fewer steps per rollout (training.epochs, training.minibatches), or lower training.learning_rate"
    finding = bounded("clipping_bounded", "clip fraction", value, Limit(limits.max_clip_fraction), advice)
    fraction = "clip_fraction_low + clip_fraction_high"
    rows = _steps(evidence, f"{fraction} as clip_fraction", f"{fraction} > {limits.max_clip_fraction:g}", "step")
    return point_at(finding, evidence, rows, "step")


def entropy_held(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where the entropy of the policy fell below the fraction `min_entropy_fraction` of the run's first."""
    value = step_mean(evidence, "entropy", "it was not measured")
    start = next((entropy for row in evidence.history if (entropy := row["entropy"])), None)
    if finite(value) is not None:
        value = "the run begins here" if start is None else value / start
    finding = bounded(
        "entropy_held",
        "entropy over that of the run's start",
        value,
        Limit(limits.min_entropy_fraction, is_lower=True),
        "It explores less, so more groups have equal rewards: raise training.entropy_coefficient or "
        "training.clip_high, or give it harder prompts",
    )
    below = f"entropy < {limits.min_entropy_fraction * (start or 0):.6g}"
    return point_at(finding, evidence, _steps(evidence, "entropy", below, "entropy"), "step")


def step_mean(evidence: Evidence, key: str, why_null: str) -> Any:
    """A mean over the optimizer steps, or in words why there is none."""
    update = evidence.metrics["update"]
    if update["n_steps"] == 0:
        return "no optimizer step was taken"
    return why_null if update[key] is None else update[key]


def _steps(evidence: Evidence, column: str, condition: str, order: str) -> str:
    where = f"iteration = {evidence.iteration} and {condition}"
    return f"select step, {column} from train_steps where {where} order by {order}"
