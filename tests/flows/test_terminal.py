from __future__ import annotations

import logging
from pathlib import Path

import pytest

import prefect_flows
from prefect_flows.progress import duration, iteration_line, seconds_left
from prefect_flows.terminal import is_for_the_terminal

OURS = str(Path(prefect_flows.__file__).parent / "iteration.py")


def record(
    message: str, name: str = "prefect.task_runs", file: str = OURS, level: int = logging.INFO
) -> logging.LogRecord:
    return logging.LogRecord(name, level, file, 1, message, None, None)


@pytest.mark.parametrize(
    "message", ["score: 16 of 16 completions scored (0.5 s)", "Traceback (most recent call last):"]
)
def test_what_stages_and_flows_say_is_shown(message: str) -> None:
    assert is_for_the_terminal(record(message))
    assert is_for_the_terminal(record(message, "prefect.flow_runs"))


@pytest.mark.parametrize(
    "message",
    [
        "Running stage 'score':",
        "> python -m stages.score",
        "Stage 'score' didn't change, skipping",
        "Updating lock file 'dvc.lock'",
        "\tgit add dvc.lock",
        "ERROR: failed to reproduce 'score': failed to run: python -m stages.score, exited with 1",
    ],
)
def test_dvc_s_talk_is_not(message: str) -> None:
    assert not is_for_the_terminal(record(message))


def test_prefect_is_heard_where_it_warns() -> None:
    elsewhere = "/usr/lib/prefect/task_engine.py"
    assert not is_for_the_terminal(record("Finished in state Completed()", file=elsewhere))
    assert not is_for_the_terminal(record("Encountered an exception", file=elsewhere, level=logging.ERROR))
    assert not is_for_the_terminal(record("Starting temporary server", "prefect", elsewhere))
    assert is_for_the_terminal(record("the disk is full", "prefect.server", elsewhere, logging.WARNING))


def test_the_line_leaves_out_what_an_iteration_does_not_have() -> None:
    row = {"pass_rate": None, "eval_pass_at_1": None, "reward_mean": 0.5, "kl": 0}
    assert iteration_line("demo/0039", row, [12.0], 0) == "demo/0039: reward 0.5, KL 0, 12 s"


def test_time_left_goes_by_the_last_five_iterations() -> None:
    assert seconds_left([500.0, 10.0, 11.0, 12.0, 13.0, 14.0], 3) == 36.0  # the median of 10 to 14, three times


def test_units_fit() -> None:
    assert [duration(seconds) for seconds in (0.4, 99.4, 100, 5999, 6000)] == [
        "0 s",
        "99 s",
        "2 min",
        "100 min",
        "1.7 h",
    ]
