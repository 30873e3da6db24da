"""A stage as a process, under real DVC."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

import psutil
import pytest

from prefect_flows.dvc_stage import EXIT_RECORDS, StageFailed, judge, run_stage
from stages import paths
from tests.flows.quick_project import QuickProject

EXITED = "failed to reproduce 'score': failed to run: python -m stages.score, exited with"


def test_exit_records_lie_where_stages_write_them() -> None:
    assert EXIT_RECORDS == paths.EXIT_RECORDS


@pytest.mark.parametrize("kind", ["bad_input", "usage", "bug", "transient", "interrupted"])
def test_the_record_of_a_stage_says_how_it_ended(kind: str) -> None:
    failed = judge("score", 255, {"code": 1, "kind": kind, "message": "params.yaml: no"}, [f"{EXITED} 1"])
    assert (failed.kind, str(failed)) == (kind, "score: params.yaml: no")
    assert failed.is_worth_a_retry == (kind == "transient")


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (f"{EXITED} -9", "killed", "killed by SIGKILL"),
        (f"{EXITED} 137", "killed", "killed by SIGKILL"),  # a shell's word for it: 128 + 9
        (f"{EXITED} 143", "killed", "killed by SIGTERM"),
        (f"{EXITED} -40", "killed", "killed by signal 40"),
        (f"{EXITED} 1", "bug", f"{EXITED} 1"),  # it could not even write a record: an import that fails
        (f"{EXITED} 127", "bug", f"{EXITED} 127"),  # no such command
        ("Unable to acquire lock. Most likely another DVC process", "transient", "Unable to acquire lock. Most"),
        ("'x' is busy, it is being blocked by:", "transient", "'x' is busy"),
        ("failed to reproduce 'score': [Errno 2] No such file", "dvc", "failed to reproduce 'score': [Errno 2]"),
    ],
)
def test_without_a_record_dvc_says_what_happened(line: str, kind: str, message: str) -> None:
    failed = judge("score", 255, None, ["an earlier error", line])
    assert failed.kind == kind
    assert str(failed).startswith(f"score: {message}")
    assert failed.is_worth_a_retry == (kind in ("killed", "transient"))


def test_dvc_itself_may_be_killed() -> None:
    assert str(judge("score", -9, None, [])) == "score: killed by SIGKILL"
    assert str(judge("score", 255, None, [])) == "score: dvc exited with 255 and gave no reason"


def test_a_stage_that_did_well_whose_outputs_dvc_refuses_is_no_success() -> None:
    failed = judge("score", 255, {"code": 0, "kind": "ok", "message": "fine"}, ["output 'x' does not exist"])
    assert (failed.kind, str(failed)) == ("dvc", "score: output 'x' does not exist")


@pytest.fixture(scope="module")
def worktree(project: QuickProject) -> Path:
    """That of a run in which the first stage ran."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in project.environment.items():
            monkeypatch.setenv(name, value)
        worktree = project.begin("stages")
        run_stage(worktree, "rollout", print)
    return worktree


def test_what_dvc_restores_or_skips_is_done(here: QuickProject, worktree: Path) -> None:
    lines: list[str] = []
    (worktree / "data/rollouts.parquet").unlink()
    run_stage(worktree, "rollout", lines.append)
    assert "Stage 'rollout' is cached - skipping run, checking out outputs" in lines
    lines.clear()
    run_stage(worktree, "rollout", lines.append)
    assert lines[0] == "Stage 'rollout' didn't change, skipping"
    assert not (worktree / EXIT_RECORDS / "rollout.json").exists()


def test_an_old_record_is_not_taken_for_the_news(here: QuickProject, worktree: Path) -> None:
    record = worktree / EXIT_RECORDS / "evaluate.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps({"code": 1, "kind": "bad_input", "message": "of yesterday"}), encoding="utf-8")
    here.order_trouble("evaluate", "killed")
    with pytest.raises(StageFailed, match="evaluate: killed by SIGKILL") as caught:
        run_stage(worktree, "evaluate", print)
    assert caught.value.kind == "killed"


def test_the_message_is_the_stage_s_own(here: QuickProject, worktree: Path) -> None:
    here.order_trouble("evaluate", "bad_input")
    with pytest.raises(StageFailed) as caught:
        run_stage(worktree, "evaluate", print)
    assert str(caught.value) == "evaluate: params.yaml: score: it is wrong. Mend it."
    assert caught.value.exit_code == 1


def test_a_missing_dependency_is_named(here: QuickProject, worktree: Path) -> None:
    with pytest.raises(StageFailed, match=r"eval\.parquet") as caught:
        run_stage(worktree, "report", print)
    assert caught.value.kind == "dvc"


def test_an_interrupt_stops_the_stage_and_all_it_started(here: QuickProject, worktree: Path) -> None:
    here.order_trouble("evaluate", "sleep")
    is_asleep = threading.Event()

    def interrupt_when_asleep(line: str) -> None:
        if line == "evaluate: asleep":
            is_asleep.set()
            os.kill(os.getpid(), signal.SIGALRM)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    started = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_stage(worktree, "evaluate", interrupt_when_asleep)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert is_asleep.is_set()  # so its lines came as they were printed
    assert time.monotonic() - started < 20  # not the minute that it would sleep
    record = json.loads((worktree / EXIT_RECORDS / "evaluate.json").read_text(encoding="utf-8"))
    assert record["kind"] == "interrupted"
    assert [
        process.cmdline() for process in psutil.Process().children(recursive=True) if "dvc" in process.cmdline()
    ] == []
