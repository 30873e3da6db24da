from __future__ import annotations

import pytest

from pipeline.health import Finding
from pipeline.health.diagnosis import Rule
from pipeline.health.trend_rules import held_out_follows, kl_keeps_pace, length_earns, length_steady, training_moves
from pipeline.params import HealthParams
from tests.health.planted import course, evidence, ids

LIMITS = HealthParams()


def spoken(rule: Rule, **columns: list[float]) -> tuple[str, float | None]:
    finding = rule(course(**columns), LIMITS)
    return finding.level, finding.value


@pytest.mark.parametrize(("length", "level"), [(114.5, "ok"), (115.5, "warn"), (84.0, "warn")])
def test_a_mean_length_far_from_the_early_ones_warns(length: float, level: str) -> None:
    # Early mean 100 and standard deviation sqrt((64 + 16 + 0 + 16 + 64) / 4) = 6.32, but at least a tenth: 10.
    early = [92.0, 96.0, 100.0, 104.0, 108.0]
    wide = HealthParams(max_length_drift=1.5)
    finding = length_steady(course(completion_tokens_mean=[*early, length]), wide)
    assert (finding.level, finding.value) == (level, pytest.approx(abs(length - 100) / 10))


def test_a_spread_of_more_than_a_tenth_is_the_measure() -> None:
    # Standard deviation sqrt((1600 + 400 + 0 + 400 + 1600) / 4) = 31.6, three of them are 94.9.
    early = [60.0, 80.0, 100.0, 120.0, 140.0]
    assert spoken(length_steady, completion_tokens_mean=[*early, 194.0])[0] == "ok"
    assert spoken(length_steady, completion_tokens_mean=[*early, 196.0])[0] == "warn"


def test_early_iterations_are_not_compared_with_themselves() -> None:
    assert spoken(length_steady, completion_tokens_mean=[10.0, 10.0, 10.0, 10.0, 90.0]) == ("ok", None)


@pytest.mark.parametrize(
    ("kl", "passed", "level"),
    [
        ([0.1, 0.21], [0.3, 0.36], "warn"),  # 2.1 times as much, past half of 0.3, and 0.06 more correct
        ([0.1, 0.19], [0.3, 0.36], "ok"),  # 1.9 times
        ([0.06, 0.14], [0.3, 0.36], "ok"),  # below half of max_kl
        ([0.1, 0.21], [0.3, 0.34], "ok"),  # 0.04 more correct is no rise
    ],
)
def test_a_kl_that_jumps_while_the_pass_rate_rises_is_drift(kl: list[float], passed: list[float], level: str) -> None:
    columns = {"kl": windows(kl), "pass_rate": windows(passed)}
    found, value = spoken(kl_keeps_pace, **columns)
    assert (found, value) == (level, pytest.approx(kl[1] / kl[0]))


@pytest.mark.parametrize(
    ("kl", "passed", "level"),
    [
        ([0.1, 0.109], [0.3, 0.34], "warn"),  # 9% more KL, 0.04 more correct
        ([0.1, 0.111], [0.3, 0.34], "ok"),  # 11% more KL: it moves
        ([0.1, 0.109], [0.3, 0.36], "ok"),  # the pass rate moves
        ([0.1, 0.109], [0.84, 0.84], "ok"),  # nothing left to learn
    ],
)
def test_neither_kl_nor_pass_rate_moving_is_stuck(kl: list[float], passed: list[float], level: str) -> None:
    found, value = spoken(training_moves, kl=windows(kl), pass_rate=windows(passed))
    assert (found, value) == (level, pytest.approx(kl[1] / kl[0] - 1))


@pytest.mark.parametrize(
    ("length", "passed", "level"),
    [
        ([100.0, 121.0], [0.3, 0.34], "warn"),  # 21% longer
        ([100.0, 119.0], [0.3, 0.34], "ok"),
        ([100.0, 121.0], [0.3, 0.36], "ok"),  # and better for it
    ],
)
def test_length_that_rises_without_the_pass_rate_pays_for_words(
    length: list[float], passed: list[float], level: str
) -> None:
    found, value = spoken(length_earns, completion_tokens_mean=windows(length), pass_rate=windows(passed))
    assert (found, value) == (level, pytest.approx(length[1] / 100 - 1))


@pytest.mark.parametrize(
    ("held_out", "passed", "level"),
    [
        ([0.5, 0.44], [0.4, 0.5], "warn"),  # falls by 0.06
        ([0.5, 0.46], [0.4, 0.5], "ok"),  # falls by 0.04
        ([0.5, 0.44], [0.5, 0.4], "ok"),  # both fall: no hack, but trouble that other rules see
    ],
)
def test_held_out_falling_while_training_rises_is_likely_a_hack(
    held_out: list[float], passed: list[float], level: str
) -> None:
    every_iteration = held_out_follows(course(eval_pass_at_1=windows(held_out), pass_rate=windows(passed)), LIMITS)
    seldom = [None] * 4 + held_out[:1] + [None] * 4 + held_out[1:]
    now_and_then = held_out_follows(course(eval_pass_at_1=seldom, pass_rate=windows(passed)), LIMITS)
    assert (every_iteration.level, now_and_then.level) == (level, level)
    assert [every_iteration.value, now_and_then.value] == pytest.approx([held_out[0] - held_out[1]] * 2)


def test_held_out_is_judged_where_it_was_measured() -> None:
    seldom = [None] * 4 + [0.5, 0.4] + [None] * 4
    given = course(eval_pass_at_1=seldom, pass_rate=windows([0.4, 0.5]))
    assert "none is measured here" in held_out_follows(given, LIMITS).message


def windows(means: list[float]) -> list[float]:
    """Ten iterations, five with each mean."""
    return [mean for mean in means for _ in range(5)]


@pytest.mark.parametrize("rule", [length_steady, kl_keeps_pace, training_moves, length_earns, held_out_follows])
def test_a_run_that_just_began_has_no_trend(rule: Rule) -> None:
    finding = rule(evidence(), LIMITS)
    assert (finding.level, finding.value) == ("ok", None)
    assert "compared" in finding.message


def test_the_iterations_behind_a_trend_are_named() -> None:
    finding: Finding = kl_keeps_pace(course(kl=windows([0.1, 0.3]), pass_rate=windows([0.3, 0.6])), LIMITS)
    assert ids(finding) == tuple(f"iteration {k}" for k in range(5, 10))
    assert finding.rows is not None
    assert finding.rows.query.startswith('rollbook sql --iterations 0..9 "select iteration, avg(kl) as kl')
