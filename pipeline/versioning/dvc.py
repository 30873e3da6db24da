"""DVC, called as a program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pipeline.versioning.guards import child_environment

ERROR = "ERROR: "


def dvc(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The exit code and output of `dvc <arguments>` in the folder `cwd`."""
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=cwd, env=child_environment(), capture_output=True, text=True, check=False)


def dvc_error(stderr: str) -> str:
    """What DVC gives as the reason, out of all that it prints."""
    reasons = [reason for line in stderr.splitlines() if (reason := error_of_line(line)) is not None]
    return reasons[0] if reasons else "no reason given"


def error_of_line(line: str) -> str | None:
    """The reason that DVC gives in this line of its output; None where it is no line of an error.

    >>> error_of_line("ERROR: failed to reproduce 'update'"), error_of_line("Running stage 'update':")
    ("failed to reproduce 'update'", None)
    """
    return line.removeprefix(ERROR) if line.startswith(ERROR) else None
