"""Where the artifacts of an iteration are, in a checkout or in DVC's cache, and whether `dvc.lock` knows them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pipeline.errors import BadInput
from pipeline.versioning.disk import STATE_PATHS
from pipeline.versioning.git import read_blobs
from pipeline.versioning.lockfile import FOLDER, Output
from pipeline.versioning.objects import file_md5, object_path, read_folder
from pipeline.versioning.runs import Iteration


class Files(Protocol):
    """The files of one iteration; `name` is how messages call it."""

    @property
    def name(self) -> str: ...

    @property
    def may_be_pruned(self) -> bool:
        """Whether the trainer state may be gone, as of older iterations of a run."""

    def file(self, artifact: str) -> Path | None:
        """The file that holds `artifact`, None where there is none."""

    def folder(self, artifact: str) -> dict[str, Path] | None:
        """Path within the folder `artifact` -> the file that holds it, None where there is no such folder."""

    def text(self, path: str) -> bytes | None:
        """The content of a file that Git keeps."""


@dataclass(frozen=True)
class CheckoutFiles:
    """The iteration that lies in a checkout."""

    root: Path
    name: str = "this checkout"
    may_be_pruned: bool = False

    def file(self, artifact: str) -> Path | None:
        path = self.root / artifact
        return path if path.is_file() else None

    def folder(self, artifact: str) -> dict[str, Path] | None:
        path = self.root / artifact
        if not path.is_dir():
            return None
        return {file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.is_file()}

    def text(self, path: str) -> bytes | None:
        file = self.file(path)
        return None if file is None else file.read_bytes()


@dataclass(frozen=True)
class CommittedFiles:
    """An iteration whose artifacts are in DVC's cache, by the md5 that `lock` has of each."""

    root: Path
    cache_dir: Path
    iteration: Iteration
    lock: Mapping[str, Output]
    may_be_pruned: bool = True

    @property
    def name(self) -> str:
        return self.iteration.name

    def file(self, artifact: str) -> Path | None:
        return self._object(self.lock[artifact].md5) if artifact in self.lock else None

    def folder(self, artifact: str) -> dict[str, Path] | None:
        if artifact not in self.lock:
            return None
        listed = read_folder(self.cache_dir, self.lock[artifact].md5)
        return None if listed is None else {name: object_path(self.cache_dir, md5) for name, md5 in listed.items()}

    def text(self, path: str) -> bytes | None:
        return read_blobs([f"{self.iteration.commit}:{path}"], self.root)[0]

    def _object(self, md5: str) -> Path | None:
        path = object_path(self.cache_dir, md5)
        return path if path.is_file() else None


@dataclass(frozen=True)
class Hashes:
    """MD5s of files, each computed once: iterations of a run share most of what is large."""

    known: dict[Path, str] = field(default_factory=dict)

    def of(self, path: Path) -> str:
        """The md5 of the file `path`."""
        if path not in self.known:
            self.known[path] = file_md5(path)
        return self.known[path]


def file_problems(
    files: Files, lock: Mapping[str, Output], in_git: frozenset[str], hashes: Hashes
) -> Iterator[tuple[str, str]]:
    """Artifact and what is wrong with it, of those that are missing or not what `lock` has of them."""
    for path, output in lock.items():
        if path in STATE_PATHS and files.may_be_pruned and not _is_here(files, output):
            continue
        try:
            found = _md5_in_git(files, path) if path in in_git else _md5(files, output, hashes)
        except BadInput as error:
            yield path, str(error)
            continue
        if found is None:
            yield path, "it is missing"
        elif found != output.md5:
            yield (
                path,
                f"its md5 is {found}, and dvc.lock has {output.md5}: it is another one, or was edited or damaged",
            )


def _is_here(files: Files, output: Output) -> bool:
    held = files.folder(output.path)
    return held is not None and all(file.is_file() for file in held.values())


def _md5_in_git(files: Files, path: str) -> str | None:
    content = files.text(path)
    return None if content is None else hashlib.md5(content, usedforsecurity=False).hexdigest()


def _md5(files: Files, output: Output, hashes: Hashes) -> str | None:
    if not output.is_folder:
        file = files.file(output.path)
        return None if file is None else hashes.of(file)
    held = files.folder(output.path)
    if held is None or not all(file.is_file() for file in held.values()):
        return None
    # As DVC makes the list of a folder, whose md5 is the folder's.
    entries = [{"md5": hashes.of(file), "relpath": name} for name, file in sorted(held.items())]
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + FOLDER
