"""Training: the iterations of a run, made one after another until it has as many as were asked for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.tasks import Task, exponential_backoff

from pipeline.errors import BadInput, RollbookError, TransientError, first_line
from pipeline.history_rows import read_history
from pipeline.versioning import disk
from pipeline.versioning.changes import refuse_changes
from pipeline.versioning.iterations import Position, advance, position, push_artifacts, unrecorded_edits
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import check_run_name, tag_name
from prefect_flows.artifacts import publish_progress
from prefect_flows.beginning import Beginning, prepare
from prefect_flows.iteration import iteration
from prefect_flows.progress import iteration_line
from prefect_flows.run_lock import run_lock


class HealthStop(RollbookError):
    """A rule of the diagnosis whose action is "stop" is broken."""


@flow(flow_run_name="{run}")
def train(
    run: str,
    iterations: int,
    start: str | None = None,
    settings: dict[str, Any] | None = None,
    include_changes: bool = False,
    fresh_optimizer: bool = False,
    past_health_stop: bool = False,
    keep_state: int = 2,
) -> None:
    """Have `run` come to `iterations` iterations in all: make it or go on with it, and stop where its health says so.

    Args:
        run: its name; where there is no such run, it begins at `start` (a run, an iteration, a revision), or at what
            the checkout has committed.
        iterations: how many it is to have in all, so that the same call again finishes what a first one began.
        settings: dotted keys of params.yaml that the run begins with.
        include_changes: record uncommitted edits in the run, which else are refused.
        fresh_optimizer: have it leave the iteration `start` without its optimizer state.
        past_health_stop: go on where a rule of the diagnosis says stop.
        keep_state: how many iterations keep their trainer state in DVC's cache.

    Raises:
        RollbookError: input is bad, a stage failed, the run is in use, or its health says stop.
    """
    check_run_name(run)
    repository = Repository.find()
    with run_lock(repository, run):
        worktree = prepare(repository, run, Beginning(start, settings or {}, include_changes, fresh_optimizer))
        make_iterations(
            worktree,
            run,
            iterations,
            include_changes=include_changes,
            past_health_stop=past_health_stop,
            keep_state=keep_state,
        )


@flow(name="iterate", flow_run_name="{run}")
def iterate(run: str, n_iterations: int = 1, past_health_stop: bool = False, keep_state: int = 2) -> None:
    """Add `n_iterations` to `run`, after finishing the one that is under way."""
    check_run_name(run)
    repository = Repository.find()
    with run_lock(repository, run):
        worktree = prepare(repository, run, Beginning())
        n_committed = count_committed(position(worktree))
        make_iterations(
            worktree,
            run,
            n_committed + n_iterations,
            include_changes=False,
            past_health_stop=past_health_stop,
            keep_state=keep_state,
        )


def make_iterations(
    worktree: Path, run: str, iterations: int, *, include_changes: bool, past_health_stop: bool, keep_state: int
) -> None:
    """Bring the run in `worktree` to `iterations` iterations from wherever it stands."""

    def settle(number: int) -> None:
        push(run, number)
        disk.prune(Repository.find(), keep_state, [run])
        if not past_health_stop:
            check_health(worktree / "data/health.json", tag_name(run, number))

    where = position(worktree)
    progress = publish_progress(run, count_committed(where), iterations)
    if where.committed:
        settle(where.number)  # a kill may have come between
    if count_committed(where) >= iterations:
        get_run_logger().info("%s: has its %d iterations already", run, count_committed(where))
    seconds: list[float] = []
    while count_committed(where) < iterations:
        number = advance(worktree) if where.committed else where.number
        if not include_changes:
            remedy = "Undo the edits, or give --include-changes to commit them with the iteration"
            refuse_changes(worktree, unrecorded_edits(worktree), remedy)
        started = time.monotonic()
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            # A flow ends with the thread of its heartbeat, a second later; that of the training speaks for both.
            iteration(run, number, include_changes)
        seconds.append(time.monotonic() - started)
        row = read_history((worktree / "data/history.csv").read_text(encoding="utf-8"))[-1]
        get_run_logger().info(iteration_line(tag_name(run, number), row, seconds, iterations - number - 1))
        publish_progress(run, number + 1, iterations, progress)
        settle(number)
        where = position(worktree)


def count_committed(where: Position) -> int:
    """How many iterations the run has: the one under way doesn't count."""
    return where.number + 1 if where.committed else where.number


def check_health(file: Path, name: str) -> None:
    """Raise `HealthStop` where the diagnosis in `file` has a broken rule whose action is "stop"."""
    said = "; ".join(broken_rules(file))
    if said:
        raise HealthStop(f"{name}: training stops, as report.on_health says. {said}. --past-health-stop goes on.")


def broken_rules(file: Path) -> list[str]:
    """What the diagnosis in `file` says of each broken rule whose action is "stop".

    Raises:
        BadInput: the file is missing or no diagnosis.
    """
    try:
        findings = json.loads(file.read_text(encoding="utf-8"))["findings"]
        return [
            f"{one['rule']}: {one['message']}. {one['advice']}"
            for one in findings
            if one["level"] == "warn" and one["action"] == "stop"
        ]
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        remedy = f"`git checkout HEAD -- {file.name}` in {file.parent} brings back what is committed"
        raise BadInput(str(file), f"it is no diagnosis ({first_line(error)})", remedy) from error


def is_transient(_task: Task[Any, Any], _run: TaskRun, state: State[Any]) -> bool:
    """Whether the failure of a task in `state` may pass."""
    return isinstance(state.data, TransientError)


@task(
    task_run_name="{run}/{number:04d} push",
    retries=3,
    retry_delay_seconds=exponential_backoff(10),
    retry_condition_fn=is_transient,
    cache_policy=NO_CACHE,
)
def push(run: str, number: int) -> None:
    """`dvc push` what the iteration has, where DVC has a remote."""
    push_artifacts(Repository.find().worktree(run))


if __name__ == "__main__":
    from prefect_flows.command import app

    app()
