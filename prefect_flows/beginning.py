"""How a run begins, and whether one that has begun is the one asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect import get_run_logger

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, load_params, parse_params
from pipeline.params_edit import edit_params
from pipeline.versioning.branching import new_run, open_worktree
from pipeline.versioning.changes import GENERATED, changed_files
from pipeline.versioning.git import git, run_git
from pipeline.versioning.guards import clear_leftovers
from pipeline.versioning.iterations import unrecorded_edits
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import branch_of, check_identity, lineage, list_runs, resolve

ANOTHER = "Leave it out to go on with the run as it is, or choose another name for a new one"


@dataclass(frozen=True)
class Beginning:
    """What a run is to begin with; the arguments are those of `new_run`."""

    start: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    include_changes: bool = False
    fresh_optimizer: bool = False


def prepare(repository: Repository, run: str, asked: Beginning) -> Path:
    """The worktree of `run`, ready to train in; the run is made from the current checkout if there is none.

    Raises:
        BadInput: it can't begin, or it has begun in another way than `asked`.
    """
    checkout = Path(git("rev-parse", "--show-toplevel"))
    if run not in list_runs(repository):
        return new_run(
            repository,
            run,
            asked.start,
            asked.settings,
            asked.include_changes,
            asked.fresh_optimizer,
            checkout,
        )
    worktree = open_worktree(repository, run)
    clear_leftovers(repository, worktree)
    check_identity(worktree)
    if asked.start is not None:
        check_start(repository, run, asked.start)
    if asked.fresh_optimizer and not began_fresh(repository, run):
        raise BadInput("--fresh-optimizer", f"the run {run} has begun with the optimizer state", ANOTHER)
    check_settings(worktree / PARAMS_FILE, asked.settings)
    is_edited_elsewhere = checkout != worktree and changed_files(checkout, GENERATED)
    if asked.include_changes and is_edited_elsewhere and not unrecorded_edits(worktree):
        get_run_logger().info("%s: goes on with what its worktree has, not with the edits in %s", run, checkout)
    return worktree


def check_start(repository: Repository, run: str, start: str) -> None:
    """Raise `BadInput` where `run`, which has begun, does not come from `start`."""
    commit = resolve(repository, start)
    branch = branch_of(repository, run)
    if run_git("merge-base", "--is-ancestor", commit, branch, cwd=repository.root).returncode:
        raise BadInput(f"--from {start}", f"the run {run} has begun, and not from there ({commit[:12]})", ANOTHER)


def began_fresh(repository: Repository, run: str) -> bool:
    """Whether `run` left the iteration that it comes from without its optimizer state."""
    origin = next((one for one in reversed(lineage(repository, run)) if one.run != run), None)
    if origin is None:
        return False
    own = f"{origin.commit}..{branch_of(repository, run)}"
    setting = ("-G", "fresh_optimizer: *true", "--format=%H")
    return bool(git("log", "--first-parent", *setting, own, "--", str(PARAMS_FILE), cwd=repository.root))


def check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Raise `BadInput` where the params of a run that has begun are not those asked for."""
    params = load_params(file)
    text = file.read_text(encoding="utf-8")
    for key, value in settings.items():
        if parse_params(edit_params(text, {key: value}, str(file)), str(file)) != params:
            remedy = "Leave it out to go on as the run is, or begin another run from an iteration of this one"
            raise BadInput(f"{file}: {key}", f"the run has begun with another value than {value!r}", remedy)
