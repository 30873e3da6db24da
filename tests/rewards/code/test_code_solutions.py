"""Honest solutions, right and wrong, through the whole of scoring: 500 of them, each with its verdict."""

from __future__ import annotations

import json

import pytest

from pipeline.params import ScoreParams
from pipeline.rewards.scoring import score_completions
from tests.rewards.code.honest import honest_solutions
from tests.rewards.code.trials import needs_sandbox
from tests.rewards.frames import prompts, rollouts

pytestmark = needs_sandbox


@pytest.mark.slow
def test_500_honest_solutions_have_the_right_verdict() -> None:
    solutions = honest_solutions(500)
    metadata: list[str | None] = [json.dumps(each.tests) for each in solutions]
    texts = [f"Here it is:\n```python\n{each.code}```\nIt runs in linear time." for each in solutions]
    settings = ScoreParams.model_validate({"terms": {"correct": {"weight": 1.0}}, "code": {"time_limit_seconds": 20.0}})
    asked = prompts([None] * len(texts), "code", metadata)
    scores = score_completions(rollouts(texts), asked, settings).to_dicts()
    wrong = [
        (each.name, row["is_correct"], row["score_error"])
        for each, row in zip(solutions, scores, strict=True)
        if row["is_correct"] is not each.is_correct or row["score_error"]
    ]
    assert wrong == []


def test_there_are_as_many_right_as_wrong() -> None:
    solutions = honest_solutions(500)
    assert len({each.code for each in solutions}) == 500
    assert sum(each.is_correct for each in solutions) == 250
