from __future__ import annotations

import dataclasses
import json
import re

import polars as pl
import pytest

from pipeline.audit.registry import QUESTIONS
from pipeline.health import RULES, Evidence, as_json, diagnose, overall_level
from pipeline.health.trend_rules import held_out_follows, length_earns
from pipeline.history_rows import HistoryRow
from pipeline.params import HealthParams, OnHealthParams, ReportParams
from tests.health.planted import a_row, course, evidence
from tests.iteration_sample import no_group_kept, sample_frames, sample_metrics

PARAMS = ReportParams(health=HealthParams(max_no_signal_fraction=0.7))
"""The sample drops 10 of 16 groups."""


def test_every_rule_has_an_action_and_speaks_under_its_name() -> None:
    names = [rule.__name__ for rule in RULES]
    assert names == list(OnHealthParams.model_fields)
    assert [finding.rule for finding in diagnose(evidence(), PARAMS)] == names


def test_an_ordinary_iteration_is_healthy() -> None:
    findings = diagnose(evidence(), PARAMS)
    assert overall_level(findings) == "ok"
    assert {finding.advice for finding in findings} == {""}


def test_json_counts_the_warnings() -> None:
    findings = diagnose(evidence(sample_metrics(update={"kl": 0.4})), PARAMS)
    value = json.loads(json.dumps(as_json(4, findings), allow_nan=False))
    assert (value["iteration"], value["level"], value["n_warnings"]) == (4, "warn", 1)
    query = 'rollbook sql "select step, kl from train_steps where iteration = 0 and kl > 0.3 order by kl desc"'
    assert value["findings"][2] == {
        "rule": "kl_bounded",
        "level": "warn",
        "value": 0.4,
        "threshold": 0.3,
        "message": "KL to the reference is 0.4, above 0.3",
        "advice": "Lower training.learning_rate, or raise training.kl_coefficient",
        "action": "warn",
        "rows": {"query": query, "n": 0, "ids": []},  # the one step of the tables has 0.25
    }


def test_what_follows_from_a_broken_rule_is_the_params_to_say() -> None:
    actions = OnHealthParams(kl_bounded="stop", group_kept="ignore", groups_teach="watch", completions_finish="watch")
    params = ReportParams(on_health=actions)
    metrics = sample_metrics(**no_group_kept(), rollout={"truncated_fraction": 0.5})
    findings = diagnose(evidence(metrics), params)
    assert [(one.rule, one.level, one.counts) for one in findings if one.level != "ok"] == [
        ("group_kept", "warn", False),
        ("completions_finish", "watch", False),
    ]
    assert as_json(4, findings)["n_warnings"] == 0
    assert overall_level(findings) == "watch"
    broken = diagnose(evidence(sample_metrics(update={"kl": 0.4})), params)
    (warned,) = (finding for finding in broken if finding.level == "warn")
    assert (warned.rule, warned.action, warned.counts) == ("kl_bounded", "stop", True)
    assert overall_level(broken) == "warn"


def test_an_iteration_without_a_step_warns_only_of_that() -> None:
    findings = diagnose(evidence(sample_metrics(**no_group_kept())), ReportParams())
    assert [finding.rule for finding in findings if finding.level == "warn"] == ["group_kept"]


def test_pass_rate_is_compared_with_the_iteration_before() -> None:
    metrics = sample_metrics(score={"pass_rate": 0.3})
    rows = [a_row(0, pass_rate=0.9), a_row(1, pass_rate=0.4), a_row(2, pass_rate=0.9)]

    def said(iteration: int, history: list[HistoryRow]) -> str:
        findings = diagnose(evidence(metrics, history, iteration=iteration), PARAMS)
        return next(finding.message for finding in findings if finding.rule == "pass_rate_held")

    assert said(2, rows) == "pass rate went from 0.4 to 0.3"  # the row of this iteration is left alone
    assert "no earlier pass rate" in said(0, rows)


def broken_in_every_way() -> Evidence:
    """Of ten iterations the last, in which most rules are broken."""
    frames = sample_frames(9)
    spam = frames["rollouts"].with_columns(completion_text=pl.lit("It is four. " * 30), finish_reason=pl.lit("length"))
    frames["rollouts"] = spam.cast({"finish_reason": frames["rollouts"].schema["finish_reason"]})
    frames["rewards"] = frames["rewards"].with_columns(reward=pl.lit(1.0))
    update = {"kl": 2.0, "clip_fraction": 0.5, "n_steps": 2, "sampling_kl": 0.5, "entropy": 0.1}
    metrics = sample_metrics(update=update, rollout={"truncated_fraction": 1.0, "completion_tokens_mean": 90.0})
    history = [a_row(k, pass_rate=0.9, kl=0.1, entropy=2.0, completion_tokens_mean=10.0) for k in range(9)]
    return evidence(metrics, history, frames, 9)


def test_each_query_in_sql_finds_the_rows_that_are_named() -> None:
    given = broken_in_every_way()
    findings = [one for one in diagnose(given, ReportParams()) if one.level != "ok"]
    assert len(findings) >= 9
    n_asked = 0
    for finding in findings:
        assert finding.rows is not None, finding.rule
        assert finding.rows.query.startswith("rollbook "), finding.rule
        if finding.rows.query.startswith('rollbook sql "'):
            query = finding.rows.query.removeprefix('rollbook sql "').removesuffix('"')
            found = pl.SQLContext(dict(given.tables)).execute(query).collect().to_series(0)
            assert found.len() == finding.rows.n, finding.rule
            assert [str(value) for value in found.head(5)] == [name.split()[-1] for name in finding.rows.ids]
            n_asked += 1
    assert n_asked >= 6


def test_the_questions_that_are_named_exist() -> None:
    limits = HealthParams()
    worse = course(eval_pass_at_1=[0.5] * 5 + [0.4] * 5, pass_rate=[0.4] * 5 + [0.5] * 5)
    longer = course(completion_tokens_mean=[9.0] * 5 + [20.0] * 5, pass_rate=[0.4] * 10)
    findings = [*diagnose(broken_in_every_way(), ReportParams()), held_out_follows(worse, limits)]
    queries = [one.rows.query for one in [*findings, length_earns(longer, limits)] if one.rows]
    asked = [re.sub("--iterations [^ ]+ ", "", query).split()[2] for query in queries if " audit " in query]
    assert set(asked) == {"token_mismatch", "repetition", "held_out", "length"}
    assert set(asked) <= QUESTIONS.keys()


def test_rows_of_other_iterations_are_not_looked_at() -> None:
    given = evidence(history=[a_row(5, pass_rate=1.0)], iteration=3)
    (finding,) = (one for one in diagnose(given, PARAMS) if one.rule == "pass_rate_held")
    assert finding.value is None
    assert dataclasses.replace(given, history=[]).history == []


@pytest.mark.parametrize("name", list(OnHealthParams.model_fields))
def test_each_rule_can_be_watched(name: str) -> None:
    findings = diagnose(broken_in_every_way(), ReportParams(on_health=OnHealthParams.model_validate({name: "watch"})))
    assert {one.level for one in findings if one.rule == name} <= {"ok", "watch"}
