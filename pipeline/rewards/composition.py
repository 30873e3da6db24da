r"""Terms -> reward: a weighted sum of the terms, of which some count only where the completion is correct, clipped.

reward = clip(\sum_t weight_t * gate_t * value_t), where gate_t of a gated term is 1 if the completion is correct and 0
if it is wrong, and that of any other term is 1.

Null is not zero. The reward is null where a required term's value is, or where a gated one's gate is since there is no
verdict. An optional term that is null adds nothing, and neither does a gated one that is null where the gate is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from pipeline.rewards.registry import Term


def column_of(term: Term) -> str:
    """The column of `rewards` that holds the values of a term."""
    return f"reward_{term.name}"


def compose_rewards(values: pl.DataFrame, terms: Sequence[Term], clip: Sequence[float] | None) -> pl.DataFrame:
    """`reward` of each row of `values`, which has `is_correct` and a column for each term, and `error`.

    A sum beyond floating point is no reward: null, and `error` says so.
    """
    total = pl.lit(0.0)
    for term in terms:
        total = total + _contribution(term)
    reward = pl.when(total.is_finite()).then(total)
    error = pl.when(~total.is_finite()).then(pl.lit("reward: the weighted sum is not finite"))
    return values.select(reward=reward.clip(*clip) if clip else reward, error=error)


def _contribution(term: Term) -> pl.Expr:
    share = term.settings.weight * pl.col(column_of(term))
    if term.settings.gated:
        share = pl.when("is_correct").then(share).when(~pl.col("is_correct")).then(0.0)
    return share if term.settings.required else share.fill_null(0.0)
