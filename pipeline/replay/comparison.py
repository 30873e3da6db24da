"""Stored completions beside the same ones sampled again: where tokens part, and how far log-probabilities do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import polars as pl

from pipeline.sampling import SampledCompletion

COMPARISON = {
    "completion_id": pl.String,
    "n_tokens": pl.UInt32,
    "n_tokens_again": pl.UInt32,
    "first_difference": pl.UInt32,
    "logprob_max_difference": pl.Float64,
    "logprob_mean_difference": pl.Float64,
    "is_identical": pl.Boolean,
}


def compare_completions(rollouts: pl.DataFrame, again: Mapping[str, SampledCompletion]) -> pl.DataFrame:
    """`COMPARISON` of each of `rollouts` that is in `again`, by completion_id.

    `first_difference` is the position of the first token that is another one, or missing on one side; null where there
    is none. The differences of log-probabilities, in nats, are over the tokens before it; null where there is none.
    """
    rows = []
    for row in rollouts.filter(pl.col("completion_id").is_in(list(again))).iter_rows(named=True):
        completion = again[row["completion_id"]]
        place = first_difference(row["completion_token_ids"], completion.token_ids)
        now = pl.Series(completion.logprobs, dtype=pl.Float32).to_list()  # rounded as the table is
        apart = [abs(one - other) for one, other in zip(row["sampling_logprobs"][:place], now[:place], strict=True)]
        rows.append(
            {
                "completion_id": row["completion_id"],
                "n_tokens": len(row["completion_token_ids"]),
                "n_tokens_again": len(completion.token_ids),
                "first_difference": place,
                "logprob_max_difference": max(apart, default=None),
                "logprob_mean_difference": math.fsum(apart) / len(apart) if apart else None,
                "is_identical": place is None and row["finish_reason"] == completion.finish_reason,
            }
        )
    return pl.DataFrame(rows, schema=COMPARISON)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two sequences differ, or at which the shorter one ends; None where they are equal.

    >>> first_difference([5, 6, 7], [5, 8, 7]), first_difference([5, 6], [5, 6, 7]), first_difference([5], [5])
    (1, 2, None)
    """
    differing = (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differing, None if len(one) == len(other) else min(len(one), len(other)))
