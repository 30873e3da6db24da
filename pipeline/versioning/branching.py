"""A run begins: its branch, and the worktree that it trains in."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE
from pipeline.params_edit import edit_params
from pipeline.table_io import write_text
from pipeline.versioning.artifacts import has_trainer_state
from pipeline.versioning.changes import GENERATED, changed_files, refuse_changes
from pipeline.versioning.dvc import dvc
from pipeline.versioning.git import DURABLE, git, run_git
from pipeline.versioning.guards import clear_reference_locks, wait_for_git
from pipeline.versioning.lockfile import LOCKFILE, parse_lock
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import (
    BRANCHES,
    Iteration,
    branch_of,
    check_identity,
    check_name_is_free,
    lineage_of_revision,
    resolve,
    run_of_checkout,
)


def new_run(
    repository: Repository,
    name: str,
    start: str | None = None,
    settings: Mapping[str, Any] | None = None,
    include_changes: bool = False,
    fresh_optimizer: bool = False,
    checkout: Path | None = None,
) -> Path:
    """Make the branch of the run `name` and its worktree; return the worktree.

    The run leaves history at `start` (`demo`, `demo/0003`, a revision), or at what `checkout` (the main one) has
    committed. `settings` are dotted keys of params.yaml; with `include_changes` the uncommitted edits of `checkout`
    are recorded too: both become the first commit of the branch. With `fresh_optimizer` the run goes on from the
    iteration `start` without its optimizer state.

    Raises:
        BadInput: the name is taken; `checkout` has uncommitted edits that were not asked for; `start` is an
            iteration whose trainer state is not here.
    """
    checkout = checkout or repository.root
    check_name_is_free(repository, name)
    check_identity(checkout)
    if start is not None and include_changes:
        problem = "uncommitted edits are made to another commit than the one it is to begin from"
        raise BadInput(f"run {name}", problem, "Begin from the checkout, or commit the edits")
    commit = git("rev-parse", "HEAD", cwd=checkout) if start is None else resolve(repository, start)
    edited = changed_files(checkout, GENERATED) if start is None else []
    if not include_changes:
        remedy = "Commit them, or give --include-changes to record them in the run"
        refuse_changes(checkout, edited, remedy)
    origin = _iteration_at(repository, commit)
    changes = dict(settings or {})
    if fresh_optimizer:
        changes = {**_next_iteration(origin, start), "start.fresh_optimizer": True, **changes}
    elif origin and not has_trainer_state(repository, commit):
        problem = f"the trainer state of {origin.name} is not in DVC's cache"
        remedy = f"`rollbook fetch {origin.name}`, or give --fresh-optimizer to go on without it"
        raise BadInput(f"run {name}", problem, remedy)
    first = _commit_with(repository, checkout, commit, edited, changes, name)
    clear_reference_locks(repository, name)
    git(*DURABLE, "update-ref", f"refs/heads/{BRANCHES}{name}", first, "0" * 40, cwd=repository.root)
    return open_worktree(repository, name)


def open_worktree(repository: Repository, run: str) -> Path:
    """The worktree of `run`, made where there is none yet, with DVC set to the cache that all share.

    Raises:
        BadInput: the branch is checked out elsewhere, or another one is checked out there.
    """
    branch = branch_of(repository, run)
    path = repository.worktree(run)
    if path.exists() and not _is_whole(repository, path):
        _clear_unfinished(repository, path)
    if not path.exists():
        _forget(repository, path)
        local = f"{BRANCHES}{run}"
        new = ["-b", local] if branch.startswith("refs/remotes/") else []
        target = branch.removeprefix("refs/") if new else local
        _refuse_second_checkout(repository, local)
        path.parent.mkdir(parents=True, exist_ok=True)
        git("worktree", "add", "--quiet", *new, str(path), target, cwd=repository.root)
        repository.configure_worktree(path)
        _lay_out(path)
    found = run_of_checkout(path)
    if found != run:
        remedy = f"`git switch {BRANCHES}{run}` there, or remove that folder: it is made anew from the branch"
        raise BadInput(str(path), f"it is the worktree of {run}, and has {BRANCHES}{found} checked out", remedy)
    repository.configure_worktree(path)
    return path


def begin_anew(worktree: Path, run: str, origin: Iteration, settings: Mapping[str, Any]) -> None:
    """Have `run`, which is checked out in `worktree`, leave `origin` with `settings`; edits that are there are lost."""
    git("reset", "--quiet", "--hard", origin.commit, cwd=worktree)
    file = worktree / PARAMS_FILE
    write_text(edit_params(file.read_text(encoding="utf-8"), settings, str(file)), file)
    said = ", ".join(f"{key}: {value!r}" for key, value in settings.items())
    message = f"{run}: begins at {origin.name} with {said or 'its own settings'}"
    git("add", "--", PARAMS_FILE.name, cwd=worktree)
    git(*DURABLE, "commit", "--quiet", "--no-verify", "--allow-empty", "--message", message, cwd=worktree)


def check_out_iteration(repository: Repository, checkout: Path, name: str) -> tuple[str, list[str]]:
    """Lay out the iteration `name` in `checkout`, HEAD detached; return its commit and which outputs DVC's cache lacks.

    Raises:
        BadInput: there is no such iteration, or files in `checkout` would be lost.
    """
    commit = resolve(repository, name)
    remedy = "Commit them first (`rollbook commit` for an iteration), or `git stash --include-untracked`"
    refuse_changes(checkout, changed_files(checkout), remedy)
    git("checkout", "--quiet", "--detach", commit, cwd=checkout)
    _lay_out(checkout)
    lockfile = checkout / LOCKFILE
    locked = parse_lock(lockfile.read_text(encoding="utf-8")) if lockfile.is_file() else {}
    return commit, [path for path in locked if not (checkout / path).exists()]


def _is_whole(repository: Repository, path: Path) -> bool:
    """Whether `path` is a worktree of `repository`; where the repository was moved, its links are mended first."""
    own = _git_folder(path)
    if own is None and (path / ".git").is_file():
        git("worktree", "repair", str(path), cwd=repository.root)
        own = _git_folder(path)
    is_ours = own is not None and own.parent == repository.root / ".git" / "worktrees"
    return is_ours and own is not None and (own / "index").is_file()


def _git_folder(path: Path) -> Path | None:
    found = run_git("rev-parse", "--path-format=absolute", "--git-dir", cwd=path)
    return Path(found.stdout.decode().strip()) if found.returncode == 0 else None


def _clear_unfinished(repository: Repository, path: Path) -> None:
    """Remove the worktree `path` if Git was killed while it made it: it has no index yet, so nothing ran in it.

    Raises:
        BadInput: it is something else, which a person must look at.
    """
    wait_for_git(str(path))
    own = _git_folder(path)
    was_begun = own is not None and own.parent == repository.root / ".git" / "worktrees"
    if any(path.iterdir()) and not was_begun:
        remedy = "Move it away; the worktree is made anew from the branch"
        raise BadInput(str(path), "it is in the way, and no worktree of this repository", remedy)
    shutil.rmtree(path)


def _forget(repository: Repository, path: Path) -> None:
    """Have Git forget a worktree at `path`, which is gone: one that it was killed while making is locked, too."""
    for link in (repository.root / ".git" / "worktrees").glob("*/gitdir"):
        if Path(link.read_text(encoding="utf-8").strip()).parent == path:
            (link.parent / "locked").unlink(missing_ok=True)
    git("worktree", "prune", cwd=repository.root)


def _lay_out(worktree: Path) -> None:
    """Lay out what dvc.lock names and DVC's cache has; what is missing there stays missing."""
    if (worktree / LOCKFILE).is_file():
        dvc("checkout", "--quiet", "--allow-missing", cwd=worktree)


