"""Stage `report`: tables, metrics and the parent's history -> one page, one row of history, the diagnosis."""

from __future__ import annotations

import polars as pl

from pipeline.health import Evidence, as_json, diagnose
from pipeline.history_rows import append_history, history_row, read_history, row_before
from pipeline.metrics import STAGES_BEFORE_REPORT, read_metrics
from pipeline.params import Params
from pipeline.report import ReportInput, render_report
from pipeline.report.choice import Tables
from pipeline.table_io import scan_table, write_json, write_text
from pipeline.tables import (
    ADVANTAGES,
    EVAL,
    GROUPS,
    PROMPTS,
    REWARDS,
    ROLLOUTS,
    SELECTION,
    TOKEN_LOGPROBS,
    TRAIN_STEPS,
    TRAINING_SET,
)
from pipeline.versioning.git import file_at_commit
from stages import paths
from stages.runner import Result, run_stage

ROLLOUT_COLUMNS = [
    "iteration",
    "group_id",
    "completion_id",
    "completion_index",
    "completion_text",
    "completion_token_ids",
    "finish_reason",
]


def write_report(params: Params) -> Result:
    """Write the report, the history and the health of this iteration."""
    metrics = read_metrics(paths.METRICS, STAGES_BEFORE_REPORT)
    older = None if params.parent is None else file_at_commit(params.parent, paths.HISTORY).decode("utf-8")
    parent_row = None if older is None else row_before(read_history(older), params.iteration)
    row = history_row(params.iteration, metrics, parent_row)
    history_csv = append_history(older, row)
    history = read_history(history_csv)
    tables = scan_tables()
    findings = diagnose(Evidence(params.iteration, metrics, history[:-1], tables), params.report)
    health = as_json(params.iteration, findings)
    given = ReportInput(
        iteration=params.iteration,
        parent=params.parent,
        metrics=metrics,
        history=history,
        findings=findings,
        tables=tables,
        groups_per_outcome=params.report.groups_per_outcome,
    )
    page = render_report(given)
    write_text(page, paths.REPORT)
    write_text(history_csv, paths.HISTORY)
    write_json(health, paths.HEALTH)
    warned = [finding.rule for finding in findings if finding.counts]
    verdict = f"warns of {', '.join(warned)}" if warned else "health ok"
    return Result(f"{paths.REPORT}, {verdict}", {**row, "n_warnings": health["n_warnings"]})


def scan_tables() -> Tables:
    """The tables of the report, lazily, with the number of tokens in place of the token ids."""
    rollouts = scan_table(paths.ROLLOUTS, ROLLOUTS, ROLLOUT_COLUMNS)
    return {
        "prompts": scan_table(paths.PROMPTS, PROMPTS),
        "selection": scan_table(paths.SELECTION, SELECTION),
        "rollouts": rollouts.with_columns(n_tokens=pl.col("completion_token_ids").list.len()).drop(
            "completion_token_ids"
        ),
        "rewards": scan_table(paths.REWARDS, REWARDS),
        "advantages": scan_table(paths.ADVANTAGES, ADVANTAGES, ["completion_id", "advantage"]),
        "groups": scan_table(paths.GROUPS, GROUPS),
        "training_set": scan_table(paths.TRAINING_SET, TRAINING_SET, ["completion_id", "sampling_logprobs"]),
        "token_logprobs": scan_table(paths.TOKEN_LOGPROBS, TOKEN_LOGPROBS, ["completion_id", "old_logprobs"]),
        "train_steps": scan_table(paths.TRAIN_STEPS, TRAIN_STEPS),
        "eval": scan_table(paths.EVAL, EVAL, ["policy", "prompt_id", "is_correct"]),
    }


if __name__ == "__main__":
    run_stage("report", write_report)
