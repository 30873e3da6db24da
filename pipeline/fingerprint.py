"""The fingerprint of a policy: what its files hold, in sixteen digits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def fingerprint_files(files: Iterable[tuple[str, Path]]) -> str:
    """16 hexadecimal digits of the SHA-256 of every file that makes a policy what it is, by name and in order."""
    digest = hashlib.sha256()
    for name, file in files:
        digest.update(name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]
