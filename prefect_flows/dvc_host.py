"""A process that has imported DVC and forks for each of its commands: the import takes longer than most commands.

The trainer holds one end of a socket, this process the other. A request is a line of JSON with the write end of a pipe
for what the command prints; the answers are the number of the command's process when it starts, and its exit code when
it ends, as `subprocess` gives it. The process ends with the trainer.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.versioning.guards import child_environment

PRELOADED = ("dvc.cli", "dvc.commands.repro", "dvc.repo.reproduce", "dvc.stage.run", "dvc.stage.cache")
MAX_REQUEST = 1 << 20


class DvcProcess:
    """A command of DVC that was started, the leader of a session of its own."""

    def __init__(self, pid: int, answers: socket.socket) -> None:
        self.pid = pid
        self._answers = answers
        self._code: int | None = None

    def wait(self) -> int:
        """Its exit code, minus the number of the signal where one ended it. Raises `HostGone`."""
        if self._code is None:
            self._code = int(_read_line(self._answers))
        return self._code

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to the command and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class DvcHost:
    """The process that commands are forked from, as the trainer sees it. It runs one command at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        # Commands inherit the mark of the trainer, by which the next one knows what this one left behind.
        environment = {**child_environment(), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "prefect_flows.dvc_host", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd=Path(__file__).parent.parent,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def start(self, arguments: list[str], folder: Path, environment: Mapping[str, str], output: int) -> DvcProcess:
        """Start `dvc <arguments>` in `folder`; what it prints goes to the file descriptor `output`.

        Raises:
            HostGone: the process was killed.
        """
        request = {"arguments": arguments, "folder": str(folder), "environment": dict(environment)}
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode() + b"\n"], [output])
        except OSError as error:
            raise HostGone(str(error)) from error
        return DvcProcess(int(_read_line(self._socket)), self._socket)


class HostGone(Exception):
    """The process that commands are forked from was killed."""


def serve(requests: socket.socket) -> None:
    """Fork for each request until the other end is closed."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST, 1)
        if not message:
            return
        while not message.endswith(b"\n"):
            message += requests.recv(MAX_REQUEST)
        (output,) = descriptors
        pid = os.fork()
        if pid == 0:
            requests.close()
            _become(output, **json.loads(message))
        os.close(output)
        _answer(requests, pid)
        _, status = os.waitpid(pid, 0)
        _answer(requests, os.waitstatus_to_exitcode(status))


def _become(output: int, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Run DVC's command in this forked process, and leave it."""
    code = 255
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["dvc", *arguments]
        from dvc.cli import main

        code = main(arguments) or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # not a second return from the loop of the process that it was


def _answer(requests: socket.socket, number: int) -> None:
    try:
        requests.sendall(f"{number}\n".encode())
    except BrokenPipeError:
        sys.exit(0)  # the trainer was killed


def _read_line(answers: socket.socket) -> str:
    line = b""
    while not line.endswith(b"\n"):
        try:
            part = answers.recv(1)  # one by one, since what follows is the next answer
        except ConnectionError as error:
            raise HostGone(str(error)) from error
        if not part:
            raise HostGone("it closed the connection")
        line += part
    return line.decode()


if __name__ == "__main__":
    for module in PRELOADED:
        __import__(module)
    with socket.socket(fileno=int(sys.argv[1])) as own_end:
        serve(own_end)
