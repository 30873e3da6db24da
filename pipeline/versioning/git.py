"""Git, called as a program."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.errors import BadInput

DURABLE = ("-c", "core.fsync=all")
"""Git by default leaves references and loose objects to the page cache, where a power loss takes them."""


class GitError(BadInput):
    """Git refused; `reason` is what it said."""

    def __init__(self, where: str, reason: str, remedy: str) -> None:
        super().__init__(where, reason, remedy)
        self.reason = reason


def git(*arguments: str, cwd: Path | None = None, stdin: bytes | None = None) -> str:
    """What `git <arguments>` prints, without the white space around it.

    Raises:
        GitError: git is not installed, or fails; the message has what it said.
    """
    done = run_git(*arguments, cwd=cwd, stdin=stdin)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = next((line for line in lines if line.startswith(("fatal: ", "error: "))), "no reason given")
        said = reason.removeprefix("fatal: ").removeprefix("error: ")
        command = next((argument for argument in arguments if not argument.startswith("-") and "=" not in argument), "")
        raise GitError(f"git {command}", said, "See `git status`")
    return done.stdout.decode(errors="replace").strip()


def run_git(
    *arguments: str, cwd: Path | None = None, stdin: bytes | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Git's exit code and output, as they are; a `GitError` where it is not installed."""
    try:
        return subprocess.run(
            ["git", *arguments], capture_output=True, check=False, cwd=cwd, input=stdin, env=environment
        )
    except FileNotFoundError:
        raise GitError("git", "it is not installed, and iterations are Git commits", "Install git") from None


def commit_of(revision: str, cwd: Path | None = None) -> str | None:
    """The full id of the commit that `revision` names, or None where it names none.

    Raises `GitError` outside a repository.
    """
    found = run_git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", cwd=cwd)
    reason = found.stderr.decode(errors="replace").strip()
    if found.returncode and reason and "not a git repository" in reason:
        raise GitError(f"commit {revision}", reason.removeprefix("fatal: "), "Go into the repository of the run")
    return found.stdout.decode().strip() or None


def file_at_commit(commit: str, path: Path, cwd: Path | None = None) -> bytes:
    """The bytes that `path`, relative to `cwd` (the current directory), has in `commit`.

    Raises:
        BadInput: this is no Git repository, or there is no such commit, or no such file in it.
    """
    revision = commit_of(commit, cwd)
    if revision is None:
        remedy = "Get it with `git fetch`, or name a commit that `git log` shows"
        raise BadInput(f"commit {commit}", "it is not in this repository", remedy)
    # With `./` Git takes the path from here; without, from the top of the repository.
    content = run_git("cat-file", "blob", f"{revision}:./{path.as_posix()}", cwd=cwd)
    if content.returncode:
        remedy = f"Commit that iteration again together with {path}"
        raise BadInput(f"{path} in commit {commit}", "that commit has no such file", remedy)
    return content.stdout


def read_blobs(names: Sequence[str], cwd: Path | None = None) -> list[bytes | None]:
    """The content that each of `names` (`<revision>:<path from the top>`) has, None where there is none.

    One process, whatever the number of names. Raises `GitError` where git fails.
    """
    wanted = "".join(f"{name}\n" for name in names).encode()
    done = run_git("cat-file", "--batch", cwd=cwd, stdin=wanted)
    if done.returncode:
        raise GitError("git cat-file", done.stderr.decode(errors="replace").strip(), "See `git fsck`")
    blobs: list[bytes | None] = []
    position = 0
    for _ in names:
        end = done.stdout.index(b"\n", position)
        header, position = done.stdout[position:end], end + 1
        if header.endswith((b" missing", b" ambiguous")):
            blobs.append(None)
            continue
        size = int(header.rsplit(b" ", 1)[1])
        blobs.append(done.stdout[position : position + size])
        position += size + 1
    return blobs


def blobs_exist(names: Sequence[str], cwd: Path | None = None) -> list[bool]:
    """Whether there is a file of each of `names` (`<revision>:<path from the top>`); one process for all."""
    wanted = "".join(f"{name}\n" for name in names).encode()
    listed = git("cat-file", "--batch-check", cwd=cwd, stdin=wanted) if names else ""
    return [" blob " in line for line in listed.splitlines()]
