"""A training that is told to end, or whose server has died, is gone some seconds later.

Prefect reports each end to its server, and tries for minutes where that doesn't answer.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread, main_thread
from typing import NoReturn

import psutil
import typer

from pipeline.errors import TransientError

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""The exit code for each signal that tells a training to end."""

SECONDS_TO_LEAVE = 12
"""Longer than a stage has to end (`dvc_stage.SECONDS_TO_LEAVE`)."""
SECONDS_TO_DIE = 2

_is_told: Event = Event()


def leave_in_time() -> None:
    """From now on SIGINT and SIGTERM end this process after `SECONDS_TO_LEAVE`, if it has not ended before by itself.

    Their handlers stay those that are set, Prefect's own too.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.signal(signal.SIGURG, lambda *_: None)
    signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    Thread(target=_leave_when_told, args=(reading, writing), daemon=True).start()


def _leave_when_told(reading: socket.socket, _writing: socket.socket) -> None:
    while (number := reading.recv(1)[0]) not in CODES:
        pass
    _is_told.set()
    main = main_thread().ident
    assert main is not None
    deadline = time.monotonic() + SECONDS_TO_LEAVE
    while time.monotonic() < deadline:
        # The system may have given the signal to another thread, while the main one waits on in a system call.
        signal.pthread_kill(main, signal.SIGURG)
        time.sleep(0.2)
    typer.echo("train: ended before Prefect's server knew of it; the same command goes on", err=True)
    end_process(CODES[signal.Signals(number)])


@contextmanager
def ending_with(server: subprocess.Popen[bytes]) -> Iterator[None]:
    """In the block, this process ends with one line as soon as Prefect's server `server` does."""
    is_over = Event()
    watch = Thread(target=_leave_when_dead, args=(server, is_over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        if server.poll() is None:
            is_over.set()
        else:  # what Prefect raised tells less
            watch.join()


def _leave_when_dead(server: subprocess.Popen[bytes], is_over: Event) -> None:
    server.wait()
    if is_over.is_set() or _is_told.is_set():
        return
    typer.echo(f"train: error: Prefect's server, process {server.pid}, has died; the same command goes on", err=True)
    end_process(TransientError.exit_code)


def end_process(code: int) -> NoReturn:
    """End this process with the exit code `code`, after all that it started: stages may write how they ended."""
    this = psutil.Process()
    own = this.children()
    stages = [process for process in this.children(recursive=True) if process not in own]
    _send(signal.SIGINT, stages)
    psutil.wait_procs(stages, SECONDS_TO_DIE)
    rest = this.children(recursive=True)
    _send(signal.SIGKILL, rest)
    psutil.wait_procs(rest, SECONDS_TO_DIE)
    os._exit(code)


def _send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
