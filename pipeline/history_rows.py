"""`data/history.csv`: one row of headline numbers per iteration, from the first to this one."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from pipeline.errors import BadInput
from pipeline.metrics import Metrics, finite

HistoryRow = dict[str, float | int | None]

SOURCES: dict[str, tuple[str, str]] = {
    "n_groups": ("filter", "n_groups"),
    "n_kept": ("filter", "n_kept"),
    "n_completions": ("rollout", "n_completions"),
    "n_completion_tokens": ("rollout", "n_completion_tokens"),
    "completion_tokens_mean": ("rollout", "completion_tokens_mean"),
    "truncated_fraction": ("rollout", "truncated_fraction"),
    "reward_mean": ("score", "reward_mean"),
    "n_steps": ("update", "n_steps"),
    "loss": ("update", "loss"),
    "kl": ("update", "kl"),
    "entropy": ("update", "entropy"),
    "clip_fraction": ("update", "clip_fraction"),
    "ratio_max": ("update", "ratio_max"),
    "sampling_kl": ("update", "sampling_kl"),
    "grad_norm": ("update", "grad_norm"),
    "learning_rate": ("update", "learning_rate"),
}
"""Column -> stage and key of the metric it repeats."""

COLUMNS = (
    "iteration",
    *SOURCES,
    "eval_pass_at_1_before",
    "eval_pass_at_1",
    "eval_pass_at_1_low",
    "eval_pass_at_1_high",
    "n_surplus",
    "n_all_correct",
    "n_all_wrong",
    "pass_rate",
)
"""In the order of the file. Every column but `iteration` may be empty, where the iteration has no such number."""

HEADLINE = {
    "pass rate": "pass_rate",
    "held-out pass@1": "eval_pass_at_1",
    "reward": "reward_mean",
    "KL": "kl",
    "entropy": "entropy",
    "clip fraction": "clip_fraction",
    "groups kept": "n_kept",
}
"""Heading -> column: what a page of several iterations shows of each, whatever else it does."""


def history_row(iteration: int, metrics: Metrics, parent: HistoryRow | None = None) -> HistoryRow:
    """The row of `iteration`, whose metrics are given; null where a metric is null or not finite.

    `parent` is the row of the iteration that this one starts from, if there is one: the policy before this update is
    the one after that update, so its pass@1 stands where `before` was not measured again.
    """
    before, after = metrics["evaluate"]["before"], metrics["evaluate"]["after"] or {}
    if before is None:
        before = {"pass_at_1": parent and parent["eval_pass_at_1"]}
    return {
        "iteration": iteration,
        **{column: finite(metrics[stage][key]) for column, (stage, key) in SOURCES.items()},
        "eval_pass_at_1_before": finite(before.get("pass_at_1")),
        "eval_pass_at_1": finite(after.get("pass_at_1")),
        "eval_pass_at_1_low": finite(after.get("pass_at_1_low")),
        "eval_pass_at_1_high": finite(after.get("pass_at_1_high")),
        "n_surplus": finite(metrics["filter"].get("n_surplus")),
        "n_all_correct": finite(metrics["filter"]["outcomes"].get("all_correct")),
        "n_all_wrong": finite(metrics["filter"]["outcomes"].get("all_wrong")),
        "pass_rate": finite(metrics["score"]["pass_rate"]),
    }


def append_history(older_csv: str | None, row: HistoryRow) -> str:
    """The text of `older_csv` with `row` after the rows of the iterations before it.

    Rows of the same or a later iteration are left out: `row` replaces them. `older_csv` is None where the run
    begins. Raises `BadInput` as `read_history` does.
    """
    older = read_history(older_csv) if older_csv is not None else []
    kept = [other for other in older if _iteration(other) < _iteration(row)]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted([*kept, row], key=_iteration))
    return text.getvalue()


def read_history(text: str, where: str = "data/history.csv") -> list[HistoryRow]:
    """The rows of `text`; a column that it lacks is null in every row.

    Raises:
        BadInput: it has a column of another name, a value that is no finite number, or no `iteration`.

    >>> read_history("iteration,pass_rate\\n0,0.25\\n")[0]["pass_rate"]
    0.25
    """
    reader = csv.DictReader(io.StringIO(text))
    unknown = [name for name in reader.fieldnames or () if name not in COLUMNS]
    if unknown:
        remedy = "Restore the file with Git, or use the release that wrote it"
        raise BadInput(where, f"column {unknown[0]!r} is not a column of the history: {list(COLUMNS)}", remedy)
    return [_parse(row, f"{where}: row {number}") for number, row in enumerate(reader)]


def row_before(rows: list[HistoryRow], iteration: int) -> HistoryRow | None:
    """The row of the latest iteration before `iteration`, if there is one."""
    return max((row for row in rows if _iteration(row) < iteration), key=_iteration, default=None)


def _iteration(row: Mapping[str, Any]) -> int:
    value = row["iteration"]
    assert isinstance(value, int)
    return value


def _parse(row: dict[Any, Any], where: str) -> HistoryRow:
    parsed: HistoryRow = {column: _number(row.get(column), f"{where}: {column}") for column in COLUMNS}
    if None in row or not isinstance(parsed["iteration"], int):
        raise BadInput(where, f"it is {list(row.values())}, and needs an iteration and a value per column", _RESTORE)
    return parsed


_RESTORE = "Restore the file with Git"


def _number(text: str | None, where: str) -> float | int | None:
    if not text:
        return None
    try:
        value = int(text) if text.isdecimal() else finite(float(text))
    except ValueError:
        value = None
    if value is None:
        raise BadInput(where, f"{text!r} is not a finite number", _RESTORE)
    return value
