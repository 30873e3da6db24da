"""A sandbox: a process under bubblewrap that answers messages, or plainly says how it failed to.

Inside there is the Python that runs here with its standard library, the system's shared libraries and the package
`inside`, all read-only; /tmp is a small memory file system. There is no /proc, no network, no environment.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.rewards.code.inside import frames
from pipeline.rewards.code.inside.channel import HELLO

START_SECONDS = 20.0
"""For bubblewrap and Python to start, on a machine with other things to do."""

_BEGIN = """
import sys
sys.path.insert(0, {place!r})
from inside import {module}
del sys.path[0]
{module}.main(int(sys.argv[1]))
"""
_END_SECONDS = 1.0
_UIDS_OF_ROOT = "0 0 1\n1 65534 1\n"
"""Root and nobody, by the numbers that they have inside and outside."""


class SandboxError(Exception):
    """A sandbox did not do what was asked of it, for a reason that is its message."""


class InfraError(SandboxError):
    """The sandbox did not come up: that says nothing of the solution."""


class DeadlineError(SandboxError):
    """No answer came in time."""


class ProtocolError(SandboxError):
    """What came is no answer."""


class EndedError(SandboxError):
    """The process ended before it answered; a negative `exit_code` is a signal, and None means that it lives on."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(f"it {describe_end(exit_code)} before it answered")
        self.is_limit = is_limit(exit_code)


def describe_end(exit_code: int | None) -> str:
    """How a process ended, from the exit code that subprocess gives.

    >>> describe_end(3), describe_end(-11), describe_end(-40)
    ('ended with exit code 3', 'was ended by SIGSEGV', 'was ended by signal 40')
    """
    if exit_code is None:
        return "closed its descriptors"
    if exit_code < 0:
        names = {each.value: each.name for each in signal.Signals}
        return f"was ended by {names.get(-exit_code, f'signal {-exit_code}')}"
    return f"ended with exit code {exit_code}"


def is_limit(exit_code: int | None) -> bool:
    """Whether that is how the kernel ends a process that used too much processor time or memory."""
    return exit_code is not None and -exit_code in (signal.SIGXCPU, signal.SIGKILL)


@dataclass(frozen=True)
class Launch:
    """How a sandbox is started: the same for all solutions, so it is worked out once.

    `command` lacks descriptors and what to run; `outer_filter` is the program of system calls for all of a sandbox, and
    `inner_filter` that for the solution, both empty without isolation. `place` is the folder of the package `inside`.
    """

    command: tuple[str, ...]
    python: tuple[str, ...]
    place: str
    outer_filter: bytes
    inner_filter: bytes
    is_root: bool
    is_isolated: bool


