"""One DVC stage of a run as a process: started, listened to, stopped as a whole, and judged by how it ended.

DVC answers 255 to every failure. What happened is in the stage's exit record, `.rollbook/exit/<stage>.json`, or,
where the stage was killed before it could write one, in the last `ERROR:` line of DVC.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from pipeline.errors import RollbookError
from pipeline.versioning.dvc import error_of_line
from pipeline.versioning.guards import child_environment
from prefect_flows.dvc_host import DvcHost, DvcProcess, HostGone

EXIT_RECORDS = Path(".rollbook/exit")
SECONDS_TO_LEAVE = 10
"""How long an interrupted stage has to write its exit record, and DVC to remove its lock."""

KINDS_WORTH_A_RETRY = ("transient", "killed")
EXIT_CODES = {"usage": 2, "bug": 70, "transient": 75, "interrupted": 130}

_COMMAND_FAILED = re.compile(r"failed to run: .*, exited with (-?\d+)$")
_DVC_IS_BUSY = ("Unable to acquire lock", "is busy, it is being blocked by")


class StageFailed(RollbookError):
    """A stage ended without its outputs.

    `kind` is that of the stage's exit record (bad_input, usage, bug, transient, interrupted), "killed" where a signal
    ended it, or "dvc" where DVC failed before or after the stage's own work.
    """

    def __init__(self, stage: str, kind: str, message: str) -> None:
        super().__init__(f"{stage}: {message}")
        self.kind = kind
        self.exit_code = EXIT_CODES.get(kind, 1)

    @property
    def is_worth_a_retry(self) -> bool:
        """Whether another try may go better: bad input stays bad."""
        return self.kind in KINDS_WORTH_A_RETRY


def run_stage(worktree: Path, stage: str, on_line: Callable[[str], None]) -> None:
    """Have DVC bring `stage` alone up to date in `worktree`; `on_line` gets each line that it and the stage print.

    Raises:
        StageFailed: it failed; the message is the stage's own, or DVC's.
    """
    record = worktree / EXIT_RECORDS / f"{stage}.json"
    record.unlink(missing_ok=True)  # a stage that DVC skips, or that is killed, writes none
    code, errors = run_dvc(worktree, ["repro", "--single-item", stage], on_line)
    if code:
        raise judge(stage, code, _read(record), errors)


def run_dvc(worktree: Path, arguments: list[str], on_line: Callable[[str], None]) -> tuple[int, list[str]]:
    """Run `dvc <arguments>` in `worktree`; return its exit code and what it printed as errors."""
    errors: list[str] = []

    def listen(line: str) -> None:
        if (reason := error_of_line(line)) is not None:
            errors.append(reason)
        on_line(line)

    try:
        with _dvc_process(arguments, worktree, listen) as process:
            return process.wait(), errors
    except HostGone:
        shared_host.cache_clear()
        return -signal.SIGKILL, errors


@cache
def shared_host() -> DvcHost:
    """The one that this process starts DVC from."""
    return DvcHost()


def judge(stage: str, code: int, record: dict[str, Any] | None, errors: list[str]) -> StageFailed:
    """What DVC's exit code (not 0), the stage's exit record and DVC's error lines say of how `stage` ended.

    >>> judge("score", 255, None, ["failed to reproduce 'score': failed to run: python -m score, exited with -9"])
    StageFailed('score: killed by SIGKILL')
    """
    if record and record["kind"] != "ok":
        return StageFailed(stage, record["kind"], record["message"])
    reason = errors[-1] if errors else f"dvc exited with {code} and gave no reason"
    if any(words in reason for words in _DVC_IS_BUSY):
        return StageFailed(stage, "transient", reason)
    failed = _COMMAND_FAILED.search(reason)
    number = _signal_number(int(failed[1]) if failed else code)
    if number:
        return StageFailed(stage, "killed", f"killed by {_signal_name(number)}")
    return StageFailed(stage, "bug" if failed else "dvc", reason)


def _signal_number(code: int) -> int:
    """The signal that ended a process, 0 if none did; a shell says 128 + n for what subprocess says -n."""
    # DVC's own 25x mean an error that it reports.
    return -code if code < 0 else code - 128 if 128 < code < 128 + signal.NSIG else 0


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"


def _read(record: Path) -> dict[str, Any] | None:
    if not record.is_file():
        return None
    content: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return content


@contextmanager
def _dvc_process(arguments: list[str], folder: Path, on_line: Callable[[str], None]) -> Iterator[DvcProcess]:
    """Run `dvc <arguments>` in a session of its own, of which nothing is left when the block ends, however it ends."""
    reading, writing = os.pipe()
    # In a thread of its own, since a signal must reach the main one, and since what outlives DVC keeps the pipe open.
    reader = Thread(target=_read_lines, args=(reading, on_line), daemon=True)
    reader.start()
    try:
        process = shared_host().start(arguments, folder, _environment(), writing)
    finally:
        os.close(writing)
    try:
        yield process
    except BaseException:  # Ctrl-C, or the SIGTERM by which Prefect cancels a flow: the stage goes first
        process.signal(signal.SIGINT)
        deadline = time.monotonic() + SECONDS_TO_LEAVE
        while psutil.pid_exists(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        raise
    finally:
        process.signal(signal.SIGKILL)
        process.wait()
        reader.join(SECONDS_TO_LEAVE)


def _environment() -> dict[str, str]:
    """Stages are started as `python`, which has to be the one that runs this."""
    environment = child_environment()
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return {**environment, "PATH": path, "PYTHONUNBUFFERED": "1"}


def _read_lines(descriptor: int, on_line: Callable[[str], None]) -> None:
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            on_line(line.rstrip())
