from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.health import (
    Finding,
    as_json,
    clipping_bounded,
    diagnose,
    group_kept,
    kl_bounded,
    numbers_finite,
    overall_level,
    pass_rate_held,
)
from pipeline.history_rows import COLUMNS, HistoryRow
from pipeline.params import OnHealthParams, ReportParams
from tests.iteration_sample import no_group_kept, sample_metrics


def a_row(iteration: int, pass_rate: float | None) -> HistoryRow:
    return {**dict.fromkeys(COLUMNS), "iteration": iteration, "pass_rate": pass_rate}


def test_an_ordinary_iteration_is_healthy() -> None:
    findings = diagnose(0, sample_metrics(), [], ReportParams())
    assert [finding.rule for finding in findings] == [
        "group_kept",
        "numbers_finite",
        "kl_bounded",
        "clipping_bounded",
        "pass_rate_held",
    ]
    assert overall_level(findings) == "ok"
    assert [finding.advice for finding in findings] == [""] * 5


def test_groups_that_are_kept_and_all_masked_warn() -> None:
    finding = group_kept(sample_metrics(update={"n_steps": 0}))
    assert finding.level == "warn"
    assert "all their completions are cut off" in finding.message
    assert "training.mask_truncated" in finding.advice


def test_json_counts_the_warnings() -> None:
    findings = diagnose(4, sample_metrics(update={"kl": 0.4}), [], ReportParams())
    value = json.loads(json.dumps(as_json(4, findings), allow_nan=False))
    assert (value["iteration"], value["level"], value["n_warnings"]) == (4, "warn", 1)
    assert value["findings"][2] == {
        "rule": "kl_bounded",
        "level": "warn",
        "value": 0.4,
        "threshold": 0.3,
        "message": "KL to the reference is 0.4, above 0.3",
        "advice": "Lower training.learning_rate, or raise training.kl_coefficient",
        "action": "warn",
    }


def test_what_follows_from_a_broken_rule_is_the_params_to_say() -> None:
    params = ReportParams(on_health=OnHealthParams(kl_bounded="stop", group_kept="ignore"))
    findings = diagnose(4, sample_metrics(**no_group_kept()), [], params)
    assert [(one.rule, one.action, one.counts) for one in findings[:3]] == [
        ("group_kept", "ignore", False),
        ("numbers_finite", "stop", False),
        ("kl_bounded", "stop", False),
    ]
    assert as_json(4, findings)["n_warnings"] == 0
    assert overall_level(findings) == "ok"
    broken = diagnose(4, sample_metrics(update={"kl": 0.4}), [], params)
    assert [(one.rule, one.counts) for one in broken if one.level == "warn"] == [("kl_bounded", True)]


def test_no_group_kept_warns_and_advises_by_the_commonest_outcome() -> None:
    finding = group_kept(sample_metrics(**no_group_kept()))
    assert (finding.level, finding.value, finding.threshold) == ("warn", 0, 1)
    assert finding.message == "none of the 16 groups is kept, so the policy is unchanged; most are all_wrong"
    assert finding.advice.startswith("Give it easier prompts or a larger rollout.group_size")


def test_an_iteration_without_a_step_warns_only_of_that() -> None:
    findings = diagnose(2, sample_metrics(**no_group_kept()), [], ReportParams())
    assert [finding.rule for finding in findings if finding.level == "warn"] == ["group_kept"]
    assert findings[2].message == "KL to the reference is not judged: no optimizer step was taken"


@pytest.mark.parametrize(
    ("kl", "level", "value"), [(0.3, "ok", 0.3), (0.3001, "warn", 0.3001), (float("nan"), "warn", None)]
)
def test_kl_warns_above_its_limit(kl: float, level: str, value: float | None) -> None:
    finding = kl_bounded(sample_metrics(update={"kl": kl}), 0.3)
    assert (finding.level, finding.value) == (level, value)


def test_kl_without_a_reference_is_not_judged() -> None:
    metrics = sample_metrics(update={"kl": None})
    assert kl_bounded(metrics, 0.3).message == "KL to the reference is not judged: no reference is loaded"
    assert numbers_finite(metrics).level == "ok"


