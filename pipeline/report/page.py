"""The page of one iteration: tables and metrics in, HTML out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from pipeline.health import Finding, overall_level
from pipeline.history_rows import HistoryRow, row_before
from pipeline.metrics import STAGES_BEFORE_REPORT, Metrics
from pipeline.report import charts, text
from pipeline.report.groups import Tables, view_outcomes
from pipeline.summary import decimal, facts, interval, percent, signed, why_no_evaluation, why_no_step
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
    """The page as HTML, complete in itself: style and charts inside, no script, nothing to load."""
    metrics = given.metrics
    return _template().render(
        given=given,
        metrics=metrics,
        level=overall_level(given.findings),
        facts=facts({**metrics, "report": given.history[-1]}),
        curves=_curves(given.history),
        outcome_rows=_outcome_rows(given.tables["groups"]),
        reward_chart=charts.reward_chart(given.tables["rewards"]),
        length_chart=charts.length_chart(given.tables["rollouts"]),
        evaluation_rows=_evaluation_rows(given),
        flips=_flips(given.tables["eval"]),
        steps=_steps(given.tables["train_steps"]),
        why_no_step=why_no_step(metrics),
        stages=_stage_rows(metrics),
        outcomes=view_outcomes(given.tables, given.groups_per_outcome),
    )


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("pipeline.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        inert=text.inert,
        preview=text.preview,
        heading=text.heading,
        decimal=decimal,
        percent=percent,
        signed=signed,
        interval=interval,
    )
    environment.tests["long"] = text.is_long
    return environment.get_template("page.html.j2")


def _curves(history: list[HistoryRow]) -> dict[str, Markup]:
    """Charts over the iterations by title, where there is more than one iteration."""
    if len(history) < 2:
        return {}
    band = ("eval_pass_at_1_low", "eval_pass_at_1_high")
    pass_rates = {"pass_rate": "in training", "eval_pass_at_1": "held-out, 95% interval"}
    drawn = {
        "Pass rate": charts.curve_chart(history, pass_rates, band),
        "Reward": charts.curve_chart(history, {"reward_mean": "mean reward"}),
        "Groups kept": charts.curve_chart(history, {"n_groups": "groups", "n_kept": "kept"}),
        "Completion tokens": charts.curve_chart(history, {"completion_tokens_mean": "mean"}),
        "Fraction cut off": charts.curve_chart(history, {"truncated_fraction": "fraction"}),
        "KL to the reference": charts.curve_chart(history, {"kl": "nats per token"}),
        "Entropy": charts.curve_chart(history, {"entropy": "nats per token"}),
        "Clip fraction": charts.curve_chart(history, {"clip_fraction": "fraction"}),
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
