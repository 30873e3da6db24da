"""Completions with all that is known of them, one row each, as the exports take them."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from pipeline.audit.tables import INDEX, Tables, brief_rollouts

KEY = (*INDEX, "commit")
FIRST = (*KEY, "prompt_id", "group_id", "completion_id", "prompt", "completion_text", "reward", "is_correct")


def scan_completions(tables: Tables, commits: Mapping[tuple[str, int], str]) -> pl.LazyFrame:
    """The completions of `tables`, with rewards, advantages, groups, prompts, and the commit of their iteration.

    `commits` maps run and iteration to it; null where there is none. `prompt` is the chat, a list of messages; token
    lists are left out.
    """
    prompts = tables["prompts"].rename({"messages": "prompt"})
    same = [*INDEX, "completion_id"]
    rewards = tables["rewards"].drop("group_id", "prompt_id")
    advantages = tables["advantages"].select(*same, "advantage")
    groups = tables["groups"].select(*INDEX, "group_id", "outcome", "kept")
    joined = (
        brief_rollouts(tables)
        .join(rewards, same)
        .join(advantages, same)
        .join(groups, [*INDEX, "group_id"])
        .join(prompts, [*INDEX, "prompt_id"])
        .join(_commits(commits), INDEX, "left")
    )
    rest = [name for name in joined.collect_schema() if name not in FIRST]
    return joined.select(*FIRST, *rest).sort("iteration", "completion_id")


def _commits(commits: Mapping[tuple[str, int], str]) -> pl.LazyFrame:
    rows = [(*iteration, commit) for iteration, commit in commits.items()]
    return pl.LazyFrame(rows, schema={"run": pl.String, "iteration": pl.UInt32, "commit": pl.String}, orient="row")
