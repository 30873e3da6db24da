"""The verifier `code`: the Python code in a completion, against the hidden tests of its prompt, in a sandbox."""

from __future__ import annotations

from functools import cached_property

from pipeline.params import CodeParams
from pipeline.rewards.code.canary import check_sandbox
from pipeline.rewards.code.grading import N_TRIES
from pipeline.rewards.code.hidden_tests import read_tests
from pipeline.rewards.code.launch import make_launch
from pipeline.rewards.code.sandbox import PATIENCE, START_SECONDS, Launch
from pipeline.rewards.completion import Verdict
from pipeline.rewards.fences import last_block
from pipeline.rewards.verifier import Prompt, Question, unjudged, wrong
from pipeline.rewards.workers import Call

_WORKER = "pipeline.rewards.code.grading"
_LANGUAGES = frozenset({"", "python", "python3", "py", "py3"})
"""What a block of Python calls itself, or nothing."""


class CodeVerifier:
    """Has a worker run what it finds in a completion; a completion is correct when it passes all tests."""

    def __init__(self, params: CodeParams) -> None:
        self._params = params
        # Beyond all limits that the worker itself sets, so that only a worker that hangs is ended by this one.
        self._limit = N_TRIES * (params.total_time_limit_seconds + 2 * PATIENCE * START_SECONDS)

    def judge(self, completion_text: str, prompt: Prompt) -> Verdict | Question:
        """A question for a worker, or at once the verdict on a completion without code.

        Raises:
            BadInput: this machine can't run code in a sandbox as the params ask for.
        """
        launch = self._launch
        code = last_block(completion_text, _LANGUAGES)
        try:
            read_tests(prompt.metadata or "null")
        except ValueError as error:
            return unjudged(code, str(error))
        if code is None:
            return wrong()
        call = Call(f"{_WORKER}:score", (code, prompt.metadata, self._params, launch), self._limit)
        check = Call(f"{_WORKER}:blame_nobody", (), self._limit)
        return Question(code, call, check, warm_up=Call(f"{_WORKER}:import_all", (), self._limit))

    @cached_property
    def _launch(self) -> Launch:
        """How to start sandboxes, tried once before any completion is scored."""
        launch = make_launch(self._params)
        check_sandbox(self._params, launch)
        return launch
