"""The section `report` of params.yaml: what the page shows, where the diagnosis warns, and what follows from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.params_sections import Fraction, Positive, PositiveFloat, Section

OnHealth = Literal["stop", "warn", "watch", "ignore"]
AboveOne = Annotated[float, Field(gt=1, allow_inf_nan=False)]


class TrendParams(Section):
    """What counts as a trend: the last `n_iterations` beside as many before."""

    n_iterations: Annotated[int, Field(ge=2, le=1_000)] = 5
    min_pass_rate_change: Fraction = 0.05
    min_kl_growth: AboveOne = 2.0
    max_flat_kl_change: Fraction = 0.1
    min_length_growth: PositiveFloat = 0.2
    max_held_out_fall: Fraction = 0.05


class HealthParams(Section):
    """Thresholds of the diagnosis; each is where a warning begins."""

    max_kl: PositiveFloat = 0.3
    max_clip_fraction: Fraction = 0.3
    max_pass_rate_drop: Fraction = 0.5
    watch_sampling_kl: PositiveFloat = 0.01
    max_sampling_kl: PositiveFloat = 0.1
    max_probability_ratio: AboveOne = 1.05
    min_effective_fraction: Fraction = 0.3
    min_entropy_fraction: Fraction = 0.5
    max_no_signal_fraction: Fraction = 0.5
    max_ceiling_fraction: Fraction = 0.8
    max_truncated_fraction: Fraction = 0.3
    max_empty_fraction: Fraction = 0.1
    max_repetitive_fraction: Fraction = 0.2
    repetitive_compression_ratio: AboveOne = 4.0
    max_length_drift: PositiveFloat = 3.0
    trend: TrendParams = TrendParams()


class OnHealthParams(Section):
    """What follows after an iteration in which a rule of the diagnosis is broken, by rule."""

    group_kept: OnHealth = "warn"
    numbers_finite: OnHealth = "stop"
    kl_bounded: OnHealth = "warn"
    clipping_bounded: OnHealth = "warn"
    pass_rate_held: OnHealth = "warn"
    sampling_kl_bounded: OnHealth = "warn"
    logprobs_agree: OnHealth = "warn"
    weights_effective: OnHealth = "warn"
    entropy_held: OnHealth = "warn"
    groups_teach: OnHealth = "warn"
    rewards_below_ceiling: OnHealth = "warn"
    completions_finish: OnHealth = "warn"
    completions_not_empty: OnHealth = "warn"
    completions_not_repetitive: OnHealth = "warn"
    length_steady: OnHealth = "warn"
    kl_keeps_pace: OnHealth = "warn"
    training_moves: OnHealth = "warn"
    length_earns: OnHealth = "warn"
    held_out_follows: OnHealth = "warn"


class ReportParams(Section):
    """What the report shows, the thresholds of the diagnosis, and what follows from it."""

    groups_per_outcome: Positive = 20
    health: HealthParams = HealthParams()
    on_health: OnHealthParams = OnHealthParams()
