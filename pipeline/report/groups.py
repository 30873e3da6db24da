"""Which groups the page shows, and what it shows of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipeline.errors import BadInput
from pipeline.tables import Outcome

MAX_COMPLETIONS = 64
"""How many completions of one group the page shows."""

Tables = Mapping[str, pl.LazyFrame]


@dataclass(frozen=True)
class GroupView:
    """A group: its row of `groups`, its prompt's row, and its completions, best first."""

    group: dict[str, Any]
    prompt: dict[str, Any]
    completions: list[dict[str, Any]]
    note: str
    query: str


@dataclass(frozen=True)
class OutcomeView:
    """Some groups of one outcome, with which they are and how to see the rest."""

    outcome: str
    note: str
    groups: list[GroupView]
    query: str


def view_outcomes(tables: Tables, groups_per_outcome: int) -> list[OutcomeView]:
    """The first `groups_per_outcome` groups, by group id, of each outcome that occurs; mixed groups come first.

    `tables` has prompts, selection, rollouts (with `n_tokens` in place of the token ids), rewards, advantages and
    groups. Only the rows of the groups shown are collected. Raises `BadInput` where a group's prompt is missing.
    """
    first = tables["groups"].sort("group_id").group_by("outcome", maintain_order=True).head(groups_per_outcome)
    drawn = tables["selection"].select("prompt_id", "position", draw="reason")
    shown = first.join(drawn, "prompt_id", "left").collect()
    counts = dict(tables["groups"].group_by("outcome").len().collect().iter_rows())
    prompts = _by("prompt_id", tables["prompts"].filter(pl.col("prompt_id").is_in(shown["prompt_id"].to_list())))
    completions = _completions_by_group(tables, shown["group_id"].to_list())
    views: list[OutcomeView] = []
    for outcome in sorted(counts, key=lambda name: (name != "mixed", Outcome.categories.to_list().index(name))):
        rows = shown.filter(pl.col("outcome") == outcome).sort("group_id").iter_rows(named=True)
        groups = [_view(row, prompts, completions[row["group_id"]]) for row in rows]
        note = _which(len(groups), counts[outcome], f"{outcome} group", "by group id")
        query = f'pl.scan_parquet("data/groups.parquet").filter(pl.col("outcome") == "{outcome}").collect()'
        views.append(OutcomeView(outcome, note, groups, query))
    return views


def _by(key: str, rows: pl.LazyFrame) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in rows.collect().iter_rows(named=True)}


def _completions_by_group(tables: Tables, group_ids: list[str]) -> dict[str, list[dict[str, Any]]]:
    """The completions of each group, joined with their rewards and advantages, best first."""
    rewards = tables["rewards"].drop("iteration", "prompt_id", "group_id")
    advantages = tables["advantages"].select("completion_id", "advantage")
    rows = (
        tables["rollouts"]
        .filter(pl.col("group_id").is_in(group_ids))
        .join(rewards, "completion_id", "left")
        .join(advantages, "completion_id", "left")
        .sort(["reward", "completion_index"], descending=[True, False], nulls_last=True)
        .collect()
    )
    groups: dict[str, list[dict[str, Any]]] = {group_id: [] for group_id in group_ids}
    for row in rows.iter_rows(named=True):
        terms = {name.removeprefix("reward_"): value for name, value in row.items() if name.startswith("reward_")}
        groups[row["group_id"]].append({**row, "terms": terms})
    return groups


def _view(group: dict[str, Any], prompts: dict[str, dict[str, Any]], completions: list[dict[str, Any]]) -> GroupView:
    prompt = prompts.get(group["prompt_id"])
    if prompt is None:
        problem = f"there is no prompt {group['prompt_id']}, and group {group['group_id']} is of that prompt"
        raise BadInput("data/prompts.parquet", problem, "Run `dvc repro`, so that the tables belong together again")
    shown = completions[:MAX_COMPLETIONS]
    note = "" if len(shown) == len(completions) else _which(len(shown), len(completions), "completion", "by reward")
    return GroupView(group, prompt, shown, note, _completions_query(group["group_id"]))


def _completions_query(group_id: str) -> str:
    return (
        'pl.scan_parquet("data/rollouts.parquet")'
        f'.filter(pl.col("group_id") == "{group_id}")'
        '.join(pl.scan_parquet("data/rewards.parquet"), on="completion_id").collect()'
    )


def _which(n_shown: int, n_all: int, noun: str, order: str) -> str:
    """Which rows are shown.

    >>> _which(4, 9, "mixed group", "by group id")
    '4 of 9 mixed groups: the first by group id'
    """
    if n_shown < n_all:
        return f"{n_shown:,} of {n_all:,} {noun}s: the first {order}"
    return f"the only {noun}" if n_all == 1 else f"all {n_all:,} {noun}s"
