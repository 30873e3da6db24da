"""The tables of every iteration of runs as one lazy frame, read where DVC's cache keeps them: nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import polars as pl

from pipeline.errors import BadInput, first_line
from pipeline.table_checks import check_schema
from pipeline.tables import SCHEMA_VERSION, TABLES, PolarsType, Table
from pipeline.versioning.lockfile import LOCKFILE, Output, read_locks
from pipeline.versioning.objects import object_path
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import Iteration, lineage, select_iterations, tag_name

OBJECT = "__object"
"""A column within the query: the file that a row is in."""
INDEX: dict[str, PolarsType] = {"run": pl.String, "iteration": pl.UInt32, "commit": pl.String}
"""The columns that say which iteration a row is from."""


@dataclass(frozen=True)
class RunIteration:
    """An iteration as one of `run`, which may have taken it over from the run it left."""

    run: str
    iteration: Iteration

    @property
    def name(self) -> str:
        """As it is asked for: `strict/0001`, be it made by another run."""
        return tag_name(self.run, self.iteration.number)


@dataclass(frozen=True)
class _Source:
    """The object that holds a table of an iteration of `run`."""

    run: str
    iteration: Iteration
    output: Output
    object: Path


def scan(
    table: str,
    runs: Sequence[str],
    *,
    repo: Repository | None = None,
    iterations: tuple[int, int] | None = None,
) -> pl.LazyFrame:
    """The rows of `table` of every iteration of `runs`, with the columns `run`, `iteration` and `commit` first.

    `table` is a name of `pipeline.tables.TABLES`. A run is `demo`, with the iterations that it took over from the run
    it left, or some of them, `demo/0003` or `demo/0003..0010`; `iterations` cuts all to those from the first number to
    the last, both included. Rows come run by run, from the first iteration to the last. A term that an iteration does
    not have is null in its rows.

    Predicates and projections reach the Parquet scan. To read fewer files, give `iterations`, since no predicate on
    `run`, `iteration` or `commit` does that. The scan does not verify checksums.

    Raises:
        BadInput: there is no such table, run or iteration; an object is missing or damaged, or of another schema.
    """
    repository = repo or Repository.find()
    return scan_iterations(table, find_iterations(repository, runs, iterations), repo=repository)


def find_iterations(
    repository: Repository, runs: Sequence[str], iterations: tuple[int, int] | None = None
) -> list[RunIteration]:
    """The iterations that `runs` and `iterations` name, as `scan` takes them, each once and in the order of `runs`.

    Raises:
        BadInput: there is no such run or iteration.
    """
    asked = {
        (run, iteration.number): iteration
        for run, iteration in _iterations(repository, runs)
        if iterations is None or iterations[0] <= iteration.number <= iterations[1]
    }
    return [RunIteration(run, iteration) for (run, _), iteration in asked.items()]


def scan_iterations(table: str, iterations: Sequence[RunIteration], *, repo: Repository | None = None) -> pl.LazyFrame:
    """As `scan`, of iterations that `find_iterations` found."""
    wanted = _table(table)
    sources = _sources(repo or Repository.find(), wanted, iterations)
    if not sources:
        return pl.LazyFrame(schema={**INDEX, **wanted.schema})
    files = {source.object: source for source in sources}
    schema = _union(wanted, [_checked_schema(wanted, source) for source in files.values()])
    index = pl.LazyFrame(
        {
            OBJECT: [str(source.object) for source in sources],
            "run": [source.run for source in sources],
            "iteration": [source.iteration.number for source in sources],
            "commit": [source.iteration.commit for source in sources],
        },
        schema={OBJECT: pl.String, **INDEX},
    )
    rows = pl.scan_parquet(
        list(files),
        schema=schema,
        missing_columns="insert",
        include_file_paths=OBJECT,
        use_statistics=False,  # they have no checksum, and a damaged one would make a filter skip rows
        glob=False,
    )
    own = [name for name in schema if name != "iteration"]
    # An object that several iterations share is read once, and its rows come once for each of them.
    joined = rows.select(OBJECT, *own).join(index, on=OBJECT, maintain_order="right_left")
    return joined.select(*INDEX, *own)


def _table(name: str) -> Table:
    if name not in TABLES:
        near = get_close_matches(name, TABLES, n=1)
        remedy = f"Did you mean {near[0]}" if near else f"The tables are {', '.join(TABLES)}"
        raise BadInput(f"table {name}", "there is no such table", remedy)
    return TABLES[name]


def _sources(repository: Repository, table: Table, iterations: Sequence[RunIteration]) -> list[_Source]:
    """Where `table` is for each of `iterations`, in their order."""
    path = f"data/{table.name}.parquet"
    cache_dir = repository.cache_dir
    locks = read_locks([one.iteration.commit for one in iterations], repository.root)
    sources = []
    for one, lock in zip(iterations, locks, strict=True):
        if path not in lock:
            problem = f"its {LOCKFILE} has no {path}"
            raise BadInput(f"{table.name} of {one.name}", problem, "Name iterations that have the table")
        sources.append(_Source(one.run, one.iteration, lock[path], object_path(cache_dir, lock[path].md5)))
        _check_object(table, sources[-1])
    return sources


def _iterations(repository: Repository, runs: Iterable[str]) -> Iterable[tuple[str, Iteration]]:
    for name in runs:
        run, slash, _ = name.partition("/")
        # A run that has none yet is no mistake; an iteration that is named and not there is one.
        chosen = select_iterations(repository, name) if slash else lineage(repository, run)
        yield from ((run, iteration) for iteration in chosen)


def _check_object(table: Table, source: _Source) -> None:
    """Raise `BadInput` unless the object is there and as long as it should be."""
    name = tag_name(source.run, source.iteration.number)
    where = f"{table.name} of {name}"
    if not source.object.is_file():
        raise BadInput(
            where, f"DVC's cache lacks its object {source.output.md5}", f"Get it with `rollbook fetch {name}`"
        )
    size = source.object.stat().st_size
    if size != source.output.size:
        problem = f"{source.object} has {size:,} bytes in place of {source.output.size:,}: it is damaged"
        raise BadInput(where, problem, f"Remove that file, then `rollbook fetch {name}`")


def _checked_schema(table: Table, source: _Source) -> pl.Schema:
    """The schema of a file, which is one of `table`, written by a release that this one reads."""
    name = tag_name(source.run, source.iteration.number)
    where = f"{table.name} of {name} ({source.object})"
    try:
        version = pl.read_parquet_metadata(source.object).get("schema_version", SCHEMA_VERSION)
        schema = pl.scan_parquet(source.object, glob=False).collect_schema()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        problem = f"it can't be read as Parquet ({first_line(error)})"
        raise BadInput(where, problem, f"Remove that file, then `rollbook fetch {name}`") from error
    if version != SCHEMA_VERSION:
        problem = f"its schema_version is {version!r}, and this release reads {SCHEMA_VERSION}"
        raise BadInput(where, problem, "Leave that iteration out, or use the release that wrote it")
    check_schema(schema, table, where)
    return schema


def _union(table: Table, schemas: Iterable[pl.Schema]) -> dict[str, PolarsType]:
    """The columns of all `schemas`, in the order that `table` is written in."""
    extra = sorted({name for schema in schemas for name in schema} - table.schema.keys())
    *first, last = table.schema
    types = {name: table.type_of(name) for name in (*first, *extra, last)}
    return {name: dtype for name, dtype in types.items() if dtype is not None}
