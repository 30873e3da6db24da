"""An iteration as a flow: its tasks, what is tried again, what fails at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, TaskRun

from prefect_flows.iteration import iteration
from tests.flows.quick_project import QuickProject

pytestmark = pytest.mark.slow


def task_runs(state: Any, until: Callable[[list[TaskRun]], bool] = bool) -> list[TaskRun]:
    """The task runs of the flow run that ended in `state`, by time; they reach the server a moment later."""
    of_flow = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        for _ in range(40):
            runs = sorted(client.read_task_runs(flow_run_filter=of_flow), key=lambda run: str(run.start_time))
            if until(runs) and all(run.state is not None and run.state.is_final() for run in runs):
                return runs
            time.sleep(0.25)
    raise AssertionError(f"the server has only {[(run.name, run.state_name) for run in runs]}")


def flow_run(state: Any) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(state.state_details.flow_run_id)


def test_a_task_per_stage_in_order_then_the_commit(here: QuickProject) -> None:
    here.begin("plain")
    state = iteration("plain", 0, return_state=True)
    assert state.is_completed()
    assert flow_run(state).name == "plain/0000"
    runs = task_runs(state, lambda runs: len(runs) == 5)
    assert [run.name for run in runs] == [
        "plain/0000 rollout",
        "plain/0000 evaluate",
        "plain/0000 report",
        "plain/0000 verify",
        "plain/0000 commit",
    ]
    assert here.tags("plain") == ["plain/0000"]


def test_bad_input_fails_at_once_with_its_message(here: QuickProject) -> None:
    here.begin("bad")
    here.order_trouble("rollout", "bad_input")
    state = iteration("bad", 0, return_state=True)
    assert state.is_failed()
    assert "rollout: params.yaml: score: it is wrong. Mend it." in str((flow_run(state).state or state).message)
    (only,) = task_runs(state, lambda runs: len(runs) == 1)
    assert (only.name, only.run_count) == ("bad/0000 rollout", 1)
    assert here.tags("bad") == []


def test_what_may_pass_is_tried_again(here: QuickProject) -> None:
    here.begin("unlucky")
    here.order_trouble("rollout", "transient once")
    here.order_trouble("evaluate", "killed once")
    state = iteration("unlucky", 0, return_state=True)
    assert state.is_completed()
    assert [run.run_count for run in task_runs(state, lambda runs: len(runs) == 5)] == [2, 2, 1, 1, 1]
    assert here.tags("unlucky") == ["unlucky/0000"]


def test_tries_end(here: QuickProject) -> None:
    here.begin("hopeless")
    here.order_trouble("rollout", "transient")
    state = iteration("hopeless", 0, return_state=True)
    assert state.is_failed()
    assert "rollout: registry: it does not answer" in str(state.message)
    assert [run.run_count for run in task_runs(state, lambda runs: len(runs) == 1)] == [4]


def test_what_is_unsound_is_not_committed(here: QuickProject) -> None:
    here.begin("unsound")
    here.order_trouble("rollout", "unsound")
    state = iteration("unsound", 0, return_state=True)
    assert state.is_failed()
    assert "data/rewards.parquet: completion_id 0000/0000000000000000/0: its reward is 2.0, " in str(state.message)
    assert here.tags("unsound") == []


def test_a_stale_stage_is_not_committed(here: QuickProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dvc repro --single-item` leaves a stage before it as it is: here one of which the order knows nothing."""
    here.begin("stale")
    assert iteration("stale", 0, return_state=True).is_completed()
    worktree = here.repository.worktree("stale")
    here.git("tag", "--delete", "stale/0000")
    (worktree / "step.py").write_text((worktree / "step.py").read_text() + "\n# edited", encoding="utf-8")
    here.run("git", "commit", "--quiet", "--all", "--message", "an edit", cwd=worktree)
    monkeypatch.setattr("prefect_flows.iteration.read_stage_order", lambda _: ["evaluate", "report"])
    state = iteration("stale", 0, return_state=True)
    assert state.is_failed()
    assert "these stages are out of date: rollout" in str(state.message)
    assert here.tags("stale") == []
