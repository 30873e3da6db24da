"""Digests of files, by what they hold and by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def digest_files(files: Iterable[tuple[str, Path]]) -> str:
    """SHA-256, in hexadecimal, of what `files` hold and of the name that is given with each, in their order."""
    digest = hashlib.sha256()
    for name, file in files:
        digest.update(name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def fingerprint_files(files: Iterable[tuple[str, Path]]) -> str:
    """The first 16 digits of `digest_files`: what a model is known by."""
    return digest_files(files)[:16]


def fingerprint_folders(*folders: Path) -> str:
    """`fingerprint_files` of all files that lie in `folders`."""
    return fingerprint_files((file.name, file) for folder in folders for file in sorted(folder.iterdir()))
