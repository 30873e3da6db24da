"""What of Prefect's log the terminal shows."""

from __future__ import annotations

import logging
from pathlib import Path

from pipeline.versioning.dvc import ERROR

TALK_OF_DVC = (
    "Running stage '",
    "> ",
    "Stage '",
    "Generating lock file",
    "Updating lock file",
    "Data and pipelines are up to date",
    "To track the changes",
    "\tgit add ",
    "To enable auto staging",
    "\tdvc config ",
    "Use `dvc push`",
    ERROR,
)
"""How the lines begin that DVC prints beside those of a stage; an error is shown when all is over."""


def show_own_lines_only() -> None:
    """Show what stages and flows say, as they say it; the server's log has the rest too."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(logging.Formatter("%(message)s"))
        handler.addFilter(is_for_the_terminal)


def is_for_the_terminal(record: logging.LogRecord) -> bool:
    """Whether `record` is a flow's or task's own and no talk of DVC, or a warning from anywhere else."""
    if record.name not in ("prefect.flow_runs", "prefect.task_runs"):
        return record.levelno >= logging.WARNING
    message = record.getMessage()
    is_ours = Path(record.pathname).parent == Path(__file__).parent
    return is_ours and bool(message) and not message.startswith(TALK_OF_DVC)
