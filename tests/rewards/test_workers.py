"""Worker processes: whatever a call does, it costs its own result and no other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from pipeline.rewards.workers import Call, Outcome, Workers, start_workers
from tests.rewards import worker_functions

HERE = worker_functions.__name__


def call(name: str, *args: object, seconds: float = 5.0) -> Call:
    return Call(f"{HERE}:{name}", args, seconds)


def run(workers: Workers, *calls: Call) -> list[Outcome]:
    return workers.run(calls, lambda _index: None)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with start_workers(2, [HERE], []) as started:
        yield started


def test_outcomes_come_in_the_order_of_calls(workers: Workers) -> None:
    ended: list[int] = []
    calls = [call("double", i, 0.3 if i == 0 else 0.0) for i in range(500)]
    outcomes = workers.run(calls, ended.append)
    assert [outcome.value for outcome in outcomes] == [2 * i for i in range(500)]
    assert sorted(ended) == list(range(500))
    assert ended[0] != 0  # others went on meanwhile
    assert workers.run([], ended.append) == []


@pytest.mark.parametrize("name", ["compute_for_ever", "ignore_everything"])
def test_a_call_that_hangs_is_killed_in_time(workers: Workers, name: str) -> None:
    started = time.monotonic()
    outcomes = run(workers, *(call("double", i) for i in range(40)), call(name, seconds=0.5), call("double", 40))
    assert time.monotonic() - started < 20
    assert [outcome.value for outcome in outcomes] == [*(2 * i for i in range(40)), None, 80]
    assert outcomes[40] == Outcome(None, "timeout", "timeout: it took more than 0.5 s")


def test_a_busy_machine_makes_no_call_late(workers: Workers) -> None:
    # Of the limit of 0.5 s of computing, waiting takes none, as long as it is no more than four times as long.
    outcomes = run(workers, call("double", 1, 1.0, seconds=0.5), call("double", 2, 60.0, seconds=0.5))
    assert outcomes == [Outcome(2), Outcome(None, "timeout", "timeout: it took more than 0.5 s")]


def test_slow_calls_each_have_their_own_time(workers: Workers) -> None:
    outcomes = run(workers, *(call("double", i, 0.2, seconds=0.6) for i in range(8)))
    assert [outcome.value for outcome in outcomes] == [2 * i for i in range(8)]


def test_a_crash_is_that_calls_alone(workers: Workers) -> None:
    outcomes = run(workers, *(call("crash") if i % 10 == 5 else call("double", i) for i in range(30)))
    for i, outcome in enumerate(outcomes):
        crashed = Outcome(None, "crash", "crash: its worker process ended with exit code -11")
        assert outcome == (crashed if i % 10 == 5 else Outcome(2 * i)), i


def test_whatever_a_call_raises_or_returns_is_its_outcome(workers: Workers) -> None:
    names = ["leave", "raise_awkward", "return_awkward", "take_memory", "absent"]
    outcomes = run(workers, *(call(name) for name in names), call("double", 4))
    assert [outcome.failure for outcome in outcomes] == ["exception"] * 5 + [None]
    reasons = [outcome.reason for outcome in outcomes]
    assert reasons[:2] == ["SystemExit: enough", "AwkwardError"]
    assert reasons[2].startswith("TypeError: ")
    assert reasons[3].startswith("MemoryError")
    assert reasons[4].startswith("AttributeError: ")


def test_nothing_survives_the_block() -> None:
    with start_workers(2, [HERE], []) as workers:
        ids = {outcome.value for outcome in run(workers, *(call("process_id") for _ in range(20)))}
        folder = workers.folder
    assert os.getpid() not in ids
    assert not folder.exists()
    for process_id in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)