class Sandbox:
    """A running sandbox that has said hello."""

    def __init__(self, process: subprocess.Popen[bytes], results: int, max_frame_bytes: int) -> None:
        self._process = process
        self._results = results
        self._max_frame_bytes = max_frame_bytes

    def ask(self, message: dict[str, Any], deadline: float) -> dict[str, Any]:
        """The answer to `message`.

        Raises:
            SandboxError: there is none by `deadline` (of time.monotonic), the process ended, or it is no answer.
        """
        self.send(message, deadline)
        return self.receive(deadline)

    def send(self, message: dict[str, Any], deadline: float) -> None:
        """Write `message` to the process; raises as `ask` does."""
        assert self._process.stdin is not None
        descriptor = self._process.stdin.fileno()
        try:
            rest = memoryview(frames.pack_request(message))
        except ValueError as error:  # a reply to be passed on that is nested deeper than marshal goes
            raise ProtocolError(f"it sent what can't be passed on: {error}") from error
        while rest:
            _wait(descriptor, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BrokenPipeError:
                raise self._ended() from None

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next message of the process; raises as `ask` does."""
        size = int.from_bytes(self._read(frames.HEADER_BYTES, deadline), "big")
        if size > self._max_frame_bytes:
            raise ProtocolError(f"it announced an answer of {size} bytes, more than {self._max_frame_bytes}")
        body = self._read(size, deadline)
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"it sent what is no JSON: {error}") from error
        if not isinstance(message, dict):
            raise ProtocolError("it sent what is no message")
        return message

    def _read(self, size: int, deadline: float) -> bytes:
        parts = []
        while size:
            _wait(self._results, select.POLLIN, deadline)
            part = os.read(self._results, min(size, 1 << 16))
            if not part:
                raise self._ended()
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _ended(self) -> EndedError:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it closed its descriptors and lives on
            return EndedError(None)
        is_signal = code - 128 in signal.valid_signals()  # bubblewrap adds 128 to one
        return EndedError(128 - code if is_signal else code)


@contextmanager
def open_sandbox(
    launch: Launch, module: Literal["solution", "asserts"], task: dict[str, Any], max_frame_bytes: int
) -> Iterator[Sandbox]:
    """A sandbox that runs `module` of the package `inside` on `task`; none of its processes outlives the block.

    Raises:
        InfraError: it did not come up.
    """
    deadline = time.monotonic() + START_SECONDS
    with ExitStack() as stack:
        process, results = _start(launch, module, stack, deadline)
        sandbox = Sandbox(process, results, max_frame_bytes)
        try:
            if sandbox.receive(deadline) != HELLO:
                raise ProtocolError("its first words were not hello")
            confinement = {"filter": launch.inner_filter.hex(), "is_root": launch.is_root}
            sandbox.send({**task, **confinement, "is_isolated": launch.is_isolated}, deadline)
        except SandboxError as error:
            _end(process)
            assert process.stderr is not None
            complaint = process.stderr.read().decode("utf-8", "replace").strip()[-300:]
            raise InfraError(f"the sandbox did not start: {error}{complaint and f' ({complaint})'}") from error
        yield sandbox


def _start(launch: Launch, module: str, stack: ExitStack, deadline: float) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the descriptor that its results come on; `stack` ends both."""
    with ExitStack() as theirs:
        results, results_end = _pipe(stack, theirs)
        passed, options = [results_end], []
        if launch.outer_filter:
            program, program_end = os.pipe()
            theirs.callback(os.close, program)
            os.write(program_end, launch.outer_filter)
            os.close(program_end)
            options += ["--seccomp", str(program)]
            passed.append(program)
        if launch.is_root:
            info, info_end = _pipe(stack, theirs)
            block_end, block = _pipe(theirs, stack)
            options += ["--info-fd", str(info_end), "--userns-block-fd", str(block_end)]
            passed += [info_end, block_end]
        begin = _BEGIN.format(place=launch.place, module=module)
        process = _popen([*launch.command, *options, *launch.python, "-c", begin, str(results_end)], passed)
        stack.callback(_close, process)
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    if launch.is_root:
        _map_users(info, block, deadline)
    return process, results


def _popen(command: list[str], passed: list[int]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"PYTHONHASHSEED": "0"},  # so that a solution that prints a set does the same each time
            pass_fds=passed,
            start_new_session=True,
        )
    except OSError as error:  # no processes or no memory left
        raise InfraError(f"the sandbox did not start: {error}") from error


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """A pipe whose ends `reader` and `writer` close."""
    reading, writing = os.pipe()
    reader.callback(os.close, reading)
    writer.callback(os.close, writing)
    return reading, writing


def _map_users(info: int, block: int, deadline: float) -> None:
    """Give the sandbox its two users, as soon as bubblewrap says which process it is, and let it go on."""
    told = b""
    with suppress(DeadlineError, OSError, ValueError, KeyError):  # bubblewrap's own words come with the missing hello
        while not told.rstrip().endswith(b"}"):
            _wait(info, select.POLLIN, deadline)
            part = os.read(info, 4096)
            if not part:
                return
            told += part
        child = json.loads(told)["child-pid"]
        for kind in ("uid", "gid"):
            Path(f"/proc/{child}/{kind}_map").write_text(_UIDS_OF_ROOT, encoding="ascii")
        os.write(block, b"1")


def _wait(descriptor: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise DeadlineError("no answer came in time")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group; with bubblewrap, all that it started goes with it."""
    if process.poll() is None:  # else its number may be another's by now
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _close(process: subprocess.Popen[bytes]) -> None:
    _end(process)
    for pipe in (process.stdin, process.stderr):
        assert pipe is not None
        with suppress(BrokenPipeError):
            pipe.close()
