"""Small rollouts and prompts for the tests of rewards."""

from __future__ import annotations

from typing import Any

import polars as pl

from pipeline.params import ScoreParams
from pipeline.rewards.scoring import score_completions
from pipeline.tables import PROMPTS, ROLLOUTS

CORRECT = {"correct": {"weight": 1.0}}


def prompts(
    answers: list[str | None], verifier: str = "math", metadata: list[str | None] | None = None
) -> pl.DataFrame:
    """One prompt per answer, `p0`, `p1`..."""
    n = len(answers)
    columns = {
        "prompt_id": [f"p{i}" for i in range(n)],
        "source": ["file"] * n,
        "messages": [[{"role": "user", "content": f"question {i}"}] for i in range(n)],
        "answer": answers,
        "verifier": [verifier] * n,
        "metadata": metadata or [None] * n,
    }
    return pl.DataFrame(columns, schema={name: PROMPTS.schema[name] for name in columns})


def rollouts(texts: list[str], prompt_ids: list[str] | None = None, finish_reason: str = "stop") -> pl.DataFrame:
    """One completion per text, of the prompts `p0`, `p1`... where no ids are given."""
    n = len(texts)
    of_prompt = prompt_ids or [f"p{i}" for i in range(n)]
    columns = {
        "completion_id": [f"c{i}" for i in range(n)],
        "group_id": [f"0000/{prompt_id}" for prompt_id in of_prompt],
        "prompt_id": of_prompt,
        "completion_text": texts,
        "completion_token_ids": [[ord(letter) for letter in text] for text in texts],
        "finish_reason": [finish_reason] * n,
    }
    return pl.DataFrame(columns, schema={name: ROLLOUTS.schema[name] for name in columns})


def score(texts: list[str], answers: list[str | None], **params: Any) -> list[dict[str, Any]]:
    """The rows of rewards for one completion per answer, by the verifier math."""
    settings = ScoreParams.model_validate({"terms": CORRECT, **params})
    return score_completions(rollouts(texts), prompts(answers), settings).to_dicts()
