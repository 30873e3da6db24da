"""What a question is asked of: the tables of one iteration, or of many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import polars as pl

from pipeline.errors import BadInput
from pipeline.table_io import open_table
from pipeline.tables import TABLES

INDEX = ("run", "iteration")
"""The columns that every frame of `Tables` begins with."""


class Tables(Protocol):
    """Tables by their names in `pipeline.tables.TABLES`, lazily, each with the columns `run` and `iteration` first."""

    @property
    def names(self) -> tuple[str, ...]:
        """The runs that the tables are of."""

    def __getitem__(self, name: str) -> pl.LazyFrame:
        """The rows of the table `name`, of every iteration."""

    def distinct(self, name: str) -> pl.LazyFrame:
        """As `[name]`, but of iterations that share one file only the first: `prompts` does not change by itself."""

    def parts(self) -> Iterator[Tables]:
        """The same in parts of whole iterations, as many rows each as fit into memory well."""

    def of_iterations(self, found: pl.DataFrame) -> Tables:
        """Those of the iterations that the columns `run` and `iteration` of `found` name."""


class IterationTables:
    """The tables of one iteration, each from a `scan` of its own; `run` is what the column `run` says."""

    def __init__(self, scan: Callable[[str], pl.LazyFrame], run: str = "data") -> None:
        self._scan = scan
        self._run = run

    @property
    def names(self) -> tuple[str, ...]:
        return (self._run,)

    def __getitem__(self, name: str) -> pl.LazyFrame:
        rows = self._scan(name)
        if "iteration" not in TABLES[name].schema:
            number = self._scan("rewards").select(pl.col("iteration").first())
            rows = rows.join(number, how="cross")
        return rows.select(pl.lit(self._run).alias("run"), "iteration", pl.exclude("iteration"))

    def distinct(self, name: str) -> pl.LazyFrame:
        return self[name]

    def parts(self) -> Iterator[Tables]:
        yield self

    def of_iterations(self, found: pl.DataFrame) -> Tables:
        return self


def folder_tables(data: Path) -> IterationTables:
    """The tables of the iteration in the folder `data`; each is opened, and its columns checked, when it is asked for.

    Raises:
        BadInput: when a table is asked for that is missing, unreadable, or has other columns than it should.
    """
    return IterationTables(lambda name: open_table(data / f"{name}.parquet", TABLES[name]))


def frame_tables(frames: Mapping[str, pl.DataFrame], run: str = "data") -> IterationTables:
    """The tables of one iteration that are in memory, by name."""

    def scan(name: str) -> pl.LazyFrame:
        if name not in frames:
            raise BadInput(f"table {name}", "it is not among those that are given", f"Give one of {', '.join(frames)}")
        return frames[name].lazy()

    return IterationTables(scan, run)
