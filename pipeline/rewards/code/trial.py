"""A solution on trial: what it does with each hidden test of its prompt, in a sandbox for the completion.

With assert tests there is a second sandbox, which has the tests; requests and replies pass through here.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from pipeline.params import CodeParams
from pipeline.rewards.code.comparison import equal_outputs, equal_values
from pipeline.rewards.code.failures import ProtocolError, SandboxError, describe_end, is_limit
from pipeline.rewards.code.hidden_tests import AssertTests, CallTests, HiddenTests, ProgramTests
from pipeline.rewards.code.inside.objects import MAX_MESSAGE_CHARACTERS
from pipeline.rewards.code.inside.values import encode
from pipeline.rewards.code.sandbox import Launch, Limit, Sandbox, open_sandbox

CHARACTERS_PER_BYTE = 6
"""That JSON needs at most for a byte of text."""
FRAME_BYTES = 1 << 14
"""For what a message holds beside a result."""
MAX_THREADS = 32
MAX_OPEN_FILES = 64

TestResult = str | None
"""Why a solution fails a test, or None where it passes."""


class LimitError(SandboxError):
    """The solution went beyond a limit of memory, output, or processor time."""


class SolutionError(Exception):
    """The solution can't be run at all."""


class BrokenTestError(Exception):
    """A test can't judge any solution."""


class Trial:
    """One run of a solution; its time begins here."""

    def __init__(self, code: str, params: CodeParams, launch: Launch) -> None:
        self._code = code
        self._params = params
        self._launch = launch
        self._end = time.monotonic() + params.total_time_limit_seconds

    def results(self, tests: HiddenTests) -> Generator[TestResult, None, None]:
        """One result per test, in order.

        Raises:
            SandboxError: the solution did something that ends the trial.
            SolutionError: it can't be run.
            BrokenTestError: a test is broken.
        """
        match tests:
            case ProgramTests():
                return self._run_programs(tests)
            case CallTests():
                return self._call_function(tests)
            case AssertTests():
                return self._run_asserts(tests)

    def _run_programs(self, tests: ProgramTests) -> Generator[TestResult, None, None]:
        with self._solution("program") as solution:
            for case in tests.cases:
                run = solution.ask({"stdin": case.stdin}, self._limit())
                if run["is_cut"]:
                    raise LimitError(f"it wrote more than {self._params.max_output_bytes} bytes")
                exit_code = os.waitstatus_to_exitcode(run["status"])
                if is_limit(exit_code):
                    raise LimitError(f"it {describe_end(exit_code)}")
                if exit_code:
                    yield f"it {describe_end(exit_code)}"
                elif equal_outputs(case.stdout, run["stdout"], tests.compare, tests.tolerance):
                    yield None
                else:
                    yield "it wrote something else"

    def _call_function(self, tests: CallTests) -> Generator[TestResult, None, None]:
        path = tests.function.split(".")
        with self._solution("module") as solution:
            self._load(solution)
            for case in tests.cases:
                args, kwargs = [encode(each) for each in case.args], encode(case.kwargs)
                request = {"operation": "call", "target": path, "args": args, "kwargs": kwargs}
                wants_args = {"wants_args": tests.in_place is not None}
                reply = _checked(solution.ask({**request, **wants_args}, self._limit()))
                yield _call_result(reply, encode(case.expected), tests)

    def _run_asserts(self, tests: AssertTests) -> Generator[TestResult, None, None]:
        # The tests' own sandbox first: it starts before there is a solution that could hinder it.
        task = {"functions": tests.functions, "classes": tests.classes, "in_place": tests.in_place}
        solutions = self._solution("module", has_classes=bool(tests.classes))
        with self._sandbox("asserts", task) as asserts, solutions as solution:
            self._load(solution)
            for number, test in enumerate(tests.tests, start=1):
                said = self._run_test(test, solution, asserts)
                if "broken" in said:
                    raise BrokenTestError(f"metadata.tests.{number - 1}: {said['broken']}")
                yield None if said["has_passed"] else _printable(said["message"])

    def _run_test(self, test: str, solution: Sandbox, asserts: Sandbox) -> dict[str, Any]:
        """What the sandbox with the tests says at the end of one, the solution's replies passed on until then."""
        limit = self._limit()
        said = asserts.ask({"test": test}, limit)
        while "request" in said:
            reply = _checked(solution.ask(said["request"], limit))
            said = asserts.ask(reply, limit)
        if "is_too_large" in said:
            raise LimitError("a test hands it too large an argument")
        return said

    def _load(self, solution: Sandbox) -> None:
        reply = _checked(solution.receive(self._limit()))
        if "raised" in reply:
            raise SolutionError(f"it can't be run: {reply['raised']}: {reply['message']}")

    def _solution(
        self, kind: Literal["program", "module"], has_classes: bool = False
    ) -> AbstractContextManager[Sandbox]:
        return self._sandbox("solution", {"kind": kind, "code": self._code, "has_classes": has_classes})

    def _sandbox(self, module: Literal["solution", "asserts"], task: dict[str, Any]) -> AbstractContextManager[Sandbox]:
        max_output_bytes = self._params.max_output_bytes
        limits = _limits(self._params)
        max_frame_bytes = CHARACTERS_PER_BYTE * max_output_bytes + FRAME_BYTES
        whole = {**task, "limits": limits, "max_output_bytes": max_output_bytes, "max_frame_bytes": max_frame_bytes}
        return open_sandbox(self._launch, module, whole, max_frame_bytes)

    def _limit(self) -> Limit:
        return Limit(self._params.time_limit_seconds, self._end)


