"""The space that runs take, and the trainer state of older iterations, which no later one needs.

Objects are shared: the state that iteration 3 ends with is the one that 4 begins with, and a fork has both. So what
goes is what nothing else refers to, by md5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import BadInput
from pipeline.versioning import objects
from pipeline.versioning.git import git, read_blobs
from pipeline.versioning.lockfile import FOLDER, LOCKFILE, Output, parse_lock, read_cached_outputs, read_locks
from pipeline.versioning.remote import Remote, open_remote
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import BRANCHES, ITERATION_TAG, Iteration, branch_of, lineage, list_runs

STATE_PATHS = frozenset({"data/trainer_state", "data/next_trainer_state"})
_MD5 = re.compile(r"""md5"?: ['"]?([0-9a-f]{32}(?:\.dir)?)""")
"""In what DVC writes, YAML and the JSON lists of folders."""

_RUN_REF = re.compile(rf"refs/(?:heads|remotes/[^/]+)/{BRANCHES}.*|refs/tags/(?:{ITERATION_TAG.pattern})")


@dataclass(frozen=True)
class Freed:
    """The trainer state of an iteration: how many objects go, and their bytes in DVC's cache and its remote."""

    iteration: Iteration
    n_objects: int
    cache_bytes: int
    remote_bytes: int


@dataclass(frozen=True)
class _State:
    """A trainer state that may go, and the first iteration that has it."""

    iteration: Iteration
    output: Output


def prune(
    repository: Repository,
    keep_state: int = 2,
    runs: Sequence[str] | None = None,
    remote: bool = False,
    dry_run: bool = False,
) -> list[Freed]:
    """Remove the trainer state of all but the last `keep_state` iterations of `runs`, or of all runs.

    It goes from DVC's cache and, with `remote`, from its remote; with `dry_run` nothing goes. An entry per iteration
    that had something says what is or would be freed. Tables and policies stay, and so does what anything else refers
    to: the last iterations of every run and all those of runs that were not named, what lies in any checkout, branches
    and tags that are no run's, files under `dvc add`. Killed midway and run again, it finishes.

    Raises:
        BadInput: a run is unknown, `keep_state` is less than 1, or `remote` is asked for and there is none.
        TransientError: the remote can't be reached.
    """
    if keep_state < 1:
        raise BadInput("keep_state", f"{keep_state} is less than 1, and a run goes on from its last state", "Keep 1")
    old, protected = _divide(repository, runs, keep_state)
    with ExitStack() as stack:
        store = stack.enter_context(open_remote(repository.root)) if remote else None
        states = _states_here(repository, old, store)
        if not states:
            return []
        going = _going_md5s(repository, states, protected, store)
        freed = [_remove(repository, iteration, md5s, store, dry_run) for iteration, md5s in going.items()]
    return [entry for entry in freed if entry.n_objects]


def sizes(repository: Repository, runs: Iterable[str]) -> dict[str, int]:
    """Run -> bytes that the artifacts of its iterations take in DVC's cache, those that it shares included."""
    cache_dir = repository.cache_dir
    found = {}
    for run in runs:
        commits = [iteration.commit for iteration in lineage(repository, run)]
        locks = read_cached_outputs(commits, repository.root)
        sizes_by_md5 = {output.md5: output.size for lock in locks for output in lock.values()}
        found[run] = sum(size for md5, size in sizes_by_md5.items() if objects.object_path(cache_dir, md5).is_file())
    return found


def _divide(
    repository: Repository, runs: Sequence[str] | None, keep_state: int
) -> tuple[dict[str, Iteration], set[str]]:
    """Commit -> iteration of those whose state may go, and the commits all of whose artifacts stay."""
    lines = {run: lineage(repository, run) for run in list_runs(repository)}
    for run in runs or ():
        branch_of(repository, run)
    recent = {iteration.commit for line in lines.values() for iteration in line[-keep_state:]}
    chosen = lines if runs is None else runs
    # What a run took over from the one it left is that one's to prune.
    older = [one for run in chosen for one in lines[run][:-keep_state] if runs is None or one.run == run]
    old = {iteration.commit: iteration for iteration in older if iteration.commit not in recent}
    every = {iteration.commit for line in lines.values() for iteration in line}
    return old, (every - old.keys()) | set(_tips(repository, old))


def _tips(repository: Repository, old: dict[str, Iteration]) -> Iterator[str]:
    """The commits that a reference or a checkout stands at, but for the tags and branches of runs at `old` ones."""
    listed = git("for-each-ref", "--format=%(objectname) %(*objectname) %(refname)", cwd=repository.root)
    for line in listed.splitlines():
        target, peeled, name = line.split(" ", 2)
        commit = peeled or target
        if commit not in old or not _RUN_REF.fullmatch(name):
            yield commit
    for line in git("worktree", "list", "--porcelain", cwd=repository.root).splitlines():
        if line.startswith("HEAD "):
            yield line.removeprefix("HEAD ")


