from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.errors import BadInput
from pipeline.versioning.branching import new_run
from pipeline.versioning.dvc import dvc
from pipeline.versioning.guards import MARK, child_environment, clear_leftovers, trainer_lock
from pipeline.versioning.iterations import commit_iteration
from tests.versioning.project import Project

HOLD = """
import sys, time
from pathlib import Path
from pipeline.versioning.guards import trainer_lock
from pipeline.versioning.repository import Repository
with trainer_lock(Repository(Path(sys.argv[1])), "demo"):
    print("held", flush=True)
    time.sleep(60)
"""
CUT = "schema: '2.0'\nstages:\n  make:\n    cmd: python make.py\n    deps:\n    - pat"
"""Whole as YAML, which DVC refuses."""
AS_A_STAGE = [sys.executable, "-c", "import time; time.sleep(60)", "stages.update"]


@pytest.fixture
def worktree(project: Project) -> Path:
    return new_run(project.repository, "demo")


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to be killed when the test ends."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_a_second_trainer_is_refused_with_the_name_of_the_first(
    project: Project, started: list[subprocess.Popen[str]]
) -> None:
    command = [sys.executable, "-c", HOLD, str(project.root)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    started.append(holder)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(BadInput, match=rf"run demo: it is in use by process {holder.pid} on .*Wait for it"),
        trainer_lock(project.repository, "demo"),
    ):
        pass
    with trainer_lock(project.repository, "another"):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with trainer_lock(project.repository, "demo"):
        content = json.loads((project.repository.locks / "demo.lock").read_text())
    assert content["pid"] == os.getpid()


def test_what_a_dead_trainer_left_is_ended(
    project: Project, worktree: Path, started: list[subprocess.Popen[str]]
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    mark = {MARK: f"{dead.pid}:{time.time():.2f}"}
    orphan = subprocess.Popen(AS_A_STAGE, cwd=worktree, env={**os.environ, **mark}, text=True)
    elsewhere = subprocess.Popen(AS_A_STAGE, cwd=project.root, env={**os.environ, **mark}, text=True)
    started += [orphan, elsewhere]
    time.sleep(0.3)  # until it is the program, and no longer a copy of this one
    clear_leftovers(project.repository, worktree)
    orphan.wait(timeout=5)  # raises where it lives on
    assert not psutil.pid_exists(orphan.pid)
    assert elsewhere.poll() is None


def test_a_number_that_another_process_has_now_is_no_trainer(
    project: Project, worktree: Path, started: list[subprocess.Popen[str]]
) -> None:
    me = psutil.Process()
    mark = {MARK: f"{me.pid}:{me.create_time() - 1000:.2f}"}
    orphan = subprocess.Popen(AS_A_STAGE, cwd=worktree, env={**os.environ, **mark}, text=True)
    started.append(orphan)
    time.sleep(0.3)
    clear_leftovers(project.repository, worktree)
    orphan.wait(timeout=5)  # raises where it lives on
    assert not psutil.pid_exists(orphan.pid)


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_process_at_work_is_named_and_left_alone(
    project: Project, worktree: Path, started: list[subprocess.Popen[str]], is_marked: bool
) -> None:
    environment = child_environment() if is_marked else dict(os.environ)
    process = subprocess.Popen(AS_A_STAGE, cwd=worktree, env=environment, text=True)
    started.append(process)
    time.sleep(0.3)
    (worktree / ".dvc/tmp").mkdir(exist_ok=True)
    (worktree / ".dvc/tmp/rwlock").write_text("")
    with pytest.raises(BadInput, match=rf"process {process.pid} works in it .*stages\.update"):
        clear_leftovers(project.repository, worktree)
    assert process.poll() is None
    assert (worktree / ".dvc/tmp/rwlock").exists()


def test_dvc_leaves_no_daemon_in_a_worktree(worktree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DVC_NO_ANALYTICS", "DVC_TEST", "DVC_DAEMON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DVC_DAEMON_LOGFILE", str(tmp_path / "daemon.log"))  # DVC makes it for a daemon
    assert dvc("status", cwd=worktree).returncode == 0
    assert not (tmp_path / "daemon.log").exists()


def test_stale_locks_of_dvc_and_git_are_removed(project: Project, worktree: Path) -> None:
    own = Path(project.git("rev-parse", "--path-format=absolute", "--git-dir", cwd=worktree))
    (worktree / ".dvc/tmp").mkdir(exist_ok=True)
    stale = [
        worktree / ".dvc/tmp/rwlock",
        own / "index.lock",
        own / "HEAD.lock",
        project.root / ".git/refs/heads/runs/demo.lock",
        project.root / ".git/refs/tags/demo/0000.lock",
    ]
    others = project.root / ".git/refs/heads/main.lock"
    for file in [*stale, others]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    clear_leftovers(project.repository, worktree)
    assert [file for file in stale if file.exists()] == []
    assert others.exists()
    project.repro(worktree)
    assert commit_iteration(worktree).name == "demo/0000"


@pytest.mark.parametrize("torn", ["", "schema: '2.0'\nstages:\n  make:\n    cmd: [", "\x00" * 40, CUT])
def test_a_lockfile_that_dvc_was_killed_while_writing_is_taken_back(
    project: Project, worktree: Path, torn: str
) -> None:
    lockfile = worktree / "dvc.lock"
    lockfile.write_text(torn)
    clear_leftovers(project.repository, worktree)
    assert not lockfile.exists()  # nothing is committed yet
    whole = "schema: '2.0'\nstages: {}\n"
    lockfile.write_text(whole)
    project.git("add", "dvc.lock", cwd=worktree)
    project.git("commit", "--quiet", "--message", "x", cwd=worktree)
    lockfile.write_text(torn)
    clear_leftovers(project.repository, worktree)
    assert lockfile.read_text() == whole
