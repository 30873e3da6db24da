"""Tables for a question, from the few things that it is about: everything else is ordinary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from pipeline.audit.answer import answer
from pipeline.audit.registry import QUESTIONS
from pipeline.audit.tables import Tables, frame_tables
from pipeline.tables import (
    ADVANTAGES,
    EVAL,
    GROUPS,
    PROMPT_STATS,
    PROMPTS,
    REWARDS,
    ROLLOUTS,
    TOKEN_LOGPROBS,
    TRAINING_SET,
    Table,
)

Frames = dict[str, pl.DataFrame]
Rows = Sequence[Mapping[str, Any]]


def plant(
    completions: Rows, prompts: Mapping[str, Mapping[str, Any]] | None = None, iteration: int = 0, **others: Rows
) -> Frames:
    """The tables of an iteration with these completions, in the order of their groups.

    A completion names its `prompt`, and any column of rollouts, rewards, advantages, training_set and token_logprobs,
    `reward_<term>` and `is_correct_<verifier>` too; it is in the training set where it has `steps`, and is otherwise
    not. `prompts` has what is not ordinary about a prompt, by its id, with its text as `text`; `others` are rows of
    further tables.
    """
    rows: list[dict[str, Any]] = []
    for given in completions:
        index = sum(row["prompt_id"] == given["prompt"] for row in rows)
        rows.append(_completion(given, iteration, index))
    ids = list(dict.fromkeys(row["prompt_id"] for row in rows))
    extra = {name for row in rows for name in row if name.startswith(("reward_", "is_correct_"))} - {*ADVANTAGES.schema}
    types = {name: pl.Float64 if name.startswith("reward_") else pl.Boolean for name in sorted(extra)}
    trained = [row for row in rows if row["steps"]]
    return {
        "prompts": _frame(PROMPTS, [_prompt(each, (prompts or {}).get(each, {})) for each in ids]),
        "rollouts": _frame(ROLLOUTS, rows),
        "rewards": _frame(REWARDS, rows, types),
        "advantages": _frame(ADVANTAGES, rows),
        "training_set": _frame(TRAINING_SET, trained),
        "token_logprobs": _frame(TOKEN_LOGPROBS, trained),
        "groups": _frame(GROUPS, others.get("groups", [])),
        "eval": _frame(EVAL, others.get("eval", [])),
        "prompt_stats": _frame(PROMPT_STATS, others.get("prompt_stats", [])),
    }


def ask(name: str, tables: Frames | Tables, limit: int | None = None) -> pl.DataFrame:
    """The rows that answer the question `name`."""
    asked = frame_tables(tables) if isinstance(tables, dict) else tables
    return answer(QUESTIONS[name], asked, limit).rows


def ids(rows: pl.DataFrame) -> list[str]:
    """The completions of an answer, as `a/0` where they are of prompt `a` and iteration 0."""
    return [each.removeprefix("0000/") for each in rows["completion_id"]]


def _completion(given: Mapping[str, Any], iteration: int, index: int) -> dict[str, Any]:
    group_id = f"{iteration:04d}/{given['prompt']}"
    tokens = given.get("completion_token_ids", [5, 6])
    reward = given.get("reward", 0.0)
    row = {
        "iteration": iteration,
        "prompt_id": given["prompt"],
        "group_id": group_id,
        "completion_id": f"{group_id}/{index}",
        "completion_index": index,
        "seed": index,
        "prompt_token_ids": [1, 2],
        "completion_token_ids": tokens,
        "completion_text": "It is 3.",
        "sampling_logprobs": [-0.5] * len(tokens),
        "finish_reason": "stop",
        "reward": reward,
        "is_correct": None if reward is None else reward > 0.5,
        "extracted_answer": None,
        "score_error": None,
        "reward_mean": 0.5,
        "reward_std": 0.5,
        "advantage": reward,
        "steps": [],
        "old_logprobs": [-0.5] * len(tokens),
        "ref_logprobs": None,
    }
    row |= {key: value for key, value in given.items() if key != "prompt"}
    return row | {"is_truncated": row["finish_reason"] == "length"}


def _prompt(prompt_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
    text = given.get("text", "What is one and two?")
    row = {
        "prompt_id": prompt_id,
        "split": "train",
        "source": "made up",
        "messages": [{"role": "user", "content": text}],
        "answer": "3",
        "verifier": "math",
        "metadata": None,
    }
    return row | {key: value for key, value in given.items() if key != "text"}


def _frame(table: Table, rows: Rows, extra: Mapping[str, Any] | None = None) -> pl.DataFrame:
    schema = {**table.schema, **(extra or {})}
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema).sort(table.key)
