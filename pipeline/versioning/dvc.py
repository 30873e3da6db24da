"""DVC, called as a program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pipeline.versioning.guards import child_environment


def dvc(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The exit code and output of `dvc <arguments>` in the folder `cwd`."""
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=cwd, env=child_environment(), capture_output=True, text=True, check=False)


def dvc_error(stderr: str) -> str:
    """What DVC gives as the reason, out of all that it prints."""
    lines = [line.split("ERROR: ", 1)[1] for line in stderr.splitlines() if "ERROR: " in line]
    return lines[0] if lines else "no reason given"
