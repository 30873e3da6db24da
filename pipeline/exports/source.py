"""What is exported: the iterations of a run, or the one in `data/`, and what identifies their tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipeline.audit.run_tables import RunTables, named_tables
from pipeline.audit.tables import DATA, HERE, Tables, tables_here
from pipeline.versioning.lockfile import read_locks
from pipeline.versioning.objects import check_object, file_md5
from pipeline.versioning.repository import Repository

TABLES_READ = ("prompts", "rollouts", "rewards", "advantages", "groups")


@dataclass(frozen=True)
class Source:
    """Tables, and where they are from.

    `commits` maps run and iteration to the commit, where it has one. `origins` has an entry per iteration: its tag,
    its commit, and the md5 of each table that an export reads.
    """

    tables: Tables
    commits: Mapping[tuple[str, int], str]
    origins: list[dict[str, Any]]

    @property
    def span(self) -> str:
        """Which iterations these are, in words."""
        first, last = self.origins[0]["iteration"], self.origins[-1]["iteration"]
        return str(first) if first == last else f"{first} to {last}"


def find_source(name: str) -> Source:
    """What `demo`, `demo/0003` or `demo/0003..0010` names; `.` is the iteration in `data/`.

    Raises:
        BadInput: there is no such run or iteration, or a table of it is missing or damaged.
    """
    if name == HERE:
        return _source_here()
    repository = Repository.find()
    return _source_of_run(repository, named_tables(repository, name))


def _source_of_run(repository: Repository, tables: RunTables) -> Source:
    locks = read_locks([one.iteration.commit for one in tables.iterations], repository.root)
    for name in TABLES_READ:
        tables[name]  # which raises where one is missing
    for md5 in {lock[f"data/{name}.parquet"].md5 for lock in locks for name in TABLES_READ}:
        check_object(repository.cache_dir, md5)  # scans verify no checksum, and an export is read elsewhere
    origins = [
        {
            "iteration": one.iteration.name,
            "commit": one.iteration.commit,
            "md5": {name: lock[f"data/{name}.parquet"].md5 for name in TABLES_READ},
        }
        for one, lock in zip(tables.iterations, locks, strict=True)
    ]
    return Source(tables, {(one.run, one.iteration.number): one.iteration.commit for one in tables.iterations}, origins)


def _source_here() -> Source:
    tables = tables_here()
    number = tables["rollouts"].select(pl.col("iteration").first()).collect().item()
    md5 = {name: file_md5(DATA / f"{name}.parquet") for name in TABLES_READ if tables.has(name)}
    return Source(tables, {}, [{"iteration": f"iteration {number} in data/", "commit": None, "md5": md5}])
