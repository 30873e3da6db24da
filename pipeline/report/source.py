"""What the page of a run is made from: iterations, their tables, and the numbers that Git keeps of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipeline.audit.run_tables import RunTables, named_tables
from pipeline.audit.tables import DATA, HERE, brief_rollouts, tables_here
from pipeline.audit.tables import Tables as AuditTables
from pipeline.errors import BadInput
from pipeline.history_rows import HistoryRow, read_history
from pipeline.report.choice import Tables
from pipeline.versioning.git import read_blobs
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import Iteration

SHOWN = ("rewards", "advantages", "groups", "selection", "prompts")
HISTORY, HEALTH = "data/history.csv", "data/health.json"


@dataclass(frozen=True)
class Source:
    """Iterations called `name`; the commit of the one that lies in `data/` is empty.

    `tables_of` gives the tables of some of them as a page takes them, and `read` the contents of files, each named by
    iteration and path, None for one that is not there.
    """

    name: str
    iterations: list[Iteration]
    tables_of: Callable[[Sequence[Iteration]], Tables]
    read: Callable[[Sequence[tuple[Iteration, str]]], list[bytes | None]]

    def numbers(self) -> tuple[list[HistoryRow], list[dict[str, Any] | None]]:
        """The row of history and the diagnosis of each iteration.

        Raises:
            BadInput: the history is missing, damaged, or ends before the last iteration.
        """
        last = self.iterations[-1]
        history, *health = self.read([(last, HISTORY), *((one, HEALTH) for one in self.iterations)])
        if history is None:
            raise BadInput(last.name, f"there is no {HISTORY}", "`dvc repro` makes it; Git has that of every iteration")
        rows = {row["iteration"]: row for row in read_history(history.decode("utf-8"))}
        missing = [one.name for one in self.iterations if one.number not in rows]
        if missing:
            problem = f"its {HISTORY} has no row for {missing[0]}"
            raise BadInput(last.name, problem, "Run `dvc repro`, or restore the file with Git")
        return [rows[one.number] for one in self.iterations], [json.loads(text) if text else None for text in health]


def find_source(name: str) -> Source:
    """What `demo`, `demo/0003` or `demo/0003..0010` names; `.` is the iteration in `data/`.

    Raises:
        BadInput: there is no such run or iteration.
    """
    return _source_here() if name == HERE else _source_of_run(Repository.find(), name)


def _source_here() -> Source:
    tables = tables_here()
    number = tables["rollouts"].select(pl.col("iteration").first()).collect().item()

    def read(wanted: Sequence[tuple[Iteration, str]]) -> list[bytes | None]:
        files = [DATA.parent / path for _, path in wanted]
        return [file.read_bytes() if file.is_file() else None for file in files]

    return Source("data", [Iteration("data", number, "")], lambda _: page_tables(tables), read)


def _source_of_run(repository: Repository, name: str) -> Source:
    found = {one.iteration: one for one in named_tables(repository, name).iterations}

    def tables_of(iterations: Sequence[Iteration]) -> Tables:
        return page_tables(RunTables(repository, [found[one] for one in iterations]))

    def read(wanted: Sequence[tuple[Iteration, str]]) -> list[bytes | None]:
        return read_blobs([f"{one.commit}:{path}" for one, path in wanted], repository.root)

    return Source(name, list(found), tables_of, read)


def page_tables(tables: AuditTables) -> Tables:
    """Of `tables` those that a page shows; lazily, without the token lists."""
    found = {name: tables[name].drop("run") for name in SHOWN}
    found["rollouts"] = brief_rollouts(tables).drop("run", "seed")
    found["prompts"] = found["prompts"].drop("iteration").unique("prompt_id", keep="first", maintain_order=True)
    return found
