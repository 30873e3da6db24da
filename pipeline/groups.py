"""Groups: their outcome, which are kept, what is trained on, and what their prompts' statistics become.

Source: the dynamic sampling of DAPO (arXiv 2503.14476, section 3.2) drops groups that are all correct or all wrong,
whose advantages are zero. Deviations from the paper:
1. The outcome comes from the verifier's verdicts, not from the reward, so that a shaping term (a format reward, say)
   can't smuggle an all-wrong group in; and equal rewards drop a group too.
2. A dropped group is not replaced by sampling again and again until the batch is full: `rollout.oversample` rolls out
   more groups than are wanted, once, and `limit_groups` keeps the first of those that teach.
"""

from __future__ import annotations

import polars as pl

from pipeline.advantages import rewards_are_equal, sample_std
from pipeline.params import FilterParams, RolloutParams, SelectParams
from pipeline.tables import GROUPS, PROMPT_STATS, SURPLUS, TRAINING_SET, Outcome

REASONS = {
    "mixed": "mixed outcomes",
    "all_correct": "all correct: nothing to learn from",
    "all_wrong": "all wrong: nothing to learn from",
    "unscorable": "fewer than two scorable completions",
    "unverified": "no verdicts, rewards differ",
}
EQUAL_REASON = "all rewards are equal"


def summarize_groups(rewards: pl.LazyFrame, rollouts: pl.LazyFrame) -> pl.LazyFrame:
    """The table `groups`, sorted by group_id, from the tables `rewards` and `rollouts`.

    Only `completion_id` and `finish_reason` of `rollouts` are read.
    """
    rows = rewards.join(rollouts.select("completion_id", "finish_reason"), on="completion_id", how="left")
    reward, is_correct = pl.col("reward"), pl.col("is_correct")
    verdict = is_correct.filter(reward.is_not_null()).drop_nulls()
    n_scorable = reward.count()
    outcome = (
        pl.when(n_scorable < 2)
        .then(pl.lit("unscorable"))
        .when(verdict.len() == 0)
        .then(pl.lit("unverified"))
        .when(verdict.all())
        .then(pl.lit("all_correct"))
        .when(~verdict.any())
        .then(pl.lit("all_wrong"))
        .otherwise(pl.lit("mixed"))
    )
    groups = rows.group_by("iteration", "group_id", "prompt_id").agg(
        group_size=pl.len().cast(pl.UInt16),
        n_correct=verdict.sum().cast(pl.UInt16),
        n_unscorable=reward.null_count().cast(pl.UInt16),
        n_truncated=(pl.col("finish_reason") == "length").sum().cast(pl.UInt16),
        reward_mean=reward.mean(),
        reward_std=sample_std(reward),
        outcome=outcome.first().cast(Outcome),
        is_equal=rewards_are_equal(reward).fill_null(True),
    )
    is_useful = pl.col("outcome").is_in(["mixed", "unverified"])
    reason = pl.col("outcome").cast(pl.String).replace_strict(REASONS)
    return (
        groups.with_columns(
            kept=is_useful & ~pl.col("is_equal"),
            reason=pl.when(is_useful & pl.col("is_equal")).then(pl.lit(EQUAL_REASON)).otherwise(reason),
        )
        .select(list(GROUPS.schema))
        .sort("group_id")
    )


def target_groups(select: SelectParams, rollout: RolloutParams, params: FilterParams) -> int | None:
    """How many groups are kept at most; None where there is no limit.

    Where more are rolled out than `select.n_prompts`, that is the limit unless `filter.target_groups` gives one.

    >>> select = SelectParams(n_prompts=16)
    >>> target_groups(select, RolloutParams(group_size=8, oversample=1.5), FilterParams())
    16
    """
    if params.target_groups is None and rollout.oversample > 1:
        return select.n_prompts
    return params.target_groups


def limit_groups(groups: pl.LazyFrame, selection: pl.LazyFrame, target: int | None) -> pl.LazyFrame:
    """`groups`, in which the first `target` kept ones stay kept, by their prompt's position in `selection`.

    The order was fixed before anything was rolled out, so which groups are kept does not depend on which completions
    were short or done first. The others are surplus: their completions stay on record, and in their prompts'
    statistics.
    """
    if target is None:
        return groups
    position = selection.select("prompt_id", "position")
    is_needless = pl.col("kept") & (pl.col("position").rank("ordinal").over("kept") > target)
    return (
        groups.join(position, on="prompt_id", how="left", maintain_order="left")
        .with_columns(
            kept=pl.col("kept") & ~is_needless,
            reason=pl.when(is_needless).then(pl.lit(f"{SURPLUS}: {target} kept before it")).otherwise("reason"),
        )
        .select(list(GROUPS.schema))
    )


def is_surplus() -> pl.Expr:
    """Whether a row of `groups` is one that teaches and was not needed."""
    return pl.col("reason").str.starts_with(SURPLUS)


def build_training_set(advantages: pl.LazyFrame, groups: pl.LazyFrame, rollouts: pl.LazyFrame) -> pl.LazyFrame:
    """The table `training_set`: the completions of kept groups that have an advantage, in the order of `rollouts`."""
    kept = (
        advantages.join(groups.filter("kept").select("group_id"), on="group_id", how="semi")
        .filter(pl.col("advantage").is_not_null())
        .select("completion_id", "advantage")
    )
    return (
        rollouts.join(kept, on="completion_id", how="inner", maintain_order="left")
        .with_columns(is_truncated=pl.col("finish_reason") == "length")
        .select(list(TRAINING_SET.schema))
    )


def update_prompt_stats(stats: pl.LazyFrame, rewards: pl.LazyFrame, params: FilterParams) -> pl.LazyFrame:
    """The table `prompt_stats` after the groups of `rewards`, sorted by prompt_id.

    `recent_pass_rate` = decay * (what it was) + (1 - decay) * (pass rate of the new groups), and simply the latter
    for a prompt not seen before. Completions without a verdict count in no pass rate.
    """
    new = rewards.group_by("prompt_id").agg(
        new_groups=pl.col("group_id").n_unique().cast(pl.UInt32),
        new_completions=pl.col("is_correct").count().cast(pl.UInt32),
        new_correct=pl.col("is_correct").sum().cast(pl.UInt32),
        new_iteration=pl.col("iteration").max(),
    )
    new_rate = pl.col("new_correct") / pl.col("new_completions")
    decay = params.pass_rate_decay
    recent = (
        pl.when(pl.col("new_completions").fill_null(0) == 0)
        .then(pl.col("recent_pass_rate"))
        .when(pl.col("recent_pass_rate").is_null())
        .then(new_rate)
        .otherwise(decay * pl.col("recent_pass_rate") + (1 - decay) * new_rate)
    )
    counts = {
        old: pl.sum_horizontal(pl.col(old).fill_null(0), pl.col(added).fill_null(0)).cast(pl.UInt32)
        for old, added in (
            ("n_groups", "new_groups"),
            ("n_completions", "new_completions"),
            ("n_correct", "new_correct"),
        )
    }
    total_rate = pl.when(pl.col("n_completions") > 0).then(pl.col("n_correct") / pl.col("n_completions"))
    return (
        stats.join(new, on="prompt_id", how="full", coalesce=True)
        .with_columns(**counts, recent_pass_rate=recent, last_iteration=pl.coalesce("new_iteration", "last_iteration"))
        .with_columns(pass_rate=total_rate)
        .select(list(PROMPT_STATS.schema))
        .sort("prompt_id")
    )
