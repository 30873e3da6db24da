from __future__ import annotations

from typing import Any

import pytest

from pipeline.health import Finding
from pipeline.health.number_rules import numbers_finite as judge_numbers
from pipeline.params import HealthParams
from tests.health.planted import evidence
from tests.iteration_sample import no_group_kept, sample_metrics


def numbers_finite(metrics: dict[str, dict[str, Any]]) -> Finding:
    return judge_numbers(evidence(metrics), HealthParams())


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
        {"score": {"term_means": {"correct": 0.5, "optional": None}}},
        {"filter": {"target_groups": None, "n_missing": None}},
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
    assert finding.rows is not None
    assert (finding.rows.n, len(finding.rows.ids)) == (7, 5)
    assert finding.rows.query == "cat data/metrics/update.json"
