"""Which groups a page holds: all of them where they fit, else some of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.tables import Outcome

MAX_COMPLETIONS = 2_000
"""A page holds all groups while they have at most this many completions together."""

Tables = Mapping[str, pl.LazyFrame]
Kinds = Mapping[str, Sequence[str]]
"""A kind of group in words -> the ids of its groups, in order."""


@dataclass(frozen=True)
class Choice:
    """The groups on a page, in the order they are shown, and which these are in words."""

    group_ids: list[str]
    note: str
    is_everything: bool


def choose_groups(tables: Tables, n_per_kind: int, first: Kinds | None = None, last: Kinds | None = None) -> Choice:
    """All groups, mixed ones first, or `n_per_kind` of each kind where all would be too many for a page.

    The kinds are each outcome, the latest first, then the groups with the highest and lowest reward, the longest
    completion and the most completions cut off; kinds `first` come before and `last` after these. A group is there
    once, by the first kind that takes it. `tables` has groups, rewards and rollouts.
    """
    groups = tables["groups"].select("group_id", "outcome", "group_size", "n_truncated").collect()
    n_completions = int(groups["group_size"].sum())
    order = ["mixed", *(name for name in Outcome.categories if name != "mixed")]
    ranked = groups.with_columns(rank=pl.col("outcome").cast(pl.String).replace_strict(order, range(len(order))))
    if n_completions <= MAX_COMPLETIONS:
        note = f"All {groups.height:,} groups, {n_completions:,} completions"
        leading = [group for groups_of_kind in (first or {}).values() for group in groups_of_kind]
        by_outcome = ranked.sort("rank", "group_id", descending=[False, True])["group_id"]
        return Choice(list(dict.fromkeys([*leading, *by_outcome])), note, True)
    kinds = _kinds(groups, _extremes(tables), order, n_per_kind)
    return _take(groups, {**(first or {}), **kinds, **(last or {})}, n_per_kind)


def _extremes(tables: Tables) -> pl.DataFrame:
    """Per group its highest and lowest reward and its longest completion, in tokens."""
    rewards = tables["rewards"].group_by("group_id").agg(highest=pl.max("reward"), lowest=pl.min("reward"))
    lengths = tables["rollouts"].group_by("group_id").agg(longest=pl.max("n_tokens"))
    return rewards.join(lengths, "group_id").collect(engine="streaming")


def _kinds(groups: pl.DataFrame, extremes: pl.DataFrame, outcomes: list[str], n: int) -> dict[str, list[str]]:
    """Kind in words -> its groups, in order, as many as can be needed."""
    n_needed = n * (len(outcomes) + 5)  # so many could be taken by the kinds before
    kinds = {
        outcome: groups.filter(pl.col("outcome") == outcome).top_k(n_needed, by="group_id")["group_id"].to_list()
        for outcome in outcomes
    }
    for name, column, descending in (
        ("with the highest reward", "highest", True),
        ("with the lowest reward", "lowest", False),
        ("with the longest completion", "longest", True),
    ):
        ranked = extremes.drop_nulls(column).sort([column, "group_id"], descending=[descending, False])
        kinds[name] = ranked["group_id"].head(n_needed).to_list()
    cut_off = groups.filter(pl.col("n_truncated") > 0).sort(["n_truncated", "group_id"], descending=[True, False])
    kinds["with the most completions cut off"] = cut_off["group_id"].head(n_needed).to_list()
    return kinds


def _take(groups: pl.DataFrame, kinds: Kinds, n_per_kind: int) -> Choice:
    sizes = dict(groups.select("group_id", "group_size").iter_rows())
    taken: dict[str, None] = {}
    counts: list[str] = []
    for kind, candidates in kinds.items():
        own = [group for group in dict.fromkeys(candidates) if group in sizes and group not in taken][:n_per_kind]
        taken |= dict.fromkeys(own)
        counts += [f"{len(own):,} {kind}"] if own else []
    n_held, n_all = sum(sizes[group] for group in taken), sum(sizes.values())
    note = f"{len(taken):,} of {len(sizes):,} groups, {n_held:,} of {n_all:,} completions: {', '.join(counts)}"
    return Choice(list(taken), note, False)
