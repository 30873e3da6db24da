"""The page of one iteration: tables and metrics in, HTML out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
from markupsafe import Markup

from pipeline.health import Finding, overall_level
from pipeline.health.evidence import sql_command
from pipeline.history_rows import HistoryRow, row_before
from pipeline.metrics import STAGES_BEFORE_REPORT, Metrics
from pipeline.report import charts
from pipeline.report.choice import Tables, choose_groups
from pipeline.report.embedding import embed_groups
from pipeline.report.template import make_browser, render
from pipeline.summary import facts, percent, why_no_evaluation, why_no_step
from pipeline.tables import TRAIN_STEPS, Outcome

MAX_STEPS = 40
"""How many optimizer steps the page lists."""


@dataclass(frozen=True)
class ReportInput:
    """What the page is made of.

    `history` has a row per iteration, and ends with the row of this one. `tables` maps names to lazy frames: prompts,
    selection, rollouts, rewards, advantages, groups, train_steps and eval, of which rollouts has `n_tokens` in place
    of the token ids and log-probabilities.
    """

    iteration: int
    parent: str | None
    metrics: Metrics
    history: list[HistoryRow]
    findings: list[Finding]
    tables: Tables
    groups_per_outcome: int


def render_report(given: ReportInput) -> str:
    """The page as HTML, complete in itself: style, charts, data and script inside, nothing to load."""
    metrics = given.metrics
    values = {
        "given": given,
        "metrics": metrics,
        "level": overall_level(given.findings),
        "verdict": verdict(given.findings),
        "facts": facts({**metrics, "report": given.history[-1]}),
        "curves": draw_curves(given.history),
        "outcome_rows": _outcome_rows(given.tables["groups"]),
        "reward_chart": charts.reward_chart(given.tables["rewards"]),
        "length_chart": charts.length_chart(given.tables["rollouts"]),
        "evaluation_rows": _evaluation_rows(given),
        "flips": _flips(given.tables["eval"]),
        "steps": _steps(given.tables["train_steps"]),
        "why_no_step": why_no_step(metrics),
        "stages": _stage_rows(metrics),
    }
    named = {"that a rule names": groups_named(given.findings)}
    choice = choose_groups(given.tables, given.groups_per_outcome, last=named)
    groups = embed_groups(given.tables, choice.group_ids)
    rest = sql_command(f"select * from rollouts where iteration = {given.iteration}")
    return render("iteration.html.j2", make_browser(choice, groups, rest), values)


def verdict(findings: list[Finding]) -> str:
    """The diagnosis in a line.

    >>> verdict([Finding("kl_bounded", "warn", 0.5, 0.3, "KL is 0.5"), Finding("group_kept", "ok", 3, 1, "3 kept")])
    '1 of 2 rules warns'
    """
    n_warned = sum(finding.counts for finding in findings)
    n_watched = sum(finding.level == "watch" for finding in findings)
    watched = f", {n_watched} to watch" if n_watched else ""
    if n_warned == 0:
        return f"Healthy: no rule warns{watched}"
    return f"{n_warned} of {len(findings)} rules {'warns' if n_warned == 1 else 'warn'}{watched}"


def groups_named(findings: list[Finding]) -> list[str]:
    """The groups that the findings name, or whose completions they do."""
    ids = [row for finding in findings if finding.rows for row in finding.rows.ids]
    return ["/".join(row.split("/")[:2]) for row in ids if row.count("/") in (1, 2)]


def draw_curves(history: list[HistoryRow]) -> dict[str, Markup]:
    """Charts over the iterations by title, where there is more than one iteration."""
    if len(history) < 2:
        return {}
    band = ("eval_pass_at_1_low", "eval_pass_at_1_high")
    pass_rates = {"pass_rate": "in training", "eval_pass_at_1": "held-out, 95% interval"}
    outcomes = {"n_kept": "kept", "n_all_correct": "all correct", "n_all_wrong": "all wrong"}
    if any(row["n_surplus"] for row in history):
        outcomes["n_surplus"] = "surplus"
    drawn = {
        "Pass rate": charts.curve_chart(history, pass_rates, band),
        "Reward": charts.curve_chart(history, {"reward_mean": "mean reward"}),
        "KL to the reference": charts.curve_chart(history, {"kl": "nats per token"}),
        "Groups": charts.curve_chart(
            history, outcomes, colors=("var(--accent)", "var(--good)", "var(--bad)", "var(--second)")
        ),
        "Entropy": charts.curve_chart(history, {"entropy": "nats per token"}),
        "Clip fraction": charts.curve_chart(history, {"clip_fraction": "fraction"}),
        "Completion tokens": charts.curve_chart(history, {"completion_tokens_mean": "mean"}),
        "Fraction cut off": charts.curve_chart(history, {"truncated_fraction": "fraction"}),
        "Gradient norm": charts.curve_chart(history, {"grad_norm": "norm"}),
    }
    return {title: chart for title, chart in drawn.items() if chart is not None}


def _outcome_rows(groups: pl.LazyFrame) -> list[dict[str, Any]]:
    """Per outcome that occurs: `n` groups, their `share`, how many are `kept`, and the `reasons` with their counts."""
    counts = groups.group_by("outcome", "kept", "reason").agg(n=pl.len()).sort("n", "reason", descending=[True, False])
    rows = counts.collect().rows(named=True)
    n_groups = sum(row["n"] for row in rows)
    found = []
    for outcome in Outcome.categories:
        own = [row for row in rows if row["outcome"] == outcome]
        if own:
            n = sum(row["n"] for row in own)
            n_kept = sum(row["n"] for row in own if row["kept"])
            found.append({"outcome": outcome, "n": n, "share": n / n_groups, "kept": n_kept, "reasons": own})
    return found


def _evaluation_rows(given: ReportInput) -> list[dict[str, Any]]:
    """Per policy its measurement, or in words why there is none; for `before` the parent's `after` serves."""
    rows = []
    for policy in ("before", "after"):
        measured = given.metrics["evaluate"][policy]
        rows.append({"policy": policy, "measured": measured, "why": why_no_evaluation(given.metrics, policy)})
    parent = row_before(given.history, given.iteration)
    if rows[0]["measured"] is None and parent is not None and parent["eval_pass_at_1"] is not None:
        rows[0]["why"] = f"{percent(parent['eval_pass_at_1'])} after iteration {parent['iteration']}, measured there"
    return rows


