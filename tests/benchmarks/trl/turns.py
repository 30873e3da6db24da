"""Taking turns: a line on stdin begins a step, a line of JSON on stdout ends it.

One process per side, so that each one's peak of memory is its own; a step of one, then a step of the other, so that
a busy machine hits all alike.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.benchmarks.trl.task import Task

ROOT = Path(__file__).resolve().parents[3]

Measured = dict[str, Any]
"""A step as its side measured it: `seconds`, `peak_bytes`, `resident_bytes`, and what else the side has to say."""


class Turns:
    """The end of a side: `begin` waits for the turn, `end` reports it. What libraries print goes to stderr."""

    def __init__(self) -> None:
        self._replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._started = 0.0

    def begin(self) -> None:
        """Say that all is loaded, and wait; leave once nobody will ask again."""
        self._say({"is_ready": True})
        if not sys.stdin.readline():
            sys.exit(0)
        self._started = time.perf_counter()

    def end(self, **values: Any) -> None:
        """Report the step that ends here."""
        seconds = time.perf_counter() - self._started
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        resident = psutil.Process().memory_info().rss
        self._say({"seconds": seconds, "peak_bytes": kilobytes * 1024, "resident_bytes": resident, **values})

    def _say(self, message: Measured) -> None:
        print(json.dumps(message), file=self._replies, flush=True)


class SideProcess:
    """The other end: a side at work, as a context manager that ends it."""

    def __init__(self, side: str, task: Task) -> None:
        self.side = side
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (closed with the process)
        command = [sys.executable, "-m", "tests.benchmarks.trl.worker", side, task.to_json()]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, text=True, cwd=ROOT)

    def __enter__(self) -> SideProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()
        self._log.close()

    def wait_until_ready(self) -> None:
        """Wait until the next step can begin."""
        self._read()

    def take_step(self) -> Measured:
        """Let the side take its step."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Measured:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise SystemExit(f"the side {self.side} ended with {self._process.returncode}:\n{self._log.read()[-4000:]}")
        measured: Measured = json.loads(line)
        return measured


def take_turns(processes: Mapping[str, SideProcess], n_steps: int) -> Iterator[dict[str, list[Measured]]]:
    """`n_steps` steps of each side, in turn; after each round, the steps of each side so far."""
    steps: dict[str, list[Measured]] = {name: [] for name in processes}
    for _ in range(n_steps):
        for process in processes.values():
            process.wait_until_ready()
        for name, process in processes.items():
            steps[name].append(process.take_step())
        yield steps
