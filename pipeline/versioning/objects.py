"""The objects of DVC's cache: a read-only file each, named by its md5.

That of a folder, whose md5 ends in `.dir`, is a JSON list of the files in it. An object may serve many iterations.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePosixPath

from pipeline.errors import BadInput
from pipeline.versioning.lockfile import FOLDER, Output

CHUNK_BYTES = 2**22
AGAIN = "`rollbook fetch RUN/K`, or run that iteration again"


def object_path(cache_dir: Path, md5: str) -> Path:
    """Where DVC's cache keeps the object `md5`.

    >>> str(object_path(Path(".dvc/cache"), "abcd.dir"))
    '.dvc/cache/files/md5/ab/cd.dir'
    """
    return cache_dir / "files" / "md5" / md5[:2] / md5[2:]


def parse_folder(content: bytes, where: str) -> dict[str, str]:
    """Path in the folder -> md5 of the file, from the object of the folder.

    Raises:
        BadInput: it is no such list, or would write outside the folder; `where` names it.

    >>> parse_folder(b'[{"md5": "ab", "relpath": "config.json"}]', "cd.dir")
    {'config.json': 'ab'}
    """
    try:
        files = {str(entry["relpath"]): str(entry["md5"]) for entry in json.loads(content)}
    except (ValueError, KeyError, TypeError):
        files = {"..": ""}
    if any(PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts for path in files):
        raise BadInput(where, "it is no list of the files in a folder, as DVC writes it", f"Remove it, then {AGAIN}")
    return files


def file_md5(path: Path) -> str:
    """The md5 of the file `path`, which is what DVC calls it by."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def read_folder(cache_dir: Path, md5: str) -> dict[str, str] | None:
    """Path in the folder -> md5 of the file, for the folder `md5`; None where the cache lacks its list.

    Raises:
        BadInput: the list is damaged.
    """
    path = object_path(cache_dir, md5)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    _check_md5(path, hashlib.md5(content, usedforsecurity=False).hexdigest(), md5, AGAIN)
    return parse_folder(content, str(path))


def md5s_of(cache_dir: Path, output: Output) -> list[str]:
    """The objects that `output` is made of, the list of a folder first, its files as far as the list is here."""
    files = read_folder(cache_dir, output.md5) if output.is_folder else None
    return [output.md5, *dict.fromkeys((files or {}).values())]


def missing_md5s(cache_dir: Path, output: Output) -> list[str]:
    """The objects of `output` that the cache lacks; of a folder whose list is lacking, just the list is known."""
    return [md5 for md5 in md5s_of(cache_dir, output) if not object_path(cache_dir, md5).is_file()]


def copy_output(cache_dir: Path, output: Output, target: Path, remedy: str) -> None:
    """Copy `output`, all of whose objects are in the cache, to `target`, each md5 verified on the way.

    The files are new and writable, whatever the cache's are.

    Raises:
        BadInput: an object is damaged; the message names its file and ends with "remove it, then" `remedy`.
    """
    if not output.is_folder:
        _copy(cache_dir, output.md5, target, remedy)
        return
    target.mkdir()
    for path, md5 in (read_folder(cache_dir, output.md5) or {}).items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        _copy(cache_dir, md5, file, remedy)


def check_size(cache_dir: Path, output: Output, remedy: str) -> None:
    """Raise `BadInput` where the file `output` has another size in the cache, as a write that was cut off leaves it."""
    path = object_path(cache_dir, output.md5)
    size = path.stat().st_size
    if not output.is_folder and size != output.size:
        problem = f"it has {size:,} bytes, and {output.path} has {output.size:,}: it is damaged"
        raise BadInput(str(path), problem, f"Remove it, then {remedy}")


def _copy(cache_dir: Path, md5: str, target: Path, remedy: str) -> None:
    path = object_path(cache_dir, md5)
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as source, target.open("xb") as copy:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
    _check_md5(path, digest.hexdigest(), md5, remedy)


def check_object(cache_dir: Path, md5: str) -> None:
    """Raise `BadInput` where the object `md5`, a file that is here, is damaged."""
    path = object_path(cache_dir, md5)
    _check_md5(path, file_md5(path), md5, AGAIN)


def _check_md5(path: Path, found: str, expected: str, remedy: str) -> None:
    if found != expected.removesuffix(FOLDER):
        problem = f"its md5 is {found}, and should be {expected.removesuffix(FOLDER)}: it is damaged"
        raise BadInput(str(path), problem, f"Remove it, then {remedy}")
