"""An iteration whose tables follow from each other as the stages make them, small, for any params.

Of each five groups two are mixed, one is all correct, one all wrong, and of one a single completion can be scored.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from pipeline.advantages import compute_advantages
from pipeline.groups import (
    build_training_set,
    limit_groups,
    summarize_groups,
    target_groups,
    update_prompt_stats,
)
from pipeline.params import Params
from pipeline.seeds import stable_seed
from pipeline.tables import (
    EVAL,
    JUDGEMENTS,
    PROMPT_STATS,
    PROMPTS,
    REWARDS,
    ROLLOUTS,
    SELECTION,
    TRAIN_STEPS,
    Table,
)


def sound_frames(params: Params, stats: pl.DataFrame | None = None, first_step: int = 0) -> dict[str, pl.DataFrame]:
    """Every table of the iteration that `params` says, `next_prompt_stats` among them, by name.

    `stats` are those of the prompts before it, and `first_step` is the number of its single optimizer step.
    """
    stats = PROMPT_STATS.empty() if stats is None else stats
    prompt_ids = [f"{number:016x}" for number in range(params.rollout.count_groups(params.select.n_prompts))]
    held_out = [f"{number:016x}" for number in range(10_000, 10_000 + params.prompts.eval_size)]
    completions = [
        _completion(params, prompt_id, place, index)
        for place, prompt_id in enumerate(prompt_ids)
        for index in range(params.rollout.group_size)
    ]
    frames = {
        "prompts": _frame(
            PROMPTS, [_prompt(each, "train") for each in prompt_ids] + [_prompt(each, "eval") for each in held_out]
        ),
        "prompt_stats": stats,
        "selection": _frame(SELECTION, [_selected(params, place, each) for place, each in enumerate(prompt_ids)]),
        "rollouts": _frame(ROLLOUTS, completions),
        "rewards": _frame(REWARDS, completions, [f"reward_{name}" for name in params.score.terms]),
        "judgements": JUDGEMENTS.empty(),
        "eval": _frame(
            EVAL, [row for each in held_out[: params.evaluate.n_prompts] for row in _evaluated(params, each)]
        ),
    }
    return frames | _followed(params, frames) | _updated(params, frames | _followed(params, frames), first_step)


def headline_of(frames: dict[str, pl.DataFrame], iteration: int) -> dict[str, Any]:
    """The numbers that Git keeps and that are held against the tables."""
    rewards = frames["rewards"]
    return {
        "iteration": iteration,
        "n_completions": rewards.height,
        "reward_mean": rewards["reward"].mean(),
        "pass_rate": rewards["is_correct"].mean(),
    }


def _followed(params: Params, frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """What normalize and filter make."""
    rollouts, rewards = frames["rollouts"].lazy(), frames["rewards"].lazy()
    advantages = compute_advantages(rewards, params.normalize)
    target = target_groups(params.select, params.rollout, params.filter)
    groups = limit_groups(summarize_groups(rewards, rollouts), frames["selection"].lazy(), target)
    return {
        "advantages": advantages.collect(),
        "groups": groups.collect(),
        "training_set": build_training_set(advantages, groups, rollouts).collect(),
        "next_prompt_stats": update_prompt_stats(frames["prompt_stats"].lazy(), rewards, params.filter).collect(),
    }


def _updated(params: Params, frames: dict[str, pl.DataFrame], step: int) -> dict[str, pl.DataFrame]:
    """What an update of one step records: all of the training set, whose old log-probabilities are a bit lower."""
    trained = frames["training_set"]
    old = pl.col("sampling_logprobs").list.eval(pl.element() - 0.01)
    token_logprobs = trained.select(
        "iteration",
        "completion_id",
        steps=pl.lit([step], dtype=pl.List(pl.UInt32)),
        old_logprobs=old,
        ref_logprobs=old,
    )
    n_tokens = trained["completion_token_ids"].list.len().sum()
    row: dict[str, Any] = {
        **dict.fromkeys(TRAIN_STEPS.schema, 0.25),
        "iteration": params.iteration,
        "step": step,
        "epoch": 0,
    }
    row |= {"n_completions": trained.height, "n_tokens": n_tokens}
    return {"token_logprobs": token_logprobs, "train_steps": pl.DataFrame([row], schema=TRAIN_STEPS.schema)}


def _frame(table: Table, rows: list[dict[str, Any]], terms: list[str] | None = None) -> pl.DataFrame:
    schema = {**table.schema, **dict.fromkeys(terms or [], pl.Float64)}
    frame = pl.DataFrame([{name: row[name] for name in schema} for row in rows], schema=schema)
    return frame.sort(table.key)


def _prompt(prompt_id: str, split: str) -> dict[str, Any]:
    number = int(prompt_id, 16)
    return {
        "prompt_id": prompt_id,
        "split": split,
        "source": "made up",
        "messages": [{"role": "user", "content": f"What is {number} + 1?"}],
        "answer": str(number + 1),
        "verifier": "math",
        "metadata": None,
    }


def _selected(params: Params, place: int, prompt_id: str) -> dict[str, Any]:
    return {"iteration": params.iteration, "position": place, "prompt_id": prompt_id, "reason": "next of epoch 0"}


def _completion(params: Params, prompt_id: str, place: int, index: int) -> dict[str, Any]:
    verdict = [index % 2 == 0, index == 0, True, False, True if index == 0 else None][place % 5]
    n_tokens = 1 + (place + index) % params.sampling.max_completion_tokens
    value = None if verdict is None else float(verdict)
    weight = sum(term.weight for term in params.score.terms.values())
    group_id = f"{params.iteration:04d}/{prompt_id}"
    return {
        "iteration": params.iteration,
        "prompt_id": prompt_id,
        "group_id": group_id,
        "completion_id": f"{group_id}/{index}",
        "completion_index": index,
        "seed": stable_seed(params.seed, params.iteration, prompt_id, index),
        "prompt_token_ids": [1, 2, 3],
        "completion_token_ids": list(range(n_tokens)),
        "completion_text": f"It is {int(prompt_id, 16) + (1 if verdict else 2 + index)}",
        "sampling_logprobs": [-0.5] * n_tokens,
        "finish_reason": "length" if n_tokens == params.sampling.max_completion_tokens else "stop",
        "reward": None if value is None else weight * value,
        "is_correct": verdict,
        "extracted_answer": None if verdict is None else "7",
        "score_error": "the verifier took too long" if verdict is None else None,
        **{f"reward_{name}": value for name in params.score.terms},
    }


def _evaluated(params: Params, prompt_id: str) -> list[dict[str, Any]]:
    row = {"iteration": params.iteration, "policy": "after", "prompt_id": prompt_id, "completion_text": "7"}
    row |= {"finish_reason": "stop", "is_correct": True, "reward": 1.0}
    return [{**row, "completion_index": index} for index in range(params.evaluate.n_completions)]
