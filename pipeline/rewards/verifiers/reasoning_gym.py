"""The verifier `reasoning_gym`: the scorer of the prompt's own task, in a worker."""

from __future__ import annotations

import json
from functools import lru_cache

from pipeline.params import ReasoningGymParams
from pipeline.rewards.completion import Verdict
from pipeline.rewards.verifier import Prompt, Question, unjudged
from pipeline.rewards.verifiers.extraction import EXTRACTIONS
from pipeline.rewards.workers import Call

_WORKER = "pipeline.rewards.verifiers.reasoning_gym_scorer"


class ReasoningGymVerifier:
    """Gives what it finds in a completion to its task's scorer; a completion is correct when that scores 1."""

    def __init__(self, params: ReasoningGymParams) -> None:
        self._limit = params.time_limit_seconds
        self._extract = EXTRACTIONS[params.extract]

    def judge(self, completion_text: str, prompt: Prompt) -> Verdict | Question:
        """A question for the task's scorer, which alone can tell whether the prompt can be judged at all."""
        answer = self._extract(completion_text)
        if not prompt.metadata:
            return unjudged(answer, "metadata: it is null, and the verifier reasoning_gym needs the task's entry in it")
        call = Call(f"{_WORKER}:score", (prompt.metadata, answer), self._limit)
        check = Call(f"{_WORKER}:check_reference", (prompt.metadata,), self._limit)
        warm_up = Call(f"{_WORKER}:import_task", (_task(prompt.metadata),), self._limit)
        return Question(answer, call, check, warm_up)


@lru_cache(maxsize=1024)
def _task(metadata: str) -> str:
    try:
        return str(json.loads(metadata)["task"])
    except (ValueError, TypeError, KeyError):
        return ""  # the worker says what is wrong with it
