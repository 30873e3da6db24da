from __future__ import annotations

import polars as pl
import pytest

from pipeline.health.group_rules import group_kept, groups_teach, pass_rate_held, rewards_below_ceiling
from pipeline.params import HealthParams
from tests.health.planted import a_row, evidence, ids
from tests.iteration_sample import no_group_kept, sample_frames, sample_metrics

LIMITS = HealthParams()


def test_groups_that_are_kept_and_all_masked_warn() -> None:
    finding = group_kept(evidence(sample_metrics(update={"n_steps": 0})), LIMITS)
    assert finding.level == "warn"
    assert "all their completions are cut off" in finding.message
    assert "training.mask_truncated" in finding.advice


def test_no_group_kept_warns_and_advises_by_the_commonest_outcome() -> None:
    frames = sample_frames(outcomes=["all_wrong"] * 16)
    finding = group_kept(evidence(sample_metrics(**no_group_kept()), frames=frames), LIMITS)
    assert (finding.level, finding.value, finding.threshold) == ("warn", 0, 1)
    assert finding.message == "none of the 16 groups is kept, so the policy is unchanged; most are all_wrong"
    assert finding.advice.startswith("Give it easier prompts or a larger rollout.group_size")
    assert finding.rows is not None
    assert (finding.rows.n, finding.rows.ids[0]) == (16, "0000/0000000000000000")


@pytest.mark.parametrize(("n_kept", "level", "value"), [(8, "ok", 0.5), (7, "warn", 0.5625)])
def test_more_than_half_of_the_groups_without_a_signal_warn(n_kept: int, level: str, value: float) -> None:
    outcomes = {"all_correct": 2, "all_wrong": 14 - n_kept, "mixed": n_kept}
    finding = groups_teach(evidence(sample_metrics(filter={"n_kept": n_kept, "outcomes": outcomes})), LIMITS)
    assert (finding.level, finding.value) == (level, value)  # 1 - 8 / 16, 1 - 7 / 16
    # The tables of the sample drop 7 + 2 + 1 groups, from the seventh on.
    assert ids(finding)[:1] == (("0000/0000000000000006",) if level == "warn" else ())
    assert finding.advice == ("" if level == "ok" else finding.advice)


def test_surplus_groups_teach_and_are_not_listed() -> None:
    outcomes = {"all_correct": 2, "all_wrong": 3, "mixed": 11}
    counts = {"n_kept": 4, "n_surplus": 7, "outcomes": outcomes}
    finding = groups_teach(evidence(sample_metrics(filter=counts)), LIMITS)
    assert (finding.level, finding.value) == ("ok", 0.3125)  # 1 - (4 + 7) / 16
    kept = group_kept(evidence(sample_metrics(filter=counts)), LIMITS)
    assert kept.message == "4 of 16 groups are kept, and 7 more were not needed"
    frames = sample_frames()
    surplus = pl.when(pl.int_range(pl.len()) == 6).then(pl.lit("surplus: 6 kept before it")).otherwise("reason")
    frames["groups"] = frames["groups"].with_columns(reason=surplus)
    warned = groups_teach(evidence(sample_metrics(filter={"n_surplus": 1}), frames=frames), LIMITS)
    assert (warned.level, warned.value) == ("warn", 0.5625)  # 1 - (6 + 1) / 16
    assert ids(warned)[0] == "0000/0000000000000007"  # the one before it is surplus


def test_groups_that_teach_nothing_are_explained_by_their_commonest_outcome() -> None:
    outcomes = {"all_correct": 12, "all_wrong": 1, "mixed": 3}
    finding = groups_teach(evidence(sample_metrics(filter={"n_kept": 3, "outcomes": outcomes})), LIMITS)
    assert finding.advice == "Give it harder prompts"


@pytest.mark.parametrize(("n_top", "level"), [(8, "ok"), (9, "warn")])
def test_more_than_eighty_percent_of_rewards_at_the_highest_warn(n_top: int, level: str) -> None:
    rewards = sample_frames()["rewards"].head(10)
    planted = rewards.with_columns(reward=pl.Series([1.0] * n_top + [0.5] * (10 - n_top)))
    finding = rewards_below_ceiling(evidence(frames={"rewards": planted}), LIMITS)
    assert (finding.level, finding.value) == (level, n_top / 10)
    assert finding.rows is not None
    assert finding.rows.n == (9 if level == "warn" else 0)


@pytest.mark.parametrize("reward", [0.0, -1.0, None])
def test_rewards_that_are_all_at_the_floor_are_no_ceiling(reward: float | None) -> None:
    rewards = sample_frames()["rewards"].with_columns(reward=pl.lit(reward, pl.Float64))
    assert rewards_below_ceiling(evidence(frames={"rewards": rewards}), LIMITS).level == "ok"


@pytest.mark.parametrize(
    ("then", "now", "level", "drop"),
    [
        (0.4, 0.2, "warn", 0.5),  # 1 - 0.2 / 0.4
        (0.3, 0.15, "warn", 0.5),  # 1 - 0.15 / 0.3
        (0.8, 0.5, "ok", 0.375),  # 1 - 0.5 / 0.8
        (0.2, 0.0, "warn", 1.0),
        (0.2, 0.6, "ok", 0.0),
        (0.0, 0.0, "ok", None),
        (None, 0.5, "ok", None),
        (0.5, None, "ok", None),
    ],
)
def test_pass_rate_warns_when_half_of_it_is_lost(
    then: float | None, now: float | None, level: str, drop: float | None
) -> None:
    given = evidence(sample_metrics(score={"pass_rate": now}), [a_row(0, pass_rate=then)], iteration=1)
    finding = pass_rate_held(given, LIMITS)
    assert finding.level == level
    assert finding.value == (None if drop is None else pytest.approx(drop))
    # Of the sample's groups the seventh to the thirteenth are all wrong, and the last has one that is scored.
    assert finding.rows is not None
    assert finding.rows.n == (8 if level == "warn" else 0)


def test_a_pass_rate_that_stays_is_never_a_fall() -> None:
    given = evidence(history=[a_row(0, pass_rate=0.3125)], iteration=1)
    assert pass_rate_held(given, LIMITS.model_copy(update={"max_pass_rate_drop": 0.0})).level == "ok"
