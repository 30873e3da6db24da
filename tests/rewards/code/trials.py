"""What the tests of the code verifier share: how to put a solution on trial, and what must not have changed by it."""

from __future__ import annotations

import json
import sys
import time
import uuid
from dataclasses import replace
from functools import cache
from typing import Any

import psutil
import pytest

from pipeline.errors import BadInput
from pipeline.params import CodeParams
from pipeline.rewards.code.canary import check_sandbox
from pipeline.rewards.code.grading import Grade, grade
from pipeline.rewards.code.hidden_tests import HiddenTests, read_tests
from pipeline.rewards.code.launch import make_launch
from pipeline.rewards.code.sandbox import Launch

PARAMS = CodeParams(time_limit_seconds=10.0, total_time_limit_seconds=20.0, memory_mb=256, max_output_bytes=1 << 16)
SQUARES = {"kind": "calls", "function": "f", "cases": [{"args": [n], "expected": n * n} for n in (3, 5)]}


@cache
def why_no_sandbox() -> str:
    """Why this machine has no sandbox, or nothing."""
    if sys.platform != "linux":
        return "bubblewrap needs Linux"
    try:
        check_sandbox(PARAMS, make_launch(PARAMS))
    except BadInput as error:
        return str(error)
    return ""


needs_sandbox = pytest.mark.usefixtures("sandbox")


def squares() -> HiddenTests:
    """The usual hidden tests."""
    return read_tests(json.dumps(SQUARES))


@cache
def marked_launch() -> Launch:
    """A launch whose processes `survivors` can tell from others."""
    launch = make_launch(PARAMS)
    return replace(launch, python=(*launch.python, "-X", f"marker={uuid.uuid4().hex}"))


def tried(code: str, tests: dict[str, Any] | None = None, **params: Any) -> Grade:
    """The grade of `code`, by default under the hidden tests of a function that squares."""
    settings = PARAMS.model_copy(update=params)
    return grade(code, read_tests(json.dumps(tests or SQUARES)), settings, marked_launch())


def survivors(seconds: float = 5.0) -> list[str]:
    """Processes of earlier trials that are still there after so long."""
    marker = marked_launch().python[-1]
    end = time.monotonic() + seconds
    while True:
        found = [str(process.info) for process in psutil.process_iter(["pid", "cmdline"]) if _has(process, marker)]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.02)


def _has(process: psutil.Process, marker: str) -> bool:
    return marker in (process.info["cmdline"] or [])
