"""Preference pairs out of groups, in the format of TRL (conversational, with an explicit prompt).

Source: TRL's documentation, "Dataset formats and types": `prompt`, `chosen` and `rejected` are lists of messages. The
further columns say where a pair comes from; trainers leave them alone.
"""

from __future__ import annotations

import polars as pl

from pipeline.exports.completions import KEY


def preference_pairs(completions: pl.LazyFrame, min_margin: float) -> pl.LazyFrame:
    """A row per group: its best completion against its worst, where their rewards are `min_margin` apart.

    Of equal rewards the first in the group counts. Completions without a reward take no part, and two that read the
    same make no pair.
    """
    group = [*KEY, "prompt_id", "group_id"]
    ordered = completions.filter(pl.col("reward").is_not_null()).sort("completion_index")
    best, worst = (
        ordered.sort("reward", descending=descending, maintain_order=True).group_by(group, maintain_order=True).first()
        for descending in (True, False)
    )
    pairs = best.join(worst.select(*group, *_renamed()), group, nulls_equal=True)  # what is not committed has no commit
    margin = pl.col("reward") - pl.col("rejected_reward")
    return (
        pairs.with_columns(margin=margin)
        .filter(pl.col("margin") >= min_margin, pl.col("completion_text") != pl.col("rejected_text"))
        .select(
            "prompt",
            chosen=as_message("completion_text"),
            rejected=as_message("rejected_text"),
            margin="margin",
            score_chosen="reward",
            score_rejected="rejected_reward",
            chosen_is_correct="is_correct",
            rejected_is_correct="rejected_is_correct",
            chosen_id="completion_id",
            rejected_id="rejected_id",
            **{name: name for name in group},
        )
        .sort("iteration", "group_id")
    )


def as_message(column: str) -> pl.Expr:
    """The text in `column` as a chat of one message, the assistant's."""
    return pl.concat_list(pl.struct(role=pl.lit("assistant"), content=pl.col(column)))


def _renamed() -> list[pl.Expr]:
    names = {"completion_text": "text", "completion_id": "id", "reward": "reward", "is_correct": "is_correct"}
    return [pl.col(name).alias(f"rejected_{short}") for name, short in names.items()]
