"""Where exported rows come from, so that they can be made again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.tables import SCHEMA_VERSION
from pipeline.versioning.lockfile import read_locks
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import Iteration

TABLES = ("prompts", "rollouts", "rewards", "advantages", "groups")


@dataclass(frozen=True)
class Provenance:
    """What an export was made of.

    `sources` has an entry per iteration: its tag, commit, and the md5 that DVC has for each table. `files` maps the
    files of the export to their SHA-256.
    """

    command: str
    kind: str
    n_rows: int
    schema_version: str
    sources: list[dict[str, Any]]
    files: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def trace(
    repository: Repository,
    iterations: Sequence[Iteration],
    *,
    command: str,
    kind: str,
    n_rows: int,
    files: Sequence[Path],
    root: Path,
) -> Provenance:
    """The provenance of `files`, which are named from the folder `root` on."""
    locks = read_locks([iteration.commit for iteration in iterations], repository.root)
    sources = [
        {
            "iteration": iteration.name,
            "commit": iteration.commit,
            "md5": {name: lock[path].md5 for name in TABLES if (path := f"data/{name}.parquet") in lock},
        }
        for iteration, lock in zip(iterations, locks, strict=True)
    ]
    hashes = {str(file.relative_to(root)): _sha256(file) for file in files}
    return Provenance(command, kind, n_rows, SCHEMA_VERSION, sources, hashes)


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
