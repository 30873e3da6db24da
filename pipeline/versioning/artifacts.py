"""What DVC keeps of an iteration: its artifacts, by the hashes in the `dvc.lock` of its commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import BadInput
from pipeline.table_io import atomic_path, flush_entry
from pipeline.versioning import objects
from pipeline.versioning.git import file_at_commit, git
from pipeline.versioning.lockfile import LOCKFILE, Output, parse_lock, read_cached_outputs, read_locks
from pipeline.versioning.remote import open_remote
from pipeline.versioning.repository import Repository, has_remote

NEXT_TRAINER_STATE = "data/next_trainer_state"


@dataclass(frozen=True)
class Missing:
    """Objects of `output`, an artifact of `commit`, that DVC's cache lacks."""

    commit: str
    output: Output
    md5s: tuple[str, ...]


@dataclass(frozen=True)
class Fetched:
    """What `fetch` brought, and what the remote lacks as well."""

    n_objects: int
    n_bytes: int
    missing: list[Missing]


def fetch_artifact(path: Path, commit: str, target: Path, repository: Repository | None = None) -> None:
    """Put the file or folder that DVC tracks as `path` in `commit` at `target`, whole or not at all.

    It comes from DVC's cache, or through it from the remote where the cache lacks it. Every md5 is verified. Cache and
    remote are those of `repository`, or of the checkout that is the current directory.

    Raises:
        BadInput: the commit is unknown, does not track `path`, its objects are nowhere to be had, or one is damaged.
        TransientError: the remote can't be reached.
    """
    here = repository or Repository(Path.cwd())
    cache_dir = here.cache_dir
    text = file_at_commit(commit, Path(LOCKFILE), here.root).decode("utf-8", "replace")
    lock = parse_lock(text, f"{LOCKFILE} in {commit}")
    output = lock.get(path.as_posix())
    if output is None:
        raise BadInput(f"{path} in commit {commit}", f"its {LOCKFILE} has no such output", "Name another commit")
    if objects.missing_md5s(cache_dir, output):
        _fetch_one(here, output, commit)
    again = f"`rollbook fetch {iteration_name(commit, here.root)}`, or run that iteration again"
    with atomic_path(target) as temporary:
        objects.copy_output(cache_dir, output, temporary, again)


def _fetch_one(here: Repository, output: Output, commit: str) -> None:
    name = iteration_name(commit, here.root)
    where = f"{output.path} of {name}"
    if not has_remote(here.root):
        lacking = ", ".join(objects.missing_md5s(here.cache_dir, output)[:3])
        remedy = f"Name a remote that has it with `dvc remote add --default NAME URL`, then `rollbook fetch {name}`"
        raise BadInput(where, f"DVC's cache lacks its objects ({lacking}), and there is no remote", remedy)
    lacking = ", ".join(md5 for missing in fetch(here, [commit], [output.path]).missing for md5 in missing.md5s[:3])
    if lacking:
        remedy = f"`rollbook fetch {name}` where a remote has it, or run that iteration again"
        raise BadInput(where, f"neither DVC's cache nor the remote has its objects ({lacking})", remedy)


def cached_file(repository: Repository, commit: str, folder: str, name: str) -> Path | None:
    """Where DVC's cache keeps the file `name` of the folder that it tracks as `folder` in `commit`; None if it doesn't.

    Raises:
        BadInput: the commit is no iteration, or the list of the folder is damaged.
    """
    (lock,) = read_locks([commit], repository.root)
    files = objects.read_folder(repository.cache_dir, lock[folder].md5) if folder in lock else None
    path = objects.object_path(repository.cache_dir, files[name]) if files and name in files else None
    return path if path and path.is_file() else None


def iteration_name(commit: str, cwd: Path | None = None) -> str:
    """The tag of the iteration that `commit` is, `demo/0003`, or the short id of a commit that is none."""
    tags = git("for-each-ref", "--points-at", commit, "--format=%(refname:lstrip=2)", "refs/tags/*/*", cwd=cwd)
    return min(tags.splitlines(), default=commit[:12])


def missing_objects(
    repository: Repository, commits: Sequence[str], paths: Iterable[str] | None = None
) -> list[Missing]:
    """The artifacts of `commits`, those at `paths` or all, of which DVC's cache lacks something.

    Raises:
        BadInput: a commit is no iteration, or the list of a folder is damaged.
    """
    wanted = None if paths is None else set(paths)
    cache_dir = repository.cache_dir
    found = []
    for commit, outputs in zip(commits, read_cached_outputs(commits, repository.root), strict=True):
        for path, output in outputs.items():
            if wanted is None or path in wanted:
                found.append(Missing(commit, output, tuple(objects.missing_md5s(cache_dir, output))))
    return [missing for missing in found if missing.md5s]


def fetch(repository: Repository, commits: Sequence[str], paths: Iterable[str] | None = None) -> Fetched:
    """Bring the artifacts of `commits`, those at `paths` or all, from DVC's remote into its cache.

    Raises:
        BadInput: a commit is no iteration, or DVC's settings name no remote.
        TransientError: the remote can't be reached, or broke off; what came is whole and stays.
    """
    paths = None if paths is None else list(paths)
    first = missing_objects(repository, commits, paths)
    if not first:
        return Fetched(0, 0, [])
    with open_remote(repository.root) as remote:
        lists = {md5 for missing in first for md5 in missing.md5s}
        remote.download(lists)
        # Which files a folder has is known once its list is here.
        files = {md5 for missing in missing_objects(repository, commits, paths) for md5 in missing.md5s} - lists
        remote.download(files)
    left = missing_objects(repository, commits, paths)
    came = (lists | files) - {md5 for missing in left for md5 in missing.md5s}
    cache_dir = repository.cache_dir
    n_bytes = sum(objects.object_path(cache_dir, md5).stat().st_size for md5 in came)
    return Fetched(len(came), n_bytes, left)


def has_trainer_state(repository: Repository, commit: str) -> bool:
    """Whether DVC's cache has the trainer state that the iteration `commit` ended with."""
    return not missing_objects(repository, [commit], [NEXT_TRAINER_STATE])


def sync_objects(repository: Repository, lock_text: str) -> None:
    """Have every object that a `dvc.lock` names on the disk, so that no power loss leaves a commit of torn ones.

    What the cache lacks is passed over: outputs that Git keeps are in `dvc.lock` too.

    Raises:
        BadInput: an object is shorter or longer than it should be.
    """
    cache_dir = repository.cache_dir
    folders: set[Path] = set()
    for output in parse_lock(lock_text).values():
        for md5 in objects.md5s_of(cache_dir, output):
            path = objects.object_path(cache_dir, md5)
            if path.is_file():
                flush_entry(path)
                folders |= {path.parent, path.parent.parent}
        if objects.object_path(cache_dir, output.md5).is_file():
            objects.check_size(cache_dir, output, "`dvc repro`")
    for folder in folders:
        flush_entry(folder)
