"""Rewards -> group-relative advantages.

Source: DeepSeekMath (arXiv 2402.03300, section 4.1) for the group mean and spread, RLOO (arXiv 2402.14740) for the
leave-one-out baseline, Dr. GRPO (arXiv 2503.20783) for no scaling. Deviations from the paper:
1. The standard deviation is the sample's (ddof=1), and it has a floor instead of an epsilon in the denominator, so
   that noise below the floor isn't blown up.
2. A group whose rewards lie within `EQUAL_REWARDS` of each other has advantages of exactly 0, whatever rounding
   left in its mean.
3. Completions without a reward take no part in their group's statistics, and their advantage is null.
"""

from __future__ import annotations

import polars as pl

from pipeline.params import NormalizeParams
from pipeline.tables import ADVANTAGES

EQUAL_REWARDS = 1e-6
"""Rewards of a group that span at most this much are equal."""


def rewards_are_equal(reward: pl.Expr) -> pl.Expr:
    """Whether the non-null rewards of a group are all equal, to be taken over the group; null without any."""
    return (reward.max() - reward.min()) <= EQUAL_REWARDS


def sample_std(values: pl.Expr, over: str | None = None) -> pl.Expr:
    """Standard deviation (ddof=1) of the non-null `values`, in two passes; null with fewer than two.

    One pass (mean of squares minus square of mean) loses every digit when the spread is small beside the mean.
    """
    centered = values - (values.mean().over(over) if over else values.mean())
    total, n = centered.pow(2).sum(), values.count()
    if over:
        total, n = total.over(over), n.over(over)
    return pl.when(n >= 2).then((total / (n - 1)).sqrt())


def compute_advantages(rewards: pl.LazyFrame, params: NormalizeParams) -> pl.LazyFrame:
    """The table `advantages`: a row for each row of `rewards` (columns of the table `rewards`), in its order.

    >>> frame = pl.LazyFrame(
    ...     {
    ...         "iteration": [0] * 4,
    ...         "completion_id": list("abcd"),
    ...         "group_id": ["g"] * 4,
    ...         "prompt_id": ["p"] * 4,
    ...         "reward": [1.0, 0.0, 0.0, None],
    ...     }
    ... )
    >>> compute_advantages(frame, NormalizeParams()).collect()["advantage"].round(6).to_list()
    [1.154701, -0.57735, -0.57735, None]
    """
    reward, group = pl.col("reward"), "group_id"
    mean = reward.mean().over(group)
    n = reward.count().over(group)
    std = sample_std(reward, group)
    if params.baseline == "leave_one_out":
        # r - mean(others) = n / (n - 1) * (r - mean(all)); a group of one has no others and no signal.
        centered = pl.when(n >= 2).then((reward - mean) * n / (n - 1)).otherwise(reward - mean)
    else:
        centered = reward - mean
    if params.scale == "group":
        scaled = centered / pl.max_horizontal(std, pl.lit(params.std_floor))
    elif params.scale == "batch":
        scaled = centered / pl.max_horizontal(sample_std(reward), pl.lit(params.std_floor))
    else:
        scaled = centered
    advantage = pl.when(reward.is_not_null() & rewards_are_equal(reward).over(group)).then(0.0).otherwise(scaled)
    return rewards.with_columns(
        reward_mean=mean, reward_std=std, advantage=pl.when(reward.is_not_null()).then(advantage)
    ).select(list(ADVANTAGES.schema))
