"""Runs side by side: a row of headline numbers each, and what differs between two of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import BadInput
from pipeline.history_rows import COLUMNS, HistoryRow, read_history
from pipeline.params import PARAMS_FILE, parse_params
from pipeline.params_edit import differing_keys
from pipeline.versioning.disk import sizes
from pipeline.versioning.git import read_blobs
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import Iteration, lineage, lineage_of_revision, list_runs, resolve

HISTORY, HEALTH = Path("data/history.csv"), Path("data/health.json")
POSITIONAL = ("iteration", "parent")
"""Params that say where an iteration stands, not how it is made."""


@dataclass(frozen=True)
class RunRow:
    """A run in a line: `last` is its latest iteration, None while the first is under way; `size` is in bytes.

    `history` is the row of the latest iteration, with the held-out pass@1 that was measured last.
    """

    run: str
    last: Iteration | None
    history: HistoryRow | None
    health: dict[str, Any] | None
    size: int


@dataclass(frozen=True)
class Comparison:
    """Two iterations: column of history -> both values, and dotted key of params.yaml -> both, where they differ."""

    names: tuple[str, str]
    numbers: dict[str, tuple[Any, Any]]
    params: dict[str, tuple[Any, Any]]


def summarize_runs(repository: Repository) -> list[RunRow]:
    """A row per run, in the order of their names."""
    runs = list_runs(repository)
    tips = {run: line[-1] for run in runs if (line := lineage(repository, run))}
    bytes_of = sizes(repository, list(tips))
    rows = []
    for run in runs:
        tip = tips.get(run)
        history = _latest_numbers(_history(repository, tip)) if tip else None
        health = _health(repository, tip) if tip else None
        rows.append(RunRow(run, tip, history, health, bytes_of.get(run, 0)))
    return rows


def compare(repository: Repository, one: str, other: str) -> Comparison:
    """What two runs (their latest iterations) or iterations (`demo/0003`) have in numbers and params.

    Raises:
        BadInput: there is no such run or iteration, or it has no iteration yet.
    """
    left, right = _iteration(repository, one), _iteration(repository, other)
    rows = [(_history(repository, iteration) or [{}])[-1] for iteration in (left, right)]
    numbers = {column: (rows[0].get(column), rows[1].get(column)) for column in COLUMNS}
    theirs = [_params(repository, iteration) for iteration in (left, right)]
    return Comparison((_label(one, left), _label(other, right)), numbers, differing_keys(*theirs))


def _iteration(repository: Repository, name: str) -> Iteration:
    line = lineage_of_revision(repository.root, resolve(repository, name))
    if not line:
        raise BadInput(name, "it has no iteration yet", "Let it finish one, `rollbook runs` shows how many there are")
    return line[-1]


def _label(name: str, iteration: Iteration) -> str:
    return name if name == iteration.name else f"{name} ({iteration.name})"


def _history(repository: Repository, iteration: Iteration) -> list[HistoryRow]:
    content = _content(repository, iteration, HISTORY)
    return read_history(content.decode("utf-8"), f"{HISTORY} of {iteration.name}") if content else []


def _latest_numbers(history: list[HistoryRow]) -> HistoryRow | None:
    """The last row; most iterations evaluate nothing, so the held-out pass@1 may be that of an earlier one."""
    if not history:
        return None
    measured = [row["eval_pass_at_1"] for row in history if row["eval_pass_at_1"] is not None]
    return {**history[-1], "eval_pass_at_1": measured[-1] if measured else None}


def _health(repository: Repository, iteration: Iteration) -> dict[str, Any] | None:
    content = _content(repository, iteration, HEALTH)
    health: dict[str, Any] | None = json.loads(content) if content else None
    return health


def _params(repository: Repository, iteration: Iteration) -> dict[str, Any]:
    text = (_content(repository, iteration, PARAMS_FILE) or b"").decode("utf-8")
    params = parse_params(text, f"{PARAMS_FILE} of {iteration.name}").model_dump(mode="json")
    return {key: value for key, value in params.items() if key not in POSITIONAL}


def _content(repository: Repository, iteration: Iteration, path: Path) -> bytes | None:
    return read_blobs([f"{iteration.commit}:{path.as_posix()}"], repository.root)[0]
