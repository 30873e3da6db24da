"""Evidence of the made-up iteration, with what a test plants in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from pipeline.health import Evidence, Finding
from pipeline.history_rows import COLUMNS, HistoryRow
from tests.iteration_sample import lazy_tables, sample_frames, sample_metrics

LIST = pl.List(pl.Float32)


def evidence(
    metrics: dict[str, dict[str, Any]] | None = None,
    history: list[HistoryRow] | None = None,
    frames: dict[str, pl.DataFrame] | None = None,
    iteration: int = 0,
) -> Evidence:
    """Evidence of `iteration`, whose number is in all tables."""
    tables = lazy_tables({**sample_frames(iteration), **(frames or {})})
    return Evidence(iteration, metrics or sample_metrics(), history or [], tables)


def a_row(iteration: int, **values: float | None) -> HistoryRow:
    return {**dict.fromkeys(COLUMNS), "iteration": iteration, **values}


def course(**columns: Sequence[float | None]) -> Evidence:
    """Evidence of a run whose history and metrics have the `columns`, the last entry being this iteration's."""
    n = len(next(iter(columns.values())))
    rows = [a_row(k, **{name: values[k] for name, values in columns.items()}) for k in range(n)]
    metrics = sample_metrics()
    places = {
        "pass_rate": ("score", "pass_rate"),
        "kl": ("update", "kl"),
        "completion_tokens_mean": ("rollout", "completion_tokens_mean"),
    }
    for name, (stage, key) in places.items():
        if name in columns:
            metrics[stage][key] = columns[name][-1]
    if "eval_pass_at_1" in columns:
        metrics["evaluate"]["after"]["pass_at_1"] = columns["eval_pass_at_1"][-1]
    return evidence(metrics, rows[:-1], iteration=n - 1)


def ids(finding: Finding) -> tuple[str, ...]:
    assert finding.rows is not None
    return finding.rows.ids