def _call_result(reply: dict[str, Any], expected: Any, tests: CallTests) -> TestResult:
    if "raised" in reply:
        return f"it raised {reply['raised']}: {reply['message']}"
    if tests.in_place is not None:
        args = reply.get("args", [])
        is_right = len(args) > tests.in_place and equal_values(expected, args[tests.in_place], tests.tolerance)
        return None if is_right else f"it made something else of argument {tests.in_place}"
    if "object" in reply:
        return f"it returned an object of the type {reply['type']}, which is no plain value"
    return None if equal_values(expected, reply["value"], tests.tolerance) else "it returned something else"


def _limits(params: CodeParams) -> dict[str, int]:
    """Resource limits by their names in the module resource."""
    # Outside a user namespace the processes of a user are counted over the whole machine.
    threads = {"RLIMIT_NPROC": MAX_THREADS} if params.isolation == "bubblewrap" else {}
    return {
        **threads,
        "RLIMIT_AS": params.memory_mb << 20,
        "RLIMIT_CPU": math.ceil(params.total_time_limit_seconds) + 1,
        "RLIMIT_FSIZE": params.max_output_bytes,
        "RLIMIT_NOFILE": MAX_OPEN_FILES,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }


_REPLIES: Sequence[dict[str, type | tuple[type, ...]]] = (
    {"value": object},
    {"object": int, "type": str},
    {"raised": str, "base": str, "message": str},
)


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    """`reply` if it is one of those that the runner of solutions gives; whoever wrote it, it may come from a solution.

    Raises:
        LimitError: it says that a limit was reached.
        ProtocolError: it is none of them.
    """
    if reply.get("is_out_of_memory") is True:
        raise LimitError("it ran out of memory")
    if reply.get("is_too_large") is True:
        raise LimitError("its result is too large, or nested too deep")
    args = {"args": reply["args"]} if isinstance(reply.get("args"), list) else {}
    for known in _REPLIES:
        if reply.keys() - {"args"} == known.keys() and all(isinstance(reply[key], known[key]) for key in known):
            return {**{key: _printable(reply[key]) if key != "value" else reply[key] for key in known}, **args}
    raise ProtocolError("it sent what is no reply")


def _printable(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return value[:MAX_MESSAGE_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
