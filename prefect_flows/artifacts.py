"""What the Prefect UI shows of a run beside its logs: metrics, the verdict, progress, where the report is.

Texts of completions are not among it: the report has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from pipeline.health.evidence import asked_of
from pipeline.history_rows import HEADLINE, HistoryRow, read_history
from pipeline.summary import decimal

ROWS_SHOWN = 50
CHARACTERS_SHOWN = 300

COLUMNS = {
    "iteration": "iteration",
    **HEADLINE,
    "completion tokens": "completion_tokens_mean",
    "gradient norm": "grad_norm",
}
"""Heading -> column of data/history.csv."""


def artifact_key(run: str, name: str) -> str:
    """The key of an artifact of `run`, for which Prefect takes a-z, 0-9 and dashes.

    >>> artifact_key("demo_2.1", "metrics")
    'demo-2-1-metrics'
    """
    return f"{re.sub('[^a-z0-9]+', '-', run).strip('-')}-{name}"


def publish_iteration(worktree: Path, run: str, number: int) -> None:
    """The metrics so far, the verdict on this iteration, and the report, as artifacts of the flow that calls."""
    history = read_history((worktree / "data/history.csv").read_text(encoding="utf-8"))
    name = f"{run}/{number:04d}"
    create_table_artifact(
        key=artifact_key(run, "metrics"), table=metrics_table(history), description=f"Iterations of {run}, latest first"
    )
    create_markdown_artifact(
        key=artifact_key(run, "verdict"),
        markdown=verdict_page(name, history[-1], json.loads((worktree / "data/health.json").read_text("utf-8"))),
        description=f"The headline of {name}, and what its diagnosis says",
    )
    report = worktree / "data/report.html"
    create_link_artifact(
        key=artifact_key(run, "report"),
        link=report.resolve().as_uri(),
        link_text=str(report),
        description=f"The report of {name}. Browsers open a file only where its address is pasted.",
    )


def publish_progress(run: str, n_done: int, n_iterations: int, known: UUID | None = None) -> UUID:
    """The progress of training as an artifact, `known` if there is one from before; return its id."""
    percentage = min(100 * n_done / n_iterations, 100.0)
    said = f"{run}: {n_done} of {n_iterations} iterations"
    if known:
        update_progress_artifact(known, percentage, said)
        return known
    created = create_progress_artifact(percentage, artifact_key(run, "progress"), said)
    assert isinstance(created, UUID)  # a coroutine only where a flow is one
    return created


def metrics_table(history: list[HistoryRow]) -> list[dict[str, str]]:
    """The last rows of `history` for eyes, the latest first."""
    return [
        {heading: decimal(row[column]) for heading, column in COLUMNS.items()}
        for row in history[: -ROWS_SHOWN - 1 : -1]
    ]


def verdict_page(name: str, row: HistoryRow, health: Mapping[str, Any]) -> str:
    """The headline of an iteration and what its diagnosis says, as Markdown; `health` is that of data/health.json."""
    numbers = " · ".join(f"{heading} {decimal(row[column])}" for heading, column in list(COLUMNS.items())[1:])
    spoken = [one for one in health["findings"] if one["level"] != "ok" and one["action"] != "ignore"]
    n_warned, n_rules = health["n_warnings"], len(health["findings"])
    lines = [f"# {name}", "", numbers, "", f"## {n_warned} of {n_rules} rules {'warns' if n_warned == 1 else 'warn'}"]
    for finding in sorted(spoken, key=lambda one: one["level"] != "warn"):
        lines += ["", f"**{finding['rule']}** ({finding['level']}): {finding['message']}. {finding['advice']}."]
        if finding.get("rows"):
            run, _, number = name.rpartition("/")
            lines += ["", f"{finding['rows']['n']} rows: {code(asked_of(finding['rows']['query'], run, int(number)))}"]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """`text` as Markdown that shows it as it is, on one line, also in a cell of a table.

    >>> code("a | b\\n`c`")
    '`` a \\\\| b `c` ``'
    """
    line = " ".join(text.split())
    line = line if len(line) <= CHARACTERS_SHOWN else line[:CHARACTERS_SHOWN] + " …"
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if "`" in line else ""
    return f"{fence}{space}{line or ' '}{space}{fence}".replace("|", "\\|")
