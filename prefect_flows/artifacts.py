"""What the Prefect UI shows of a run beside its logs: metrics, some groups, progress, where the report is."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from pipeline.history_rows import HistoryRow, read_history
from pipeline.report.groups import GroupView, OutcomeView, Tables, view_outcomes
from pipeline.summary import decimal, signed
from pipeline.table_io import scan_table
from pipeline.tables import TABLES

ROWS_SHOWN = 50
GROUPS_PER_OUTCOME = 2
COMPLETIONS_PER_GROUP = 8
CHARACTERS_SHOWN = 300

COLUMNS = {
    "iteration": "iteration",
    "pass rate": "pass_rate",
    "held-out pass@1": "eval_pass_at_1",
    "reward": "reward_mean",
    "KL": "kl",
    "entropy": "entropy",
    "clip fraction": "clip_fraction",
    "groups kept": "n_kept",
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
    """The metrics so far, some groups of this iteration, and the report, as artifacts of the flow that calls."""
    history = read_history((worktree / "data/history.csv").read_text(encoding="utf-8"))
    name = f"{run}/{number:04d}"
    create_table_artifact(
        key=artifact_key(run, "metrics"), table=metrics_table(history), description=f"Iterations of {run}, latest first"
    )
    create_markdown_artifact(
        key=artifact_key(run, "groups"),
        markdown=groups_page(name, view_outcomes(tables_of_groups(worktree / "data"), GROUPS_PER_OUTCOME)),
        description=f"Some groups of each outcome of {name}",
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


def groups_page(name: str, outcomes: list[OutcomeView]) -> str:
    """Groups of each outcome as Markdown: prompt, answer, completions with reward and advantage."""
    sections = [f"# {name}"]
    for outcome in outcomes:
        sections.append(f"## {outcome.outcome.replace('_', ' ')}: {outcome.note}")
        sections += [_group_section(group) for group in outcome.groups]
    return "\n\n".join(sections) + "\n"


def _group_section(view: GroupView) -> str:
    prompt = " ".join(message["content"] for message in view.prompt["messages"])
    answer = [] if view.prompt["answer"] is None else ["", f"Answer: {code(view.prompt['answer'])}"]
    n_more = len(view.completions) - COMPLETIONS_PER_GROUP
    rows = [
        f"| {decimal(row['reward'])} | {signed(row['advantage'])} | {code(row['completion_text'])} |"
        for row in view.completions[:COMPLETIONS_PER_GROUP]
    ]
    lines = [
        f"### {code(prompt)}",
        *answer,
        "",
        "| reward | advantage | completion |",
        "| ---: | ---: | --- |",
        *rows,
        *([f"| | | and {n_more} more |"] if n_more > 0 else []),
        "",
        f"{view.group['reason']}; group `{view.group['group_id']}`",
    ]
    return "\n".join(lines)


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


def tables_of_groups(data: Path) -> Tables:
    """What `view_outcomes` reads, without the token ids and log-probabilities."""
    columns = {
        "prompts": None,
        "selection": None,
        "rollouts": ["group_id", "completion_id", "completion_index", "completion_text"],
        "rewards": None,
        "advantages": ["completion_id", "advantage"],
        "groups": None,
    }
    return {name: scan_table(data / f"{name}.parquet", TABLES[name], chosen) for name, chosen in columns.items()}
