"""The sections of params.yaml that make up the method: `normalize` and `training` (start, update)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from pipeline.params_sections import Device, Fraction, Natural, NonNegativeFloat, Positive, PositiveFloat, Section

Decay = Annotated[float, Field(ge=0, lt=1)]
LearningRate = Annotated[float, Field(gt=0, le=100)]
DualClip = Annotated[float, Field(gt=1, allow_inf_nan=False)]

OWN_CLIP: dict[str, dict[str, float]] = {
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"clip_high": 4.0},
}
"""Clips, where none are given, of the losses to which those of `grpo` mean something else.

That of `gspo` is from arXiv 2507.18071, section 5.1. MiniMax-M1 (arXiv 2506.13585) doesn't tell the bound of `cispo`;
a cap of 5 is what is recommended after ScaleRL (arXiv 2510.13786), and there is no lower bound.
"""
MAX_GSPO_CLIP = 0.1


def _check_reference(value: str) -> str:
    if value not in ("base", "previous") and not re.fullmatch(r"[0-9a-f]{40}|[^/\s]+/\d{4,}", value):
        raise ValueError(
            f"{value!r} is neither base, nor previous, nor an iteration like demo/0003, nor a full commit id: a branch "
            "would move without DVC's notice"
        )
    return value


class NormalizeParams(Section):
    """How rewards become advantages."""

    baseline: Literal["mean", "leave_one_out"] = "mean"
    scale: Literal["group", "batch", "none"] = "group"
    std_floor: PositiveFloat = 1e-4


class LoraParams(Section):
    """The shape of the adapter."""

    rank: Positive = 16
    alpha: PositiveFloat = 32.0
    target_modules: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = "all-linear"


class TrainingParams(Section):
    """The GRPO update: what is trained, the loss, the optimizer, what a micro-batch may hold, and where it runs."""

    method: Literal["lora", "full"] = "lora"
    lora: LoraParams = LoraParams()
    loss: Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo"] = "grpo"
    clip_low: Fraction = 0.2
    clip_high: NonNegativeFloat = 0.2
    dual_clip: DualClip | None = None
    kl_coefficient: NonNegativeFloat = 0.04
    kl_estimator: Literal["k2", "k3"] = "k3"
    kl_in: Literal["loss", "reward"] = "loss"
    entropy_coefficient: NonNegativeFloat = 0.0
    reference: Annotated[str, AfterValidator(_check_reference)] = "base"
    sampling_ratio_cap: PositiveFloat | None = 2.0
    mask_truncated: bool = False
    epochs: Positive = 1
    minibatches: Positive = 1
    learning_rate: LearningRate
    warmup_steps: Natural = 0
    decay: Literal["constant", "linear", "cosine"] = "constant"
    decay_steps: Positive | None = None
    min_learning_rate_fraction: Fraction = 0.0
    weight_decay: NonNegativeFloat = 0.0
    adam_beta1: Decay = 0.9
    adam_beta2: Decay = 0.999
    adam_epsilon: PositiveFloat = 1e-8
    max_grad_norm: PositiveFloat = 1.0
    max_tokens_per_microbatch: Positive = 512
    gradient_checkpointing: bool = False
    checkpoint_minutes: NonNegativeFloat | None = 5.0
    device: Device = "auto"
    launcher: Literal["single", "torchrun"] = "single"
    n_processes: Positive | None = None

    @model_validator(mode="after")
    def _launcher_fits(self) -> TrainingParams:
        if self.launcher == "single" and (self.n_processes or 1) > 1:
            raise ValueError(f"n_processes {self.n_processes} does not go with launcher single; set it to torchrun")
        return self

    @model_validator(mode="before")
    @classmethod
    def _own_clip(cls, value: Any) -> Any:
        loss = value.get("loss") if isinstance(value, dict) else None
        return {**OWN_CLIP[loss], **value} if isinstance(loss, str) and loss in OWN_CLIP else value

    @model_validator(mode="after")
    def _clip_fits_the_loss(self) -> TrainingParams:
        if self.loss == "gspo" and max(self.clip_low, self.clip_high) > MAX_GSPO_CLIP:
            raise ValueError(
                f"clip_low {self.clip_low} and clip_high {self.clip_high} would never clip with loss gspo, whose ratio "
                f"is that of a whole completion and stays within thousandths of 1: at most {MAX_GSPO_CLIP}, in the "
                "paper 0.0003 and 0.0004, which you get by leaving both out"
            )
        if self.loss == "cispo" and self.dual_clip is not None:
            raise ValueError(
                f"dual_clip {self.dual_clip} does not go with loss cispo, which caps the ratio for advantages of "
                "either sign; lower clip_high instead"
            )
        return self

    @model_validator(mode="after")
    def _decay_fits(self) -> TrainingParams:
        if self.decay == "constant":
            if self.decay_steps is not None:
                raise ValueError(f"decay_steps {self.decay_steps} does not go with decay constant; leave it out")
        elif self.decay_steps is None:
            raise ValueError(
                f"decay {self.decay} needs decay_steps, the number of optimizer steps of the whole run: iterations x "
                "epochs x minibatches"
            )
        elif self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps {self.decay_steps} is not more than warmup_steps {self.warmup_steps}, at which the decay "
                "begins"
            )
        return self
