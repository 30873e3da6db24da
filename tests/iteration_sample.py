"""A made-up iteration: every table and metric that the report reads, small, and true to the schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.metrics import KEYS
from pipeline.table_io import write_json, write_table
from pipeline.tables import (
    ADVANTAGES,
    EVAL,
    GROUPS,
    PROMPTS,
    REWARDS,
    ROLLOUTS,
    SELECTION,
    TOKEN_LOGPROBS,
    TRAIN_STEPS,
    TRAINING_SET,
    Table,
)

GROUP_SIZE = 4

# Rewards of the completions of each group; None can't be scored. The outcome follows.
REWARDS_BY_OUTCOME: dict[str, list[float | None]] = {
    "mixed": [1.0, 0.0, 0.0, 1.0],
    "all_correct": [1.0, 1.0, 1.0, 1.0],
    "all_wrong": [0.0, 0.0, 0.0, 0.0],
    "unscorable": [None, None, None, 0.0],
}
REASONS = {
    "mixed": "mixed outcomes",
    "all_correct": "all correct: nothing to learn from",
    "all_wrong": "all wrong: nothing to learn from",
    "unscorable": "fewer than two scorable completions",
}
TABLES_OF_REPORT = (
    *(PROMPTS, SELECTION, ROLLOUTS, REWARDS, ADVANTAGES, GROUPS),
    *(TRAINING_SET, TOKEN_LOGPROBS, TRAIN_STEPS, EVAL),
)
DEFAULT_OUTCOMES = ["mixed"] * 6 + ["all_wrong"] * 7 + ["all_correct"] * 2 + ["unscorable"]


def sample_frames(
    iteration: int = 0, outcomes: list[str] | None = None, texts: list[str] | None = None
) -> dict[str, pl.DataFrame]:
    """The tables of the report, one group per entry of `outcomes`.

    `texts` are the first completions' texts, in the order of the rollouts; the others answer a sum.
    """
    outcomes = DEFAULT_OUTCOMES if outcomes is None else outcomes
    prompt_ids = [f"{i:016x}" for i in range(len(outcomes))]
    completions = [
        _completion(iteration, prompt_id, index, REWARDS_BY_OUTCOME[outcome][index])
        for prompt_id, outcome in zip(prompt_ids, outcomes, strict=True)
        for index in range(GROUP_SIZE)
    ]
    for completion, text in zip(completions, texts or [], strict=False):
        completion["completion_text"] = text
    drawn = [
        {"iteration": iteration, "position": i, "prompt_id": prompt_id, "reason": "next of epoch 0"}
        for i, prompt_id in enumerate(prompt_ids)
    ]
    trained = [completion for completion in completions if completion["prompt_id"] in _mixed(prompt_ids, outcomes)]
    groups = [_group(iteration, prompt_id, outcome) for prompt_id, outcome in zip(prompt_ids, outcomes, strict=True)]
    return {
        "prompts": _frame(PROMPTS, [_prompt(prompt_id) for prompt_id in prompt_ids]),
        "selection": _frame(SELECTION, drawn),
        "rollouts": _frame(ROLLOUTS, completions),
        "rewards": _frame(REWARDS, completions, {"reward_correct": pl.Float64, "reward_format": pl.Float64}),
        "advantages": _frame(ADVANTAGES, completions),
        "groups": _frame(GROUPS, groups),
        "training_set": _frame(TRAINING_SET, [{**row, "is_truncated": False} for row in trained]),
        "token_logprobs": _frame(TOKEN_LOGPROBS, trained),
        "train_steps": _frame(TRAIN_STEPS, [_step(iteration)] if "mixed" in outcomes else []),
        "eval": _frame(EVAL, _evaluated(iteration)),
    }


def lazy_tables(frames: dict[str, pl.DataFrame]) -> dict[str, pl.LazyFrame]:
    """`frames` as the report takes them."""
    tables = {name: frame.lazy() for name, frame in frames.items()}
    n_tokens = pl.col("completion_token_ids").list.len()
    tables["rollouts"] = tables["rollouts"].select(
        "iteration",
        "group_id",
        "completion_id",
        "completion_index",
        "completion_text",
        "finish_reason",
        n_tokens=n_tokens,
    )
    return tables


def sample_metrics(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The metrics of an ordinary iteration; `changes` maps a stage to keys that differ."""
    metrics: dict[str, dict[str, Any]] = json.loads(_METRICS)
    usage = {"seconds": 1.5, "peak_memory_mb": 300}
    return {stage: {**usage, **values, **changes.get(stage, {})} for stage, values in metrics.items()}


