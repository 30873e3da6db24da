"""Runs in a worker: the verdict on a solution."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum

from pipeline.params import CodeParams
from pipeline.rewards.code.failures import DeadlineError, EndedError, InfraError, ProtocolError, SandboxError
from pipeline.rewards.code.hidden_tests import AssertTests, HiddenTests, read_tests
from pipeline.rewards.code.sandbox import Launch
from pipeline.rewards.code.trial import BrokenTestError, LimitError, SolutionError, Trial

N_TRIES = 3


class Status(StrEnum):
    """What came of a solution; `infra_error` alone says nothing of it."""

    PASS = "pass"
    FAIL = "fail"
    TIMEOUT = "timeout"
    LIMIT = "limit"
    PROTOCOL_ERROR = "protocol_error"
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True)
class Grade:
    """The status of a solution, how many of its tests it passed, and which it did not pass first and why."""

    status: Status
    n_passed: int
    n_tests: int
    reason: str = ""


def score(code: str, metadata: str, params: CodeParams, launch: Launch) -> tuple[float | None, str | None]:
    """The fraction of tests that `code` passes, and what went wrong; null where that says nothing of the code."""
    try:
        tests = read_tests(metadata)
    except ValueError as error:
        return None, str(error)
    try:
        graded = grade(code, tests, params, launch)
    except BrokenTestError as error:
        return None, str(error)
    said = f"{graded.status}: {graded.reason}"
    if graded.status is Status.INFRA_ERROR:
        return None, said
    is_plain = graded.status in (Status.PASS, Status.FAIL)
    return graded.n_passed / graded.n_tests, None if is_plain else said


def import_all() -> None:
    """A worker that has called this has imported what `score` needs."""


def blame_nobody() -> str:
    """Why a call of `score` that takes longer than all of its own limits says nothing of the solution."""
    return f"{Status.INFRA_ERROR}: the worker hung"


def grade(code: str, tests: HiddenTests, params: CodeParams, launch: Launch) -> Grade:
    """What comes of `code` under `tests`; where a sandbox does not start, another is tried.

    Raises:
        BrokenTestError: a test is broken.
    """
    failure = ""
    for _ in range(N_TRIES):
        try:
            return _grade_once(Trial(code, params, launch), tests)
        except InfraError as error:
            failure = str(error)
    return Grade(Status.INFRA_ERROR, 0, n_tests_in(tests), failure)


def n_tests_in(tests: HiddenTests) -> int:
    """How many tests there are."""
    return len(tests.tests if isinstance(tests, AssertTests) else tests.cases)


def _grade_once(trial: Trial, tests: HiddenTests) -> Grade:
    n_tests, n_passed, n_done, first = n_tests_in(tests), 0, 0, ""
    with closing(trial.results(tests)) as results:
        try:
            for failure in results:
                n_done += 1
                n_passed += failure is None
                first = first or ("" if failure is None else f"test {n_done}: {failure}")
        except InfraError:
            raise
        except SandboxError as error:
            return Grade(_status(error), n_passed, n_tests, f"test {n_done + 1}: {error}")
        except SolutionError as error:
            return Grade(Status.FAIL, 0, n_tests, str(error))
    return Grade(Status.PASS if n_passed == n_tests else Status.FAIL, n_passed, n_tests, first)


def _status(error: SandboxError) -> Status:
    match error:
        case DeadlineError():
            return Status.TIMEOUT
        case LimitError():
            return Status.LIMIT
        case ProtocolError():
            return Status.PROTOCOL_ERROR
        case EndedError() if error.is_limit:
            return Status.LIMIT
        case _:
            return Status.FAIL