def _flips(evaluated: pl.LazyFrame) -> dict[str, int] | None:
    """How many prompts the policy after answers more and less often than the one before; None without both."""
    rates = evaluated.group_by("prompt_id", "policy").agg(rate=pl.col("is_correct").mean()).drop_nulls().collect()
    before, after = (rates.filter(pl.col("policy") == policy) for policy in ("before", "after"))
    both = before.join(after, "prompt_id", suffix="_after")
    if both.height == 0:
        return None
    change = both["rate_after"] - both["rate"]
    return {"n": both.height, "more": int((change > 0).sum()), "less": int((change < 0).sum())}


def _steps(train_steps: pl.LazyFrame) -> dict[str, Any]:
    """The optimizer steps of the iteration: the columns, the rows shown, how many there are."""
    columns = [name for name in TRAIN_STEPS.schema if name != "iteration"]
    rows = train_steps.select(columns).sort("step").collect()
    return {"columns": columns, "rows": rows.head(MAX_STEPS).rows(named=True), "n": rows.height}


def _stage_rows(metrics: Metrics) -> list[dict[str, Any]]:
    """Seconds and peak memory of the stages before this one, with the share of the time."""
    total = sum(metrics[stage]["seconds"] for stage in STAGES_BEFORE_REPORT) or 1.0
    return [
        {
            "stage": stage,
            "seconds": metrics[stage]["seconds"],
            "share": metrics[stage]["seconds"] / total,
            "peak_memory_mb": metrics[stage]["peak_memory_mb"],
            "tokens_per_second": metrics[stage].get("tokens_per_second"),
        }
        for stage in STAGES_BEFORE_REPORT
    ]
