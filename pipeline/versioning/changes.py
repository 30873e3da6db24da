"""What was edited in a checkout and not committed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import BadInput
from pipeline.versioning.git import GitError, run_git

RECORDED = (
    *("dvc.lock", "params.yaml", "data/metrics/report.json", "data/history.csv", "data/health.json"),
    *("data/.gitignore", "data/metrics/.gitignore"),  # DVC adds what it keeps
)
"""What the commit of an iteration is made of."""
GENERATED = tuple(path for path in RECORDED if path != "params.yaml")


def changed_files(checkout: Path, apart_from: Iterable[str] = ()) -> list[str]:
    """Paths, from the top of `checkout`, that differ from HEAD, new files too, but for those in `apart_from`."""
    excluded = [f":(exclude,top){path}" for path in apart_from]
    arguments = ("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--", ":/", *excluded)
    done = run_git(*arguments, cwd=checkout)
    if done.returncode:
        raise GitError(str(checkout), done.stderr.decode(errors="replace").strip(), "See `git status`")
    # An entry is two letters of status, a space, and the path.
    return sorted(os.fsdecode(entry[3:]) for entry in done.stdout.split(b"\0") if entry)


def refuse_changes(checkout: Path, files: list[str], remedy: str) -> None:
    """Raise `BadInput` that lists `files`, if there are any."""
    if files:
        shown = ", ".join(files[:10]) + (f" and {len(files) - 10} more" if len(files) > 10 else "")
        raise BadInput(str(checkout), f"these files differ from what is committed: {shown}", remedy)
