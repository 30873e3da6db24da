"""The tables of many iterations, read where DVC's cache keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import polars as pl

from pipeline.audit.tables import Tables
from pipeline.errors import BadInput
from pipeline.history import RunIteration, find_iterations, scan_iterations
from pipeline.versioning.lockfile import Output, read_locks
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import select_iterations

BYTES_PER_PART = 64 * 2**20
"""How much of the compressed rollouts one part has, at most, unless a single iteration has more."""


class RunTables:
    """The tables of `iterations`, which may be of several runs."""

    def __init__(self, repository: Repository, iterations: Sequence[RunIteration]) -> None:
        self._repository = repository
        self.iterations = list(iterations)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.run for one in self.iterations))

    def has(self, name: str) -> bool:
        return all(f"data/{name}.parquet" in lock for lock in self._locks)

    def __getitem__(self, name: str) -> pl.LazyFrame:
        return scan_iterations(name, self.iterations, repo=self._repository).drop("commit")

    def distinct(self, name: str) -> pl.LazyFrame:
        path = f"data/{name}.parquet"
        first: dict[tuple[str, str], RunIteration] = {}
        for one, lock in zip(self.iterations, self._locks, strict=True):
            first.setdefault((one.run, lock[path].md5 if path in lock else ""), one)
        return scan_iterations(name, list(first.values()), repo=self._repository).drop("commit")

    def parts(self) -> Iterator[Tables]:
        part: list[RunIteration] = []
        n_bytes = 0
        for one, lock in zip(self.iterations, self._locks, strict=True):
            size = lock["data/rollouts.parquet"].size if "data/rollouts.parquet" in lock else 0
            if part and n_bytes + size > BYTES_PER_PART:
                yield RunTables(self._repository, part)
                part, n_bytes = [], 0
            part.append(one)
            n_bytes += size
        yield RunTables(self._repository, part)

    def of_iterations(self, found: pl.DataFrame) -> Tables:
        wanted = set(found.select("run", "iteration").unique().iter_rows())
        chosen = [one for one in self.iterations if (one.run, one.iteration.number) in wanted]
        return RunTables(self._repository, chosen)

    @cached_property
    def _locks(self) -> list[dict[str, Output]]:
        return read_locks([one.iteration.commit for one in self.iterations], self._repository.root)


def named_tables(repository: Repository, name: str) -> RunTables:
    """The tables of the iterations that `demo`, `demo/0003` or `demo/0003..0010` name.

    Raises:
        BadInput: there is no such run, or it has none of them.
    """
    run = name.partition("/")[0]
    return RunTables(repository, [RunIteration(run, one) for one in select_iterations(repository, name)])


def run_tables(
    runs: Sequence[str], iterations: tuple[int, int] | None = None, repository: Repository | None = None
) -> RunTables:
    """The tables of the iterations that `runs` and `iterations` name, as `pipeline.history.scan` takes them.

    Raises:
        BadInput: there is no such run or iteration.
    """
    repository = repository or Repository.find()
    found = find_iterations(repository, runs, iterations)
    if not found:
        span = "" if iterations is None else f" from {iterations[0]} to {iterations[1]}"
        remedy = "`rollbook runs` lists the runs and how many iterations each has"
        raise BadInput(", ".join(runs) or "runs", f"there is no iteration{span}", remedy)
    return RunTables(repository, found)
