"""Questions about groups: what taught nothing, what is in a group twice, and whether length pays within groups."""

from __future__ import annotations

import polars as pl

from pipeline.audit.measures import n_characters
from pipeline.audit.question import COMPLETION, GROUP, Question, join_completions
from pipeline.audit.tables import INDEX, Tables

SHORT = 0.5
"""A completion is short at this share of the median length of its group, or below."""


def find_silent(tables: Tables) -> pl.LazyFrame:
    """The groups that were dropped; `n_alike` of their iteration were for the same reason."""
    counts = ("group_size", "n_correct", "n_unscorable", "n_truncated", "reward_mean")
    return (
        tables["groups"]
        .filter(~pl.col("kept"))
        .select(*GROUP, "reason", *counts, n_alike=pl.len().over(*INDEX, "reason"))
    )


def find_duplicates(tables: Tables) -> pl.LazyFrame:
    """The texts that a group has more than once, `n_same` times, by the first completion that has each."""
    rows = tables["rollouts"].select(*COMPLETION, "completion_index", "completion_text")
    same = rows.group_by(*GROUP, "completion_text").agg(
        pl.col("completion_id").sort_by("completion_index").first(),
        n_same=pl.len(),
        completion_indices=pl.col("completion_index").sort(),
    )
    return same.filter(pl.col("n_same") > 1).select(
        *COMPLETION,
        "n_same",
        pl.col("completion_indices").list.eval(pl.element().cast(pl.String)).list.join(" "),
        "completion_text",
    )


def find_length_pay(tables: Tables) -> pl.LazyFrame:
    """How reward goes with length within groups, by iteration: group means are taken from both.

    `correlation` is over all completions of groups whose rewards and lengths differ; `reward_per_100_characters` the
    slope of the line through them. Lengths are in characters, since tokens would have to be read one by one.
    """
    lengths = n_characters(pl.col("completion_text")).cast(pl.Float64).alias("n_characters")
    rewards = tables["rewards"].filter(pl.col("reward").is_not_null()).select(*COMPLETION, "reward")
    group = ["run", "group_id"]
    rows = join_completions(rewards, tables["rollouts"], lengths).with_columns(
        r=pl.col("reward") - pl.col("reward").mean().over(group),
        c=pl.col("n_characters") - pl.col("n_characters").mean().over(group),
    )
    differ = rows.filter((pl.col("r").abs().max().over(group) > 1e-9) & (pl.col("c").abs().max().over(group) > 1e-9))
    product, r2, c2 = (pl.col("r") * pl.col("c")).sum(), pl.col("r").pow(2).sum(), pl.col("c").pow(2).sum()
    is_above = pl.col("r") > 0
    return differ.group_by(*INDEX).agg(
        n_groups=pl.col("group_id").n_unique(),
        correlation=product / (r2 * c2).sqrt(),
        reward_per_100_characters=100 * product / c2,
        characters_above_mean_reward=pl.col("n_characters").filter(is_above).mean(),
        characters_below=pl.col("n_characters").filter(~is_above).mean(),
    )


def find_short_winners(tables: Tables) -> pl.LazyFrame:
    """Completions that are empty, or short beside their group, with more reward than their group's mean."""
    lengths = n_characters(pl.col("completion_text")).alias("n_characters")
    columns = (*COMPLETION, "reward", "is_correct")
    rows = join_completions(tables["rewards"].select(columns), tables["rollouts"], lengths)
    group = ["run", "group_id"]
    median = pl.col("n_characters").median()
    return (
        rows.with_columns(
            group_median=median.over(group), reward_above_group=pl.col("reward") - pl.col("reward").mean().over(group)
        )
        .filter(
            (pl.col("reward_above_group") > 1e-6)
            & ((pl.col("n_characters") == 0) | (pl.col("n_characters") <= SHORT * pl.col("group_median")))
        )
        .select(*COMPLETION, "n_characters", "group_median", "reward", "reward_above_group", "is_correct")
    )


QUESTIONS = (
    Question(
        "silent",
        "Which groups taught nothing, and why?",
        find_silent,
        ("-n_alike", "run", "reason", "group_id"),
        ("answer", "prompt"),
    ),
    Question(
        "duplicates",
        "Which completions of a group are duplicates?",
        find_duplicates,
        ("-n_same", "run", "completion_id"),
        ("reward",),
    ),
    Question("length", "Does length buy reward inside groups?", find_length_pay, INDEX),
    Question(
        "short",
        "Are short or empty completions winning?",
        find_short_winners,
        ("n_characters", "-reward_above_group", "run", "completion_id"),
        ("answer", "completion_text"),
    ),
)
