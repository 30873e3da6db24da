"""One trainer per run, and a clean start after one that was killed.

A trainer marks the processes it starts, since a killed one can't stop them: the next trainer of the same run ends
what a dead one left behind before it touches a file. Locks of Git and DVC are removed only where no process that
could hold them is alive.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.errors import BadInput
from pipeline.versioning.git import git, run_git
from pipeline.versioning.repository import Repository

MARK = "ROLLBOOK_TRAINER"
SECONDS_TO_DIE = 10
SECONDS_FOR_GIT = 60


@contextmanager
def trainer_lock(repository: Repository, run: str) -> Iterator[None]:
    """Hold `run` for this process; the operating system gives it free when the process ends, however it ends.

    Raises:
        BadInput: another process holds it; the message names the process.
    """
    repository.locks.mkdir(parents=True, exist_ok=True)
    path = repository.locks / f"{run}.lock"
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"run {run}", f"it is in use by {_holder(path)}", "Wait for it, or stop it") from None
        file.truncate(0)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "command": " ".join(sys.argv)}
        file.write(json.dumps(holder))
        file.flush()
        yield


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['pid']} on {holder['host']} ({holder['command']})"
    except (ValueError, KeyError, TypeError):  # it has the lock, but not yet written who it is
        return "another process"


def child_environment() -> dict[str, str]:
    """The environment for what a trainer starts: this process's, with a mark that names the trainer."""
    me = psutil.Process()
    # DVC starts no daemon of its own (analytics, updates), which would live on in the worktree and look like a command.
    return {**os.environ, MARK: f"{me.pid}:{me.create_time():.2f}", "DVC_DAEMON": "1"}


def clear_leftovers(repository: Repository, worktree: Path) -> None:
    """Make `worktree` usable after a trainer that was killed: end its processes, remove its stale locks.

    Call it with the trainer lock of the run in hand.

    Raises:
        BadInput: a process that no dead trainer left is at work in `worktree`; the message names it.
    """
    at_work = list(_processes_in(worktree))
    orphans = [process for process in at_work if _is_orphan(process)]
    for process in orphans:
        with _gone_is_fine():
            process.kill()
    psutil.wait_procs(orphans, timeout=SECONDS_TO_DIE)
    for process in at_work:
        if process not in orphans and process.is_running():
            command = _command(process)
            raise BadInput(str(worktree), f"process {process.pid} works in it ({command})", "Wait for it, or stop it")
    _remove_stale_locks(repository, worktree)
    _restore_torn_lockfile(worktree)


def clear_reference_locks(repository: Repository, run: str) -> None:
    """Remove the locks that a killed Git left on the branch and the tags of `run`, unless some Git is at work."""
    references = repository.root / ".git" / "refs"
    stale = [references / "heads" / "runs" / f"{run}.lock", *(references / "tags" / run).glob("*.lock")]
    if any(file.exists() for file in stale) and not any(_git_processes(str(repository.root))):
        for file in stale:
            file.unlink(missing_ok=True)


def wait_for_git(path: str) -> None:
    """Wait for a Git that lives on, after what started it was killed, and is still making the worktree `path`."""
    psutil.wait_procs(list(_git_processes(path)), timeout=SECONDS_FOR_GIT)


def _git_processes(path: str) -> Iterator[psutil.Process]:
    """Processes of Git that were given `path`, or are in it."""
    for process in psutil.process_iter():
        with _gone_is_fine():
            words = process.cmdline()
            if words and Path(words[0]).name == "git" and (path in words or Path(process.cwd()).is_relative_to(path)):
                yield process


def _processes_in(worktree: Path) -> Iterator[psutil.Process]:
    """Processes in `worktree` of git, dvc or a stage, and what a trainer started."""
    for process in psutil.process_iter():
        with _gone_is_fine():
            if process.pid == os.getpid() or not Path(process.cwd()).is_relative_to(worktree):
                continue
            words = process.cmdline()[:4]
            is_tool = any(Path(word).name in ("git", "dvc") or word.startswith("stages.") for word in words)
            if is_tool or MARK in process.environ():
                yield process


def _is_orphan(process: psutil.Process) -> bool:
    """Whether a trainer that is dead started `process`."""
    with _gone_is_fine():
        trainer, _, created = process.environ().get(MARK, "").partition(":")
        if not trainer:
            return False
        try:
            return f"{psutil.Process(int(trainer)).create_time():.2f}" != created
        except psutil.NoSuchProcess:
            return True
    return False


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """Processes end while they are looked at, and those of other users can't be."""
    try:
        yield
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return


def _command(process: psutil.Process) -> str:
    with _gone_is_fine():
        return " ".join(process.cmdline())
    return "gone by now"


def _remove_stale_locks(repository: Repository, worktree: Path) -> None:
    """Remove the lock files of DVC and Git in `worktree`, in which nothing is at work."""
    own = Path(git("rev-parse", "--path-format=absolute", "--git-dir", cwd=worktree))
    branch = run_git("symbolic-ref", "--quiet", "HEAD", cwd=worktree).stdout.decode().strip()
    for file in (worktree / ".dvc" / "tmp" / "rwlock", own / "index.lock", own / "HEAD.lock"):
        file.unlink(missing_ok=True)
    clear_reference_locks(repository, branch.removeprefix("refs/heads/runs/"))


def _restore_torn_lockfile(worktree: Path) -> None:
    """Take dvc.lock back to what is committed where DVC was killed while it wrote it.

    DVC restores what the lost entries stood for from its run cache.
    """
    lockfile = worktree / "dvc.lock"
    if not lockfile.is_file() or _is_whole(lockfile):
        return
    lockfile.unlink()
    if run_git("cat-file", "-e", "HEAD:dvc.lock", cwd=worktree).returncode == 0:
        git("checkout", "--quiet", "HEAD", "--", "dvc.lock", cwd=worktree)


def _is_whole(lockfile: Path) -> bool:
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA  # takes a moment to import, and is wanted once per training
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(YAML(typ="safe", pure=True).load(lockfile.read_text(encoding="utf-8")))
    except (YAMLError, UnicodeDecodeError, Invalid):
        return False
    return True
