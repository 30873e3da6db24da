"""Completions with all that is known of them, one row each, as the exports take them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from pipeline.history import scan
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import Iteration

KEY = ("run", "iteration", "commit")
FIRST = (*KEY, "prompt_id", "group_id", "completion_id", "prompt", "completion_text", "reward", "is_correct")
TOKEN_COLUMNS = ("prompt_token_ids", "completion_token_ids", "sampling_logprobs")


def scan_completions(repository: Repository, run: str, iterations: Sequence[Iteration]) -> pl.LazyFrame:
    """The completions of `iterations` of `run`, joined with rewards, advantages, groups and prompts.

    `prompt` is the chat, a list of messages; token lists are left out.
    """
    names = [f"{run}/{iteration.number:04d}" for iteration in iterations]
    tables = {name: scan(name, names, repo=repository) for name in ("rollouts", "rewards", "advantages", "groups")}
    prompts = scan("prompts", names, repo=repository).drop("commit").rename({"messages": "prompt"})
    rollouts = tables["rollouts"].with_columns(n_tokens=pl.col("completion_token_ids").list.len()).drop(TOKEN_COLUMNS)
    same = ["run", "iteration", "completion_id"]
    rewards = tables["rewards"].drop("commit", "group_id", "prompt_id")
    advantages = tables["advantages"].select(*same, "advantage")
    groups = tables["groups"].select("run", "iteration", "group_id", "outcome", "kept")
    joined = (
        rollouts.join(rewards, same)
        .join(advantages, same)
        .join(groups, ["run", "iteration", "group_id"])
        .join(prompts, ["run", "iteration", "prompt_id"])
    )
    rest = [name for name in joined.collect_schema() if name not in FIRST]
    return joined.select(*FIRST, *rest).sort("iteration", "completion_id")
