"""A process that is told to end and does not, as one that waits for a dead server."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.stage_runs import ROOT

START = """
import signal, subprocess, sys, time
from prefect_flows import leaving

leaving.SECONDS_TO_LEAVE = 0.5
signal.signal(signal.SIGTERM, lambda *_: None)
leaving.leave_in_time()
"""
SLEEP = "sleeper = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
DEAF = START + SLEEP + "print(sleeper.pid, flush=True)\ntime.sleep(60)\n"
SERVED = (
    START
    + SLEEP
    + """
with leaving.ending_with(sleeper):
    print(sleeper.pid, flush=True)
    if sys.argv[1] == "raise":
        sleeper.wait()
        raise ConnectionError("which Prefect raises")
    if sys.argv[1] == "sleep":
        time.sleep(60)
sleeper.kill()
sleeper.wait()
time.sleep(0.2)
"""
)


def start(script: str, argument: str = "") -> tuple[subprocess.Popen[str], int]:
    """A process of `script`, and the number of the process that it has started."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, argument],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_is_gone_in_time_with_all_that_it_started(number: signal.Signals, code: int) -> None:
    process, child = start(DEAF.replace("signal.SIGTERM", f"signal.{number.name}"))
    process.send_signal(number)
    time.sleep(0.2)
    assert process.poll() is None  # it has its time
    process.communicate(timeout=20)  # what it started had the pipe too
    assert process.returncode == code
    assert not psutil.pid_exists(child)


@pytest.mark.parametrize("meanwhile", ["sleep", "raise"])
def test_the_death_of_its_server_is_one_line_and_an_exit_code(meanwhile: str) -> None:
    process, server = start(SERVED, meanwhile)
    psutil.Process(server).kill()
    out, _ = process.communicate(timeout=20)
    assert out == f"train: error: Prefect's server, process {server}, has died; the same command goes on\n"
    assert process.returncode == 75


def test_a_server_may_end_after_the_block() -> None:
    process, _ = start(SERVED)
    out, _ = process.communicate(timeout=20)
    assert (out, process.returncode) == ("", 0)