def no_group_kept() -> dict[str, dict[str, Any]]:
    """What to change in the metrics of an iteration whose 16 groups are all wrong."""
    counts = ("n_steps", "n_steps_resumed", "n_completions", "n_tokens")
    outcomes = {"all_correct": 0, "all_wrong": 16, "mixed": 0, "unscorable": 0, "unverified": 0}
    return {
        "filter": {"n_kept": 0, "outcomes": outcomes, "dropped_reasons": {REASONS["all_wrong"]: 16}},
        "update": {**dict.fromkeys(KEYS["update"]), **dict.fromkeys(counts, 0), "is_policy_unchanged": True},
    }


def write_iteration(
    root: Path, frames: dict[str, pl.DataFrame] | None = None, metrics: dict[str, dict[str, Any]] | None = None
) -> None:
    """Write tables and metrics under `root`/data, as the stages before the report leave them."""
    frames = sample_frames() if frames is None else frames
    for table in TABLES_OF_REPORT:
        write_table(frames[table.name], root / "data" / f"{table.name}.parquet", table)
    for stage, values in (sample_metrics() if metrics is None else metrics).items():
        write_json(values, root / "data" / "metrics" / f"{stage}.json")


def _frame(table: Table, rows: list[dict[str, Any]], extra: dict[str, Any] | None = None) -> pl.DataFrame:
    schema = {**table.schema, **(extra or {})}
    return pl.DataFrame([{name: row[name] for name in schema} for row in rows], schema=schema)


def _mixed(prompt_ids: list[str], outcomes: list[str]) -> set[str]:
    return {prompt_id for prompt_id, outcome in zip(prompt_ids, outcomes, strict=True) if outcome == "mixed"}


def _prompt(prompt_id: str) -> dict[str, Any]:
    number = int(prompt_id, 16)
    content = f"State the final answer to the following problem: {number} + 5 =\nAnswer with just the number."
    return {
        "prompt_id": prompt_id,
        "split": "train",
        "source": "reasoning_gym/chain_sum",
        "messages": [{"role": "user", "content": content}],
        "answer": str(number + 5),
        "verifier": "reasoning_gym",
        "metadata": None,
    }


def _completion(iteration: int, prompt_id: str, index: int, reward: float | None) -> dict[str, Any]:
    group_id = f"{iteration:04d}/{prompt_id}"
    n_tokens = 2 + (int(prompt_id, 16) + 3 * index) % 15
    answer = str(int(prompt_id, 16) + (5 if reward else 4))
    return {
        "iteration": iteration,
        "prompt_id": prompt_id,
        "group_id": group_id,
        "completion_id": f"{group_id}/{index}",
        "completion_index": index,
        "seed": index,
        "prompt_token_ids": [1, 2, 3],
        "completion_token_ids": list(range(n_tokens)),
        "completion_text": answer if index % 2 else f"The answer to the problem is {answer}.",
        "sampling_logprobs": [-0.5] * n_tokens,
        "old_logprobs": [-0.5] * n_tokens,
        "ref_logprobs": None,
        "steps": [3],
        "finish_reason": "length" if n_tokens == 16 else "stop",
        "reward": reward,
        "is_correct": None if reward is None else reward == 1.0,
        "extracted_answer": None if reward is None else answer,
        "score_error": "the verifier exceeded 5 s" if reward is None else None,
        "reward_correct": reward,
        "reward_format": None if reward is None else float(index % 2),
        "reward_mean": None if reward is None else 0.5,
        "reward_std": None,
        "advantage": None if reward is None else reward - 0.5,
    }


