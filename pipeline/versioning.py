"""Git and DVC, as programs: what an earlier commit holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pipeline.errors import BadInput
from pipeline.table_io import atomic_path


def file_at_commit(commit: str, path: Path) -> bytes:
    """The bytes that `path`, relative to the current directory, has in `commit`.

    Raises:
        BadInput: this is no Git repository, or there is no such commit, or no such file in it.
    """
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if found.returncode:
        reason = found.stderr.decode(errors="replace").strip() or "it is not in this repository"
        raise BadInput(f"commit {commit}", reason, "Get it with `git fetch`, or name a commit that `git log` shows")
    revision = found.stdout.decode().strip()
    # With `./` Git takes the path from here; without, from the top of the repository.
    content = _git("cat-file", "blob", f"{revision}:./{path.as_posix()}")
    if content.returncode:
        remedy = f"Commit that iteration again together with {path}"
        raise BadInput(f"{path} in commit {commit}", "that commit has no such file", remedy)
    return content.stdout


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        raise BadInput("git", "it is not installed, and iterations are Git commits", "Install git") from None


def fetch_artifact(path: Path, commit: str, target: Path) -> None:
    """Put the file or folder that DVC tracks as `path` in `commit` at `target`, whole or not at all.

    It comes from DVC's cache, or from the remote where the cache lacks it.

    Raises:
        BadInput: the commit is unknown, does not track `path`, or its objects are nowhere to be had.
    """
    file_at_commit(commit, Path("dvc.lock"))
    with atomic_path(target) as temporary:
        command = [sys.executable, "-m", "dvc", "get", "--quiet", ".", str(path), "--rev", commit, "-o", str(temporary)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            reason = next((line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")), lines[0])
            remedy = f"Get the objects of that commit with `dvc fetch`, or see `git show {commit[:12]}:dvc.lock`"
            raise BadInput(f"{path} in commit {commit}", f"dvc can't get it ({reason})", remedy)
