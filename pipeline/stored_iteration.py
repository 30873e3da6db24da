"""An iteration as its commit has it: its params, and its artifacts laid out in a folder beside the working tree."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.params import PARAMS_FILE, Params, parse_params
from pipeline.versioning.artifacts import fetch_artifact
from pipeline.versioning.git import file_at_commit
from pipeline.versioning.repository import LOCAL, Repository
from pipeline.versioning.runs import Iteration, iteration_named

BASE, POLICY = Path("data/base"), Path("data/policy")
"""The folders of an iteration that a model is loaded from, below the root of its repository."""


@dataclass(frozen=True)
class StoredIteration:
    """An iteration of `repository`, with the params that made it."""

    repository: Repository
    iteration: Iteration
    params: Params

    @contextmanager
    def laid_out(self, paths: Sequence[Path]) -> Iterator[Path]:
        """A folder with its artifacts at `paths`, each md5 verified, from DVC's cache or remote; gone afterwards.

        What a process that was killed left of its own goes first: it may hold gigabytes.

        Raises:
            BadInput: the iteration has no such artifact, it is nowhere to be had, or it is damaged.
            TransientError: the remote can't be reached.
        """
        with temporary_folder(self.repository.root / LOCAL / "laid_out") as folder:
            for path in paths:
                fetch_artifact(path, self.iteration.commit, folder / path, self.repository)
            yield folder


def find_stored(repository: Repository, name: str) -> StoredIteration:
    """The iteration that `demo` (its last), `demo/0003`, a tag, a commit or another revision of Git means.

    Raises:
        BadInput: there is none, or this release can't read its params.
    """
    iteration = iteration_named(repository, name)
    text = file_at_commit(iteration.commit, PARAMS_FILE, repository.root).decode("utf-8", "replace")
    return StoredIteration(repository, iteration, parse_params(text, f"{PARAMS_FILE} of {iteration.name}"))


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, gone afterwards, as are those there that no process holds any more."""
    parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with _locked(parent):  # so that no other process takes one that is not held yet for abandoned
            for abandoned in parent.iterdir():
                with suppress(BlockingIOError), _locked(abandoned, fcntl.LOCK_NB):
                    shutil.rmtree(abandoned)
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=parent))
            stack.enter_context(_locked(Path(folder)))
        yield Path(folder)


@contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[None]:
    """Hold `folder`, which the operating system gives free when the process ends, however it ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(descriptor)