def _refuse_second_checkout(repository: Repository, branch: str) -> None:
    path = ""
    for line in git("worktree", "list", "--porcelain", cwd=repository.root).splitlines():
        key, _, value = line.partition(" ")
        path = value if key == "worktree" else path
        if key == "branch" and value == f"refs/heads/{branch}":
            remedy = "Switch that checkout to another branch: a run trains in a worktree of its own"
            raise BadInput(path, f"it has {branch} checked out", remedy)


def _iteration_at(repository: Repository, commit: str) -> Iteration | None:
    line = lineage_of_revision(repository.root, commit)
    return line[-1] if line and line[-1].commit == commit else None


def _next_iteration(origin: Iteration | None, start: str | None) -> dict[str, Any]:
    if origin is None:
        problem = f"{start or 'the checkout'} is no iteration, so there is no optimizer state to leave behind"
        raise BadInput("--fresh-optimizer", problem, "Give --from RUN/K, or leave it out")
    return {"iteration": origin.number + 1, "parent": origin.commit}


def _commit_with(
    repository: Repository, checkout: Path, commit: str, edited: list[str], settings: Mapping[str, Any], run: str
) -> str:
    """A commit that is `commit` with the files `edited` as they are in `checkout`, and `settings`; no file is touched.

    It is `commit` itself where that changes nothing.
    """
    top = Path(git("rev-parse", "--show-toplevel", cwd=checkout))
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GIT_INDEX_FILE": str(Path(folder) / "index")}

        def indexed(*arguments: str, stdin: bytes | None = None) -> str:
            done = run_git(*arguments, cwd=checkout, stdin=stdin, environment=environment)
            if done.returncode:
                reason = done.stderr.decode(errors="replace").strip()
                raise BadInput(f"run {run}", f"git {arguments[0]}: {reason}", "See `git status`")
            return done.stdout.decode()

        indexed("read-tree", commit)
        known = set(indexed("ls-files", "--full-name", "-z", ":/").split("\0"))
        # One that was staged and then deleted is neither here nor there.
        present = [file for file in edited if file in known or os.path.lexists(top / file)]
        if present:
            indexed("add", "--all", "--", *(f":(top,literal){file}" for file in present))
        where = f"{PARAMS_FILE} of {commit[:12]}"
        text = edit_params(indexed("cat-file", "blob", f":{PARAMS_FILE}"), settings, where)
        blob = indexed("hash-object", "-w", "--stdin", stdin=text.encode()).strip()
        indexed("update-index", "--cacheinfo", f"100644,{blob},{PARAMS_FILE}")
        tree = indexed("write-tree").strip()
    if tree == git("rev-parse", f"{commit}^{{tree}}", cwd=repository.root):
        return commit
    said = [f"{key}: {value!r}" for key, value in settings.items()] + edited
    message = f"{run}: begins with {', '.join(said)}"
    return git(*DURABLE, "commit-tree", tree, "-p", commit, "-m", message, cwd=repository.root)
