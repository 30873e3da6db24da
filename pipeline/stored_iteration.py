"""An iteration as its commit has it: its params, and its artifacts laid out in a folder beside the working tree."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.params import PARAMS_FILE, Params, parse_params
from pipeline.versioning.artifacts import fetch_artifact
from pipeline.versioning.git import file_at_commit
from pipeline.versioning.repository import LOCAL, Repository
from pipeline.versioning.runs import Iteration, iteration_named


@dataclass(frozen=True)
class StoredIteration:
    """An iteration of `repository`, with the params that made it."""

    repository: Repository
    iteration: Iteration
    params: Params

    @contextmanager
    def laid_out(self, paths: Sequence[Path]) -> Iterator[Path]:
        """A folder with its artifacts at `paths`, each md5 verified, from DVC's cache or remote; gone afterwards.

        Raises:
            BadInput: the iteration has no such artifact, it is nowhere to be had, or it is damaged.
            TransientError: the remote can't be reached.
        """
        local = self.repository.root / LOCAL
        local.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{self.iteration.commit[:12]}-", dir=local) as folder:
            for path in paths:
                fetch_artifact(path, self.iteration.commit, Path(folder) / path, self.repository)
            yield Path(folder)


def find_stored(repository: Repository, name: str) -> StoredIteration:
    """The iteration that `demo` (its last), `demo/0003`, a tag, a commit or another revision of Git means.

    Raises:
        BadInput: there is none, or this release can't read its params.
    """
    iteration = iteration_named(repository, name)
    text = file_at_commit(iteration.commit, PARAMS_FILE, repository.root).decode("utf-8", "replace")
    return StoredIteration(repository, iteration, parse_params(text, f"{PARAMS_FILE} of {iteration.name}"))