@pytest.mark.parametrize(
    ("n_steps", "fraction", "level", "value"),
    [(1, 0.9, "ok", None), (2, 0.9, "warn", 0.9), (2, 0.3, "ok", 0.3), (1, float("inf"), "warn", None)],
)
def test_clipping_is_judged_with_several_steps(n_steps: int, fraction: float, level: str, value: float | None) -> None:
    finding = clipping_bounded(sample_metrics(update={"n_steps": n_steps, "clip_fraction": fraction}), 0.3)
    assert (finding.level, finding.value) == (level, value)


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
    finding = pass_rate_held(sample_metrics(score={"pass_rate": now}), a_row(2, then), 0.5)
    assert finding.level == level
    assert finding.value == (None if drop is None else pytest.approx(drop))


def test_pass_rate_is_compared_with_the_iteration_before() -> None:
    metrics = sample_metrics(score={"pass_rate": 0.3})
    history = [a_row(0, 0.9), a_row(1, 0.4), a_row(2, 0.9)]  # the row of this iteration is left alone
    assert diagnose(2, metrics, history, ReportParams())[-1].message == "pass rate went from 0.4 to 0.3"
    assert "no earlier pass rate" in diagnose(0, metrics, history, ReportParams())[-1].message


def test_a_pass_rate_that_stays_is_never_a_fall() -> None:
    assert pass_rate_held(sample_metrics(), a_row(0, 0.3125), max_drop=0.0).level == "ok"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"update": {"grad_norm": float("nan")}}, "update.grad_norm"),
        ({"update": {"entropy": None}}, "update.entropy"),
        ({"rollout": {"sampling_logprob_mean": float("-inf")}}, "rollout.sampling_logprob_mean"),
        ({"score": {"reward_mean": None}}, "score.reward_mean"),
        ({"score": {"pass_rate": None}}, "score.pass_rate"),
        ({"score": {"pass_rate": None}, "filter": {"outcomes": {"unscorable": 16}}}, "score.pass_rate"),
        ({"score": {"pass_rate": None}, "filter": {"outcomes": {"unverified": 13, "mixed": 3}}}, "score.pass_rate"),
        ({"score": {"term_means": {"correct": float("nan")}}}, "score.term_means.correct"),
        ({"evaluate": {"after": None}}, "evaluate.after"),
        ({"evaluate": {"after": {"pass_at_1": None}}}, "evaluate.after.pass_at_1"),
        ({"evaluate": {"before": {"pass_at_k": {"4": float("nan")}}}}, "evaluate.before.pass_at_k.4"),
    ],
)
def test_a_number_that_is_not_there_warns(changes: dict[str, Any], named: str) -> None:
    finding = numbers_finite(sample_metrics(**changes))
    assert (finding.level, finding.value) == ("warn", 1)
    assert finding.message == f"not a finite number, or null where one is due: {named}"


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluate": {"is_scheduled": False, "before": None, "after": None}},
        {"evaluate": {"before": None}},
        {"score": {"pass_rate": None}, "filter": {"outcomes": {"mixed": 0, "unverified": 16}}},
        {"score": {"pass_rate": None}, "filter": {"outcomes": {"unverified": 13, "unscorable": 3}}},
        no_group_kept(),
    ],
)
def test_a_number_that_an_iteration_does_not_have_is_fine(changes: dict[str, Any]) -> None:
    assert numbers_finite(sample_metrics(**changes)) == Finding(
        "numbers_finite", "ok", 0, 0, "every number is finite, and none is missing"
    )


def test_many_bad_numbers_are_counted_and_five_named() -> None:
    bad = dict.fromkeys(("loss", "policy_loss", "entropy", "ratio_max", "sampling_kl", "grad_norm", "learning_rate"))
    finding = numbers_finite(sample_metrics(update=bad))
    assert finding.value == 7
    assert finding.message.endswith("update.sampling_kl and 2 more")
