"""A sandbox: a process under bubblewrap that answers messages, or plainly says how it failed to.

Inside there is the Python that runs here with its standard library, the system's shared libraries and the package
`inside`, all read-only; /tmp is a small memory file system. There is no /proc, no network, no environment.
"""

from __future__ import annotations

import json
import math
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

from pipeline.rewards.code.computing import computing_seconds
from pipeline.rewards.code.failures import DeadlineError, EndedError, InfraError, ProtocolError, SandboxError
from pipeline.rewards.code.inside import frames
from pipeline.rewards.code.inside.channel import HELLO

START_SECONDS = 5.0
"""For bubblewrap and Python to start."""

_BEGIN = """
import sys
sys.path.insert(0, {place!r})
from inside import {module}
del sys.path[0]
{module}.main(int(sys.argv[1]))
"""
PATIENCE = 4
"""How many times its limit an answer may take by the clock, on a machine with other things to do."""

_END_SECONDS = 1.0
_TICK_SECONDS = 0.01
"""The kernel counts computing time in these."""
_UIDS_OF_ROOT = "0 0 1\n1 65534 1\n"
"""Root and nobody, by the numbers that they have inside and outside."""


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


class Limit:
    """How long something may take: so many seconds of computing, and `PATIENCE` times as many by the clock.

    `seconds` is what is left of them, and `ends_at`, of time.monotonic, the end in any case.
    """

    def __init__(self, seconds: float, ends_at: float = math.inf) -> None:
        self.seconds = seconds
        self.ends_at = min(ends_at, time.monotonic() + PATIENCE * seconds)


class Sandbox:
    """A running sandbox that has said hello; `first` is its first process, by its number outside."""

    def __init__(self, process: subprocess.Popen[bytes], results: int, first: int, max_frame_bytes: int) -> None:
        self._process = process
        self._results = results
        self._first = first
        self._max_frame_bytes = max_frame_bytes

    def ask(self, message: dict[str, Any], limit: Limit) -> dict[str, Any]:
        """The answer to `message`.

        Raises:
            SandboxError: there is none within `limit`, the process ended, or it is no answer.
        """
        self.send(message, limit)
        return self.receive(limit)

    def send(self, message: dict[str, Any], limit: Limit) -> None:
        """Write `message` to the process; raises as `ask` does."""
        assert self._process.stdin is not None
        descriptor = self._process.stdin.fileno()
        try:
            rest = memoryview(frames.pack_request(message))
        except ValueError as error:  # a reply to be passed on that is nested deeper than marshal goes
            raise ProtocolError(f"it sent what can't be passed on: {error}") from error
        while rest:
            self._wait(descriptor, select.POLLOUT, limit)
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BrokenPipeError:
                raise self._ended() from None

    def receive(self, limit: Limit) -> dict[str, Any]:
        """The next message of the process; raises as `ask` does."""
        size = int.from_bytes(self._read(frames.HEADER_BYTES, limit), "big")
        if size > self._max_frame_bytes:
            raise ProtocolError(f"it announced an answer of {size} bytes, more than {self._max_frame_bytes}")
        body = self._read(size, limit)
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"it sent what is no JSON: {error}") from error
        if not isinstance(message, dict):
            raise ProtocolError("it sent what is no message")
        return message

    def _read(self, size: int, limit: Limit) -> bytes:
        parts = []
        while size:
            self._wait(self._results, select.POLLIN, limit)
            part = os.read(self._results, min(size, 1 << 16))
            if not part:
                raise self._ended()
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _wait(self, descriptor: int, event: int, limit: Limit) -> None:
        """Until `event`; raises a DeadlineError at the end of `limit`."""
        if _has(descriptor, event, seconds=0.0):
            return
        computed, now = computing_seconds(self._first), time.monotonic()
        while limit.seconds > 0 and now < limit.ends_at:
            is_there = _has(descriptor, event, min(max(limit.seconds, _TICK_SECONDS), limit.ends_at - now))
            before, computed = computed, computing_seconds(self._first)
            passed, now = time.monotonic() - now, time.monotonic()
            limit.seconds -= passed if before is None or computed is None else computed - before
            if is_there:
                return
        raise DeadlineError("no answer came in time")

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
    limit = Limit(START_SECONDS)
    with ExitStack() as stack:
        process, results, first = _start(launch, module, stack, limit.ends_at)
        try:
            sandbox = Sandbox(process, results, first, max_frame_bytes)
            if sandbox.receive(limit) != HELLO:
                raise ProtocolError("its first words were not hello")
            confinement = {"filter": launch.inner_filter.hex(), "is_root": launch.is_root}
            sandbox.send({**task, **confinement, "is_isolated": launch.is_isolated}, limit)
        except SandboxError as error:
            _end(process)
            assert process.stderr is not None
            complaint = process.stderr.read().decode("utf-8", "replace").strip()[-300:]
            raise InfraError(f"the sandbox did not start: {error}{complaint and f' ({complaint})'}") from error
        yield sandbox


def _start(launch: Launch, module: str, stack: ExitStack, deadline: float) -> tuple[subprocess.Popen[bytes], int, int]:
    """The process, the descriptor of its results, and the first process of the sandbox; `stack` ends all of them."""
    with ExitStack() as theirs:
        results, results_end = _pipe(stack, theirs)
        passed, options = [results_end], []
        if launch.is_isolated:
            program, program_end = os.pipe()
            theirs.callback(os.close, program)
            os.write(program_end, launch.outer_filter)
            os.close(program_end)
            info, info_end = _pipe(stack, theirs)
            options += ["--seccomp", str(program), "--info-fd", str(info_end)]
            passed += [program, info_end]
        if launch.is_root:
            block_end, block = _pipe(theirs, stack)
            options += ["--userns-block-fd", str(block_end)]
            passed.append(block_end)
        begin = _BEGIN.format(place=launch.place, module=module)
        process = _popen([*launch.command, *options, *launch.python, "-c", begin, str(results_end)], passed)
        stack.callback(_close, process)
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    first = _first_process(info, deadline) if launch.is_isolated else process.pid
    if launch.is_root and first is not None:
        _map_users(first)
        os.write(block, b"1")
    return process, results, first or process.pid


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


def _first_process(info: int, deadline: float) -> int | None:
    """The first process of the sandbox, as bubblewrap tells; None where it fails, which it then says by itself."""
    told = b""
    while not told.rstrip().endswith(b"}"):
        if not _has(info, select.POLLIN, deadline - time.monotonic()) or not (part := os.read(info, 4096)):
            return None
        told += part
    return int(json.loads(told)["child-pid"])


def _map_users(first: int) -> None:
    """Give a sandbox that root started its two users."""
    with suppress(OSError):  # it has ended: there will be no hello
        for kind in ("uid", "gid"):
            Path(f"/proc/{first}/{kind}_map").write_text(_UIDS_OF_ROOT, encoding="ascii")


def _has(descriptor: int, event: int, seconds: float) -> bool:
    """Whether there is `event` on `descriptor` within so many seconds."""
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))


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
