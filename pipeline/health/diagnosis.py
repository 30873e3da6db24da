"""All rules, and what follows from them.

A rule that is broken warns. What follows is up to params.yaml (`report.on_health`): training stops, goes on, the rule
is only watched, or doesn't even count. A number that an iteration doesn't have (no optimizer step, no reference, no
earlier iteration) is no warning; the message says why it isn't there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pipeline.health import completion_rules, group_rules, mismatch_rules, number_rules, trend_rules, update_rules
from pipeline.health.evidence import Evidence
from pipeline.health.finding import LEVELS, Finding, Level
from pipeline.params import HealthParams, OnHealth, ReportParams

Rule = Callable[[Evidence, HealthParams], Finding]

RULES: tuple[Rule, ...] = (
    group_rules.group_kept,
    number_rules.numbers_finite,
    update_rules.kl_bounded,
    update_rules.clipping_bounded,
    group_rules.pass_rate_held,
    mismatch_rules.sampling_kl_bounded,
    mismatch_rules.logprobs_agree,
    mismatch_rules.weights_effective,
    update_rules.entropy_held,
    group_rules.groups_teach,
    group_rules.rewards_below_ceiling,
    completion_rules.completions_finish,
    completion_rules.completions_not_empty,
    completion_rules.completions_not_repetitive,
    trend_rules.length_steady,
    trend_rules.kl_keeps_pace,
    trend_rules.training_moves,
    trend_rules.length_earns,
    trend_rules.held_out_follows,
)
"""Each is called after its rule, the name in `report.on_health`."""


def diagnose(evidence: Evidence, params: ReportParams) -> list[Finding]:
    """One finding per rule, in the order of the rules.

    Rows of history of the same or a later iteration are not looked at.
    """
    before = [row for row in evidence.history if (row["iteration"] or 0) < evidence.iteration]
    judged = dataclasses.replace(evidence, history=before)
    actions: dict[str, OnHealth] = params.on_health.model_dump()
    return [_followed_by(rule(judged, params.health), actions[rule.__name__]) for rule in RULES]


def _followed_by(finding: Finding, action: OnHealth) -> Finding:
    level: Level = "watch" if finding.level == "warn" and action == "watch" else finding.level
    return dataclasses.replace(finding, level=level, action=action)


def overall_level(findings: list[Finding]) -> Level:
    """The worst level among the `findings` that params.yaml doesn't ignore."""
    levels = [finding.level for finding in findings if finding.action != "ignore"]
    return max(levels, key=LEVELS.index, default="ok")


def as_json(iteration: int, findings: list[Finding]) -> dict[str, Any]:
    """What `data/health.json` holds."""
    return {
        "iteration": iteration,
        "level": overall_level(findings),
        "n_warnings": sum(finding.counts for finding in findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
