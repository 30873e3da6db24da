"""What the rules look at: an iteration's params and those of its tables that can be read and obey their schema."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import polars as pl

from pipeline.errors import BadInput
from pipeline.integrity.files import Files
from pipeline.params import Params
from pipeline.table_io import scan_table, table_metadata
from pipeline.tables import PROMPT_STATS, TABLES, Table

TABLE_FILES: dict[str, tuple[str, Table]] = {
    **{name: (f"data/{name}.parquet", table) for name, table in TABLES.items()},
    "next_prompt_stats": ("data/next_prompt_stats.parquet", PROMPT_STATS),
}
"""Name -> artifact and schema, of every table that an iteration has."""


@dataclass(frozen=True)
class Evidence:
    """An iteration under examination; `tables` has those that are sound in themselves."""

    files: Files
    params: Params
    tables: dict[str, pl.LazyFrame]

    def __getitem__(self, table: str) -> pl.LazyFrame:
        return self.tables[table]

    def rollout_metadata(self) -> dict[str, str]:
        """What the sampler noted in the file of rollouts."""
        file = self.files.file(TABLE_FILES["rollouts"][0])
        return {} if file is None else table_metadata(file)


def gather(files: Files, params: Params, declared: Collection[str]) -> tuple[Evidence, list[tuple[str, str]]]:
    """The evidence of an iteration, and artifact and problem of each table that breaks a rule of its own.

    Of tables, those among the artifacts `declared` are looked at. Every page is read, and its checksum verified.
    """
    tables: dict[str, pl.LazyFrame] = {}
    problems: list[tuple[str, str]] = []
    for name, (artifact, table) in TABLE_FILES.items():
        file = files.file(artifact) if artifact in declared else None
        if file is None:
            continue
        try:
            tables[name] = scan_table(file, table)
        except BadInput as error:
            problems.append((artifact, str(error).removeprefix(f"{file}: ")))
    return Evidence(files, params, tables), problems