def _states_here(repository: Repository, old: dict[str, Iteration], store: Remote | None) -> list[_State]:
    """The trainer states of `old` iterations of which something is in the cache or in `store`, each once."""
    found: dict[str, _State] = {}
    locks = read_locks(list(old), repository.root)
    for iteration, lock in zip(old.values(), locks, strict=True):
        for path in sorted(STATE_PATHS & lock.keys(), reverse=True):
            found.setdefault(lock[path].md5, _State(iteration, lock[path]))
    if store:
        # Their lists say which files they have, and stay in the cache until the files are gone everywhere.
        _bring_lists(repository, found, store)
    cache_dir = repository.cache_dir
    return [state for md5, state in found.items() if objects.object_path(cache_dir, md5).is_file()]


def _bring_lists(repository: Repository, md5s: Iterable[str], store: Remote) -> None:
    cache_dir = repository.cache_dir
    store.download([md5 for md5 in md5s if not objects.object_path(cache_dir, md5).is_file()])


def _going_md5s(
    repository: Repository, states: list[_State], protected: set[str], store: Remote | None
) -> dict[Iteration, list[str]]:
    """The objects of `states` that nothing else refers to, by the first iteration that has them.

    The list of a folder comes after its files: while it is there, what is left of them can be found.
    """
    shared = _shared_md5s(repository, states, protected, store)
    cache_dir = repository.cache_dir
    going: dict[Iteration, list[str]] = {}
    for state in states:
        if state.output.md5 not in shared:
            listing, *files = objects.md5s_of(cache_dir, state.output)
            md5s = [md5 for md5 in (*files, listing) if md5 not in shared]
            shared.update(md5s)  # a file that two states have is counted once
            going.setdefault(state.iteration, []).extend(md5s)
    return going


def _shared_md5s(repository: Repository, states: list[_State], protected: set[str], store: Remote | None) -> set[str]:
    """Those objects of `states` that something else refers to."""
    cache_dir = repository.cache_dir
    candidates = {md5 for state in states for md5 in objects.md5s_of(cache_dir, state.output)}
    locks, others = _texts_of_history(repository)
    whole = [*others, *_texts_of_checkouts(repository), *_texts_of_commits(repository, protected)]
    shared = {md5 for text in whole for md5 in _MD5.findall(text)}
    named = set(shared)
    for text in locks:
        in_it = set(_MD5.findall(text))
        named |= in_it
        if in_it & candidates:  # parsing is the slow part
            shared |= {output.md5 for path, output in parse_lock(text).items() if path not in STATE_PATHS}
    folders = {md5 for md5 in named if md5.endswith(FOLDER)} - ({state.output.md5 for state in states} - shared)
    if store:
        _bring_lists(repository, folders, store)
    for path in (objects.object_path(cache_dir, md5) for md5 in folders):
        if path.is_file():
            shared.update(_MD5.findall(path.read_text(encoding="utf-8", errors="replace")))
    return shared & candidates


def _texts_of_history(repository: Repository) -> tuple[list[str], list[str]]:
    """The text of every `dvc.lock`, and of every file of `dvc add`, in the history of every reference."""
    options = ("--all", "--full-history", "-m", "--raw", "--no-abbrev", "--no-renames", "--diff-filter=AM", "--format=")
    listed = git("-c", "log.showRoot=true", "log", *options, "--", LOCKFILE, ":(glob)**/*.dvc", cwd=repository.root)
    paths: dict[str, str] = {}
    for line in listed.splitlines():
        change, _, path = line.partition("\t")  # `:100644 100644 <old blob> <new blob> M`
        if path:
            paths[change.split()[3]] = path
    locks = [blob for blob, path in paths.items() if path == LOCKFILE]
    others = [blob for blob, path in paths.items() if path.strip('"').endswith(".dvc")]
    return _read(repository, locks), _read(repository, others)


def _texts_of_commits(repository: Repository, commits: Iterable[str]) -> list[str]:
    return _read(repository, [f"{commit}:{LOCKFILE}" for commit in commits])


def _texts_of_checkouts(repository: Repository) -> Iterator[str]:
    """The text of the `dvc.lock` and of the files of `dvc add` in every checkout, committed or not."""
    for line in git("worktree", "list", "--porcelain", cwd=repository.root).splitlines():
        checkout = Path(line.removeprefix("worktree "))
        if line.startswith("worktree ") and checkout.is_dir():
            names = git(
                *("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", LOCKFILE, ":(glob)**/*.dvc"),
                cwd=checkout,
            )
            for path in (checkout / name for name in names.split("\0") if name.endswith((LOCKFILE, ".dvc"))):
                if path.is_file():
                    yield path.read_text(encoding="utf-8", errors="replace")


def _read(repository: Repository, names: list[str]) -> list[str]:
    return [blob.decode("utf-8", "replace") for blob in read_blobs(names, repository.root) if blob is not None]


def _remove(
    repository: Repository, iteration: Iteration, md5s: list[str], store: Remote | None, dry_run: bool
) -> Freed:
    """Remove the objects `md5s`, which come in the order in which they can go; return what that frees."""
    present = store.present(md5s) if store else set()
    cache_dir = repository.cache_dir
    paths = {md5: path for md5 in md5s if (path := objects.object_path(cache_dir, md5)).is_file()}
    freed = Freed(
        iteration,
        len(paths.keys() | present),
        sum(path.stat().st_size for path in paths.values()),
        sum(store.n_bytes(md5) for md5 in present) if store else 0,
    )
    if not dry_run:
        if store:
            store.delete(present)
        for path in paths.values():
            path.unlink(missing_ok=True)
    return freed
