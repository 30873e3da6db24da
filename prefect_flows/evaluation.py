"""The evaluation of a run's latest policy on all held-out prompts, on record in a run of its own, `<run>-nightly`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, parse_params
from pipeline.versioning.branching import begin_anew, new_run, open_worktree
from pipeline.versioning.git import commit_of, file_at_commit, git
from pipeline.versioning.guards import clear_leftovers
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import Iteration, check_run_name, lineage, list_runs, tag_name
from prefect_flows.dvc_stage import run_dvc
from prefect_flows.iteration import iteration
from prefect_flows.run_lock import run_lock

SUFFIX = "-nightly"


@flow(name="evaluate-nightly", flow_run_name="{run}-nightly")
def evaluate_nightly(
    run: str, n_prompts: int | None = None, n_completions: int | None = None, k: list[int] | None = None
) -> None:
    """Evaluate the policy that `run` has come to; nothing to do where that was done before.

    The run `<run>-nightly` leaves `run` at its tip with other settings of `evaluate`, so that DVC runs that stage and
    the report anew and nothing else. It moves along with the tip; its tags keep what it found before.

    Args:
        run: the run to evaluate.
        n_prompts: how many held-out prompts; all where it is None.
        n_completions: how many completions of each, as the run has it where it is None.
        k: the k of pass@k, as the run has them where it is None.

    Raises:
        RollbookError: there is no such run or no iteration in it, or a setting is bad.
    """
    check_run_name(run)
    repository = Repository.find()
    tip = tip_of(repository, run)
    settings = evaluation_settings(repository.root, tip, n_prompts, n_completions, k)
    name = f"{run}{SUFFIX}"
    with run_lock(repository, name):
        if is_done(repository, name, tip):
            get_run_logger().info("%s was evaluated before: %s", tip.name, tag_name(name, tip.number))
            return
        branch_off(repository, name, tip, settings)
        iteration(name, tip.number)


def tip_of(repository: Repository, run: str) -> Iteration:
    """The latest iteration of `run`. Raises `BadInput` where there is none."""
    line = lineage(repository, run)
    if not line:
        raise BadInput(f"run {run}", "it has no iteration yet", "Train it first")
    return line[-1]


def evaluation_settings(
    checkout: Path, tip: Iteration, n_prompts: int | None, n_completions: int | None, k: list[int] | None
) -> dict[str, Any]:
    """The settings of `evaluate` that differ from those of the iteration `tip`."""
    params = parse_params(
        file_at_commit(tip.commit, PARAMS_FILE, checkout).decode("utf-8"), f"params.yaml of {tip.name}"
    )
    wanted = {
        "every": 1,
        "n_prompts": n_prompts or params.prompts.eval_size,
        "n_completions": n_completions or params.evaluate.n_completions,
        "k": k or params.evaluate.k,
    }
    return {f"evaluate.{key}": value for key, value in wanted.items() if value != getattr(params.evaluate, key)}


def is_done(repository: Repository, name: str, tip: Iteration) -> bool:
    """Whether the run `name` has an evaluation of `tip`."""
    tag = commit_of(f"refs/tags/{tag_name(name, tip.number)}", repository.root)
    return tag is not None and git("merge-base", tag, tip.commit, cwd=repository.root) == tip.commit


def branch_off(repository: Repository, name: str, tip: Iteration, settings: Mapping[str, Any]) -> None:
    """Have the run `name` leave `tip` with `settings`, in its worktree; what it was before stays by its tags."""
    if name not in list_runs(repository):
        new_run(repository, name, tip.commit)
    worktree = open_worktree(repository, name)
    clear_leftovers(repository, worktree)
    begin_anew(worktree, name, tip, settings)
    run_dvc(worktree, ["checkout", "--quiet"], get_run_logger().info)
