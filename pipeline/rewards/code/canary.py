"""Proof, before any completion is scored, that a sandbox works here and keeps in what it has to."""

from __future__ import annotations

from pipeline.errors import BadInput
from pipeline.params import CodeParams
from pipeline.rewards.code.grading import Status, grade
from pipeline.rewards.code.hidden_tests import CallCase, CallTests, ProgramCase, ProgramTests
from pipeline.rewards.code.launch import REMEDY, WHERE
from pipeline.rewards.code.sandbox import Launch

_FUNCTION = """
import threading

def double(x):
    results = []
    thread = threading.Thread(target=lambda: results.append(2 * x))
    thread.start()
    thread.join()
    return results[0]
"""
_PROGRAM = "print(2 * int(input()))"
_PROBE = '''
import ctypes, os, socket

def attempts():
    """Each attempt to get out that did not fail."""
    def fork():
        if os.fork() == 0:
            os._exit(0)
    def allocate():
        return len(bytearray({too_much}))
    def share():
        libc = ctypes.CDLL(None)
        if libc.unshare(0x10000000) != 0:
            raise OSError
    tries = {{
        "read a file of this machine": lambda: open({host_file!r}),
        "see processes": lambda: os.listdir("/proc"),
        "read the environment": lambda: os.environ["PATH"],
        "open a socket": socket.socket,
        "write to the root": lambda: open("/probe", "w"),
        "write to /dev": lambda: open("/dev/probe", "w"),
        "start a process": fork,
        "make a user namespace": share,
        "use more memory than is allowed": allocate,
    }}
    done = []
    for name, attempt in tries.items():
        try:
            attempt()
            done.append(name)
        except (OSError, KeyError, MemoryError):
            pass
    return done
'''


def check_sandbox(params: CodeParams, launch: Launch) -> None:
    """Try the sandbox with honest solutions, and with one that tries to get out.

    Raises:
        BadInput: it does not work here, or does not hold; without isolation only honest ones are tried.
    """
    calls = CallTests(kind="calls", function="double", cases=[CallCase(args=[21], expected=42)])
    runs = ProgramTests(kind="program", cases=[ProgramCase(stdin="21", stdout="42")])
    for code, tests in ((_FUNCTION, calls), (_PROGRAM, runs)):
        verdict = grade(code, tests, params, launch)
        if verdict.status is not Status.PASS:
            problem = f"a right solution comes out as {verdict.status}: {verdict.reason}"
            is_too_tight = verdict.status in (Status.TIMEOUT, Status.LIMIT)
            raise BadInput(WHERE, problem, "Raise the limits of score.code" if is_too_tight else REMEDY)
    if not launch.is_isolated:
        return
    probe = _PROBE.format(host_file=__file__, too_much=params.memory_mb << 20)
    attempts = CallTests(kind="calls", function="attempts", cases=[CallCase(expected=[])])
    verdict = grade(probe, attempts, params, launch)
    if verdict.status is not Status.PASS:
        raise BadInput(WHERE, f"the sandbox does not hold: {verdict.reason}", REMEDY)
