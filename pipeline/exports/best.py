"""The best completions of each prompt, for supervised fine-tuning (rejection sampling, best of n).

The format is TRL's conversational prompt-completion: `prompt` and `completion` are lists of messages.
"""

from __future__ import annotations

import polars as pl

from pipeline.exports.completions import KEY
from pipeline.exports.pairs import as_message


def best_completions(completions: pl.LazyFrame, n_best: int, min_reward: float | None) -> pl.LazyFrame:
    """The `n_best` completions of each prompt with the highest rewards, over all its groups.

    A text counts once. Of equal rewards the shorter text comes first, then the later iteration. Those without a
    reward, with one below `min_reward`, judged wrong, or without text are left out.
    """
    is_good = pl.col("reward").is_not_null() & pl.col("is_correct").fill_null(True)
    if min_reward is not None:
        is_good &= pl.col("reward") >= min_reward
    has_text = pl.col("completion_text").str.strip_chars() != ""
    length = pl.col("completion_text").str.len_chars()
    ranked = (
        completions.filter(is_good & has_text)
        .sort(["reward", length, "iteration", "completion_id"], descending=[True, False, True, False])
        .unique(["prompt_id", "completion_text"], keep="first", maintain_order=True)
        .group_by("prompt_id", maintain_order=True)
        .head(n_best)
    )
    return ranked.select(
        "prompt",
        completion=as_message("completion_text"),
        reward="reward",
        is_correct="is_correct",
        **{name: name for name in (*KEY, "prompt_id", "completion_id")},
    ).sort("prompt_id", maintain_order=True)
