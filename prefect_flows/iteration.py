"""One iteration of a run: a Prefect task per DVC stage, then the integrity gate and the commit."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import Task, exponential_backoff

from pipeline.errors import BadInput
from pipeline.integrity.verify import verify_checkout
from pipeline.versioning.iterations import commit_iteration
from pipeline.versioning.repository import Repository
from prefect_flows.artifacts import publish_iteration
from prefect_flows.device import device_turn
from prefect_flows.dvc_stage import StageFailed, run_stage
from prefect_flows.stage_order import read_stage_order


class Unsound(BadInput):
    """What the stages made breaks rules of integrity, and is not committed."""


def is_worth_a_retry(_task: Task[Any, Any], _run: TaskRun, state: State[Any]) -> bool:
    """Whether the failure that a stage's task has in `state` may pass: bad input fails at once."""
    return isinstance(state.data, StageFailed) and state.data.is_worth_a_retry


@task(
    task_run_name="{run}/{number:04d} {stage}",
    retries=3,
    retry_delay_seconds=exponential_backoff(5),
    retry_condition_fn=is_worth_a_retry,
    cache_policy=NO_CACHE,  # whether a stage has anything to do is DVC's to say
)
def stage_task(run: str, number: int, stage: str) -> None:
    """Bring one stage up to date. Raises `StageFailed`."""
    logger = get_run_logger()

    def log(line: str) -> None:
        if line:
            logger.info(line)

    try:
        with device_turn(stage):
            run_stage(Repository.find().worktree(run), stage, log)
    except StageFailed as failed:
        if failed.is_worth_a_retry:
            logger.warning("Another try may go better: %s", failed)
        raise


@task(task_run_name="{run}/{number:04d} verify", cache_policy=NO_CACHE)
def verify_task(run: str, number: int) -> None:
    """Hold what the stages made against the rules of integrity. Raises `Unsound`."""
    problems = [str(problem) for problem in verify_checkout(Repository.find().worktree(run))]
    if problems:
        raise Unsound(f"{run}/{number:04d}", "; ".join(problems), "`rollbook verify` in its worktree lists this again")


@task(task_run_name="{run}/{number:04d} commit", cache_policy=NO_CACHE)
def commit_task(run: str, number: int, include_changes: bool) -> str:
    """Commit and tag the iteration, unless a stage is stale; return its tag."""
    committed = commit_iteration(Repository.find().worktree(run), include_changes)
    get_run_logger().info("%s: commit %s", committed.name, committed.commit[:12])
    return committed.name


@flow(flow_run_name="{run}/{number:04d}")
def iteration(run: str, number: int, include_changes: bool = False) -> None:
    """Make iteration `number` in the worktree of `run`, whose params.yaml is at it, and commit it.

    `dvc repro --single-item` runs a stage on whatever lies before it. So the commit asks `dvc status` for stale stages,
    and refuses where there are any. What breaks a rule of integrity is not committed either.
    """
    worktree = Repository.find().worktree(run)
    for stage in read_stage_order(worktree):
        stage_task.with_options(name=stage)(run, number, stage)
    verify_task(run, number)
    commit_task(run, number, include_changes)
    publish_iteration(worktree, run, number)
