"""Where exported rows come from, so that they can be made again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.exports.source import Source
from pipeline.tables import SCHEMA_VERSION


@dataclass(frozen=True)
class Provenance:
    """What an export was made of.

    `sources` are the `origins` of a `Source`. `files` maps the files of the export to their SHA-256.
    """

    command: str
    kind: str
    n_rows: int
    schema_version: str
    sources: list[dict[str, Any]]
    files: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def trace(source: Source, *, command: str, kind: str, n_rows: int, files: Sequence[Path], root: Path) -> Provenance:
    """The provenance of `files`, which are named from the folder `root` on."""
    hashes = {str(file.relative_to(root)): _sha256(file) for file in files}
    return Provenance(command, kind, n_rows, SCHEMA_VERSION, source.origins, hashes)


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
