"""The verifier `tool_calls`: the calls in a completion against those in the prompt's metadata, in a worker."""

from __future__ import annotations

import re

from pipeline.params import ToolCallsParams
from pipeline.rewards.completion import Verdict
from pipeline.rewards.verifier import Prompt, Question, unjudged
from pipeline.rewards.verifiers.extraction import whole
from pipeline.rewards.workers import Call

_WORKER = "pipeline.rewards.verifiers.tool_call_scorer"
_TAG = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class ToolCallsVerifier:
    """Correct are the calls that the prompt expects, in any order, and no other."""

    def __init__(self, params: ToolCallsParams) -> None:
        self._params = params

    def judge(self, completion_text: str, prompt: Prompt) -> Verdict | Question:
        """A question for the scorer, since the patterns in a tool's schema can take for ever."""
        texts = self._find(completion_text)
        shown = "\n".join(texts) or None
        if prompt.metadata is None:
            return unjudged(shown, "metadata: it is null, and the verifier tool_calls needs tool_calls in it")
        limit = self._params.time_limit_seconds
        call = Call(f"{_WORKER}:score", (prompt.metadata, texts), limit)
        check = Call(f"{_WORKER}:check_reference", (prompt.metadata,), limit)
        return Question(shown, call, check, warm_up=Call(f"{_WORKER}:check_reference", ('{"tool_calls": []}',), limit))

    def _find(self, text: str) -> tuple[str, ...]:
        """The JSON of each call; an unclosed tag holds one that was cut off, and is wrong."""
        if self._params.extract == "tool_call_tag":
            return tuple(content.strip() for content in _TAG.findall(text))
        return tuple(filter(None, [whole(text)]))