def _group(iteration: int, prompt_id: str, outcome: str) -> dict[str, Any]:
    rewards = REWARDS_BY_OUTCOME[outcome]
    scored = [reward for reward in rewards if reward is not None]
    return {
        "iteration": iteration,
        "group_id": f"{iteration:04d}/{prompt_id}",
        "prompt_id": prompt_id,
        "group_size": len(rewards),
        "n_correct": scored.count(1.0),
        "n_unscorable": rewards.count(None),
        "n_truncated": 0,
        "reward_mean": sum(scored) / len(scored),
        "reward_std": 0.57735 if outcome == "mixed" else None,
        "outcome": outcome,
        "kept": outcome == "mixed",
        "reason": REASONS[outcome],
    }


def _step(iteration: int) -> dict[str, Any]:
    values = dict.fromkeys(TRAIN_STEPS.schema, 0.25)
    return {**values, "iteration": iteration, "step": 3, "epoch": 0, "n_completions": 24, "n_tokens": 220}


def _evaluated(iteration: int) -> list[dict[str, Any]]:
    """Ten prompts: before the update the first two are answered correctly, after it the second to the fourth."""
    correct = {"before": {0, 1}, "after": {1, 2, 3}}
    return [
        {
            "iteration": iteration,
            "policy": policy,
            "prompt_id": f"{1000 + i:016x}",
            "completion_index": 0,
            "completion_text": "7",
            "finish_reason": "stop",
            "is_correct": i in correct[policy],
            "reward": float(i in correct[policy]),
        }
        for policy in ("before", "after")
        for i in range(10)
    ]


_METRICS = """{
  "prompts": {"n_rows": 2512, "n_duplicates": 16100, "n_train": 2000, "n_eval": 512},
  "base": {"model_type": "llama", "n_parameters": 134515008, "fingerprint": "5f0c"},
  "start": {"method": "lora", "parent": null, "step": 0},
  "select": {"n_prompts": 16, "epoch_min": 0, "epoch_max": 0},
  "rollout": {"n_groups": 16, "n_completions": 64, "n_prompt_tokens": 700, "n_completion_tokens": 560,
    "completion_tokens_mean": 8.75, "truncated_fraction": 0.0625, "tokens_per_second": 231.4,
    "sampling_logprob_mean": -0.81, "policy_fingerprint": "77aa", "engine": "transformers", "engine_version": "5.19.0",
    "seed_scope": "completion", "is_repeatable": true,
    "seconds": 14.2, "peak_memory_mb": 1402},
  "score": {"n_completions": 64, "n_scored": 61, "n_errors": 3, "reward_mean": 0.328125, "pass_rate": 0.3125,
    "term_means": {"correct": 0.3125, "format": 0.5}, "shadows": {}, "code_isolation": null},
  "normalize": {"n_advantages": 61, "n_null": 3, "advantage_abs_mean": 0.21},
  "filter": {"n_groups": 16, "n_kept": 6, "n_training_completions": 24,
    "outcomes": {"all_correct": 2, "all_wrong": 7, "mixed": 6, "unscorable": 1, "unverified": 0},
    "dropped_reasons": {"all wrong: nothing to learn from": 7, "all correct: nothing to learn from": 2,
      "fewer than two scorable completions": 1}},
  "update": {"n_steps": 1, "n_steps_resumed": 0, "n_completions": 24, "n_tokens": 220, "loss": 0.0012,
    "policy_loss": 0.0002, "kl": 0.0251, "entropy": 1.31, "clip_fraction": 0.0, "ratio_max": 1.0,
    "sampling_kl": 0.0003, "grad_norm": 0.71, "learning_rate": 0.0001, "is_policy_unchanged": false,
    "tokens_per_second": 41.7, "n_tokens_run": 700, "padding_fraction": 0.0, "flops_per_second": 6.1e10,
    "matmul_peak": 3.1e11, "peak_fraction": 0.2, "seconds": 21.9, "peak_memory_mb": 2210,
    "peak_gpu_memory_mb": null},
  "evaluate": {"is_scheduled": true, "n_prompts": 128, "n_completions": 256,
    "before": {"pass_at_1": 0.171875, "pass_at_1_low": 0.1164, "pass_at_1_high": 0.2466, "reward_mean": 0.18,
      "truncated_fraction": 0.05, "pass_at_k": {"1": 0.171875}},
    "after": {"pass_at_1": 0.234375, "pass_at_1_low": 0.1695, "pass_at_1_high": 0.3147, "reward_mean": 0.25,
      "truncated_fraction": 0.04, "pass_at_k": {"1": 0.234375}}}
}"""
