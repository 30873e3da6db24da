"""The verifier `json_answer`: a completion's JSON against the prompt's answer and schema, in a worker."""

from __future__ import annotations

from pipeline.params import JsonAnswerParams
from pipeline.rewards.completion import Verdict
from pipeline.rewards.verifier import Prompt, Question, unjudged
from pipeline.rewards.verifiers.documents import EXTRACTIONS
from pipeline.rewards.workers import Call

_WORKER = "pipeline.rewards.verifiers.json_answer_scorer"


class JsonAnswerVerifier:
    """Correct is JSON that equals the prompt's answer, where it has one, and obeys the schema in its metadata."""

    def __init__(self, params: JsonAnswerParams) -> None:
        self._limit = params.time_limit_seconds
        self._extract = EXTRACTIONS[params.extract]

    def judge(self, completion_text: str, prompt: Prompt) -> Verdict | Question:
        """A question for the scorer, since a schema's patterns can take for ever."""
        found = self._extract(completion_text)
        if prompt.answer is None and prompt.metadata is None:
            return unjudged(found, "answer: it is null, and so is metadata, so there is nothing to compare with")
        reference = (prompt.answer, prompt.metadata)
        call = Call(f"{_WORKER}:score", (*reference, found), self._limit)
        check = Call(f"{_WORKER}:check_reference", reference, self._limit)
        return Question(found, call, check, warm_up=Call(f"{_WORKER}:check_reference", ("1", None), self._limit))
