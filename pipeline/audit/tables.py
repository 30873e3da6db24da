"""What a question is asked of: the tables of one iteration, or of many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import polars as pl

from pipeline.errors import BadInput, first_line
from pipeline.table_io import open_table
from pipeline.tables import TABLES

INDEX = ("run", "iteration")
"""The columns that every frame of `Tables` begins with."""

TOKEN_LISTS = ("prompt_token_ids", "completion_token_ids", "sampling_logprobs")
"""Columns of `rollouts` with an entry per token, by far the largest."""

DATA = Path("data")
HERE = "."
"""What commands call the iteration in `data/`, where another one has the name of its run."""


class Tables(Protocol):
    """Tables by their names in `pipeline.tables.TABLES`, lazily, each with the columns `run` and `iteration` first."""

    @property
    def names(self) -> tuple[str, ...]:
        """The runs that the tables are of."""

    def has(self, name: str) -> bool:
        """Whether every iteration has the table `name`: one that did not run to its end lacks the last ones."""

    def __getitem__(self, name: str) -> pl.LazyFrame:
        """The rows of the table `name`, of every iteration."""

    def distinct(self, name: str) -> pl.LazyFrame:
        """As `[name]`, but of iterations that share one file only the first: `prompts` does not change by itself."""

    def parts(self) -> Iterator[Tables]:
        """The same in parts of whole iterations, as many rows each as fit into memory well."""

    def of_iterations(self, found: pl.DataFrame) -> Tables:
        """Those of the iterations that the columns `run` and `iteration` of `found` name."""


class IterationTables:
    """The tables `available` of one iteration, each from a `scan` of its own; `run` is what the column `run` says."""

    def __init__(
        self, scan: Callable[[str], pl.LazyFrame], run: str = "data", available: Collection[str] = tuple(TABLES)
    ) -> None:
        self._scan = scan
        self._run = run
        self._available = frozenset(available)

    @property
    def names(self) -> tuple[str, ...]:
        return (self._run,)

    def has(self, name: str) -> bool:
        return name in self._available

    def __getitem__(self, name: str) -> pl.LazyFrame:
        rows = self._scan(name)
        if "iteration" not in TABLES[name].schema:
            number = self._scan("rollouts").select(pl.col("iteration").first())
            rows = rows.join(number, how="cross")
        return rows.select(pl.lit(self._run).alias("run"), "iteration", pl.exclude("iteration"))

    def distinct(self, name: str) -> pl.LazyFrame:
        return self[name]

    def parts(self) -> Iterator[Tables]:
        yield self

    def of_iterations(self, found: pl.DataFrame) -> Tables:
        return self


class JoinedTables:
    """The tables of each of `sources`, which are of different runs, as one."""

    def __init__(self, sources: Sequence[Tables]) -> None:
        self._sources = sources

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for source in self._sources for name in source.names)

    def has(self, name: str) -> bool:
        return all(source.has(name) for source in self._sources)

    def __getitem__(self, name: str) -> pl.LazyFrame:
        return pl.concat([source[name] for source in self._sources], how="diagonal")

    def distinct(self, name: str) -> pl.LazyFrame:
        return pl.concat([source.distinct(name) for source in self._sources], how="diagonal")

    def parts(self) -> Iterator[Tables]:
        for source in self._sources:
            yield from source.parts()

    def of_iterations(self, found: pl.DataFrame) -> Tables:
        named = set(found["run"])
        return JoinedTables([source.of_iterations(found) for source in self._sources if named & set(source.names)])


def folder_tables(data: Path) -> IterationTables:
    """The tables of the iteration in the folder `data`; each is opened, and its columns checked, when it is asked for.

    Raises:
        BadInput: when a table is asked for that is missing, unreadable, or has other columns than it should.
    """
    files = {name: data / f"{name}.parquet" for name in TABLES}
    available = [name for name, file in files.items() if file.is_file()]
    return IterationTables(lambda name: open_table(files[name], TABLES[name]), available=available)


def tables_here() -> IterationTables:
    """The tables of the iteration in `data/` of the current directory.

    Raises:
        BadInput: nothing was rolled out there.
    """
    tables = folder_tables(DATA)
    if not tables.has("rollouts"):
        raise BadInput(str(DATA), "it has no iteration", "`dvc repro` makes one; `rollbook runs` lists those of runs")
    return tables


@contextmanager
def damage_named() -> Iterator[None]:
    """Make what Polars raises at a file that is damaged, or that it can't write, a `BadInput`."""
    try:
        yield
    except (pl.exceptions.ComputeError, pl.exceptions.PanicException) as error:
        remedy = "`rollbook verify` names a file that is damaged; where one was to be written, free some space"
        raise BadInput("the tables", f"they can't be read, or written ({first_line(error)})", remedy) from error


def brief_rollouts(tables: Tables) -> pl.LazyFrame:
    """The rollouts with `n_tokens` in place of the lists of tokens."""
    n_tokens = pl.col("completion_token_ids").list.len().alias("n_tokens")
    return tables["rollouts"].with_columns(n_tokens).drop(TOKEN_LISTS)


def rows_so_far(tables: Tables, name: str) -> pl.LazyFrame:
    """The rows of the table `name`, and none where an iteration has not come to it yet."""
    if tables.has(name):
        return tables[name]
    return pl.LazyFrame(schema={"run": pl.String, "iteration": pl.UInt32, **TABLES[name].schema})


def frame_tables(frames: Mapping[str, pl.DataFrame], run: str = "data") -> IterationTables:
    """The tables of one iteration that are in memory, by name."""

    def scan(name: str) -> pl.LazyFrame:
        if name not in frames:
            raise BadInput(f"table {name}", "it is not among those that are given", f"Give one of {', '.join(frames)}")
        return frames[name].lazy()

    return IterationTables(scan, run, frames)
