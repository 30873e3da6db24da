"""A process that has imported DVC and forks for each of its commands: the import takes longer than most commands.

The trainer holds one end of a socket, this process the other. A request is a line of JSON with the write end of a pipe
for what the command prints; the answers are the number of the command's process when it starts, and its exit code when
it ends, as `subprocess` gives it. The process ends with the trainer.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PRELOADED = ("dvc.cli", "dvc.commands.repro", "dvc.repo.reproduce", "dvc.stage.run", "dvc.stage.cache", "dvc_data.index")
MAX_REQUEST = 1 << 20


@dataclass(frozen=True)
class DvcProcess:
    """A command of DVC that was started, the leader of a session of its own."""

    pid: int
    answers: socket.socket

    def wait(self) -> int:
        """Its exit code, minus the number of the signal where one ended it."""
        return int(_read_line(self.answers))


class DvcHost:
    """The process that commands are forked from, as the trainer sees it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "prefect_flows.dvc_host", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)

    def start(self, arguments: list[str], folder: Path, environment: Mapping[str, str], output: int) -> DvcProcess:
        """Start `dvc <arguments>` in `folder`; what it prints goes to the file descriptor `output`."""
        request = {"arguments": arguments, "folder": str(folder), "environment": dict(environment)}
        socket.send_fds(self._socket, [json.dumps(request).encode() + b"\n"], [output])
        return DvcProcess(int(_read_line(self._socket)), self._socket)

    def close(self) -> None:
        """End the process, once its last command has ended."""
        self._socket.close()
        self._process.wait()


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
        part = answers.recv(1)
        if not part:
            raise ConnectionError("the process that DVC is forked from has ended")
        line += part
    return line.decode()


if __name__ == "__main__":
    for module in PRELOADED:
        __import__(module)
    with socket.socket(fileno=int(sys.argv[1])) as own_end:
        serve(own_end)
