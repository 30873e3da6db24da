from __future__ import annotations

import polars as pl
import pytest

from pipeline.health.update_rules import clipping_bounded, entropy_held, kl_bounded
from pipeline.params import HealthParams
from tests.health.planted import a_row, evidence, ids
from tests.iteration_sample import no_group_kept, sample_frames, sample_metrics

LIMITS = HealthParams()


@pytest.mark.parametrize(
    ("kl", "level", "value"), [(0.3, "ok", 0.3), (0.3001, "warn", 0.3001), (float("nan"), "warn", None)]
)
def test_kl_warns_above_its_limit(kl: float, level: str, value: float | None) -> None:
    finding = kl_bounded(evidence(sample_metrics(update={"kl": kl})), LIMITS)
    assert (finding.level, finding.value) == (level, value)


def test_the_steps_with_a_high_kl_are_named_worst_first() -> None:
    step = sample_frames()["train_steps"]
    kls = (0.4, 0.1, 0.6)
    steps = pl.concat([step.with_columns(step=pl.lit(n, pl.UInt32), kl=pl.lit(kl)) for n, kl in enumerate(kls)])
    finding = kl_bounded(evidence(sample_metrics(update={"kl": 0.36}), frames={"train_steps": steps}), LIMITS)
    assert finding.rows is not None
    assert (finding.rows.n, finding.rows.ids) == (2, ("step 2", "step 0"))
    assert finding.rows.query == (
        'rollbook sql "select step, kl from train_steps where iteration = 0 and kl > 0.3 order by kl desc"'
    )


def test_kl_without_a_reference_or_a_step_is_not_judged() -> None:
    no_reference = kl_bounded(evidence(sample_metrics(update={"kl": None})), LIMITS)
    assert no_reference.message == "KL to the reference is not judged: no reference is loaded"
    no_step = kl_bounded(evidence(sample_metrics(**no_group_kept())), LIMITS)
    assert no_step.message == "KL to the reference is not judged: no optimizer step was taken"


@pytest.mark.parametrize(
    ("n_steps", "fraction", "level", "value"),
    [(1, 0.9, "ok", None), (2, 0.31, "warn", 0.31), (2, 0.3, "ok", 0.3), (1, float("inf"), "warn", None)],
)
def test_clipping_is_judged_with_several_steps(n_steps: int, fraction: float, level: str, value: float | None) -> None:
    metrics = sample_metrics(update={"n_steps": n_steps, "clip_fraction": fraction})
    finding = clipping_bounded(evidence(metrics), LIMITS)
    assert (finding.level, finding.value) == (level, value)
    # Both sides of the one step of the tables clip 0.25: 0.5 together.
    assert ids(finding) == (("step 3",) if level == "warn" else ())


@pytest.mark.parametrize(("entropy", "level", "value"), [(0.99, "warn", 0.495), (1.0, "ok", 0.5), (1.4, "ok", 0.7)])
def test_entropy_is_compared_with_the_start_of_the_run(entropy: float, level: str, value: float) -> None:
    # The first iteration took no step; the run's entropy starts at 2.
    history = [a_row(0), a_row(1, entropy=2.0), a_row(2, entropy=0.2)]
    finding = entropy_held(evidence(sample_metrics(update={"entropy": entropy}), history, iteration=3), LIMITS)
    assert (finding.level, finding.value) == (level, pytest.approx(value))
    assert ids(finding) == (("step 3",) if level == "warn" else ())


def test_the_first_iteration_is_the_start() -> None:
    finding = entropy_held(evidence(), LIMITS)
    assert (finding.level, finding.message[-19:]) == ("ok", "the run begins here")
