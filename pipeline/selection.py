"""Which prompts an iteration shows: drawn without replacement in a seeded order, epoch after epoch."""

from __future__ import annotations

import heapq

import polars as pl

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, SelectParams
from pipeline.seeds import stable_hash
from pipeline.tables import SELECTION


def select_prompts(
    prompts: pl.DataFrame, prompt_stats: pl.DataFrame, iteration: int, seed: int, params: SelectParams
) -> pl.DataFrame:
    """The selection table of `iteration`: the train prompts that were shown least, ties in an order by hash.

    The epoch of a draw is the prompt's `n_groups` in `prompt_stats`, 0 where it isn't listed. So an epoch ends only
    when every prompt was shown in it, each epoch has another order, an iteration never shows a prompt twice, and the
    draw needs no memory but `prompt_stats`. A prompt added to a run catches up first.

    Args:
        prompts: `prompt_id` and `split` of every prompt.
        prompt_stats: `prompt_id` and `n_groups` of the prompts seen so far.

    Raises:
        BadInput: there are fewer train prompts than `params.n_prompts`.
    """
    train = (
        prompts.filter(pl.col("split") == "train")
        .select("prompt_id")
        .join(prompt_stats.select("prompt_id", "n_groups"), on="prompt_id", how="left")
        .with_columns(pl.col("n_groups").fill_null(0))
    )
    if train.height < params.n_prompts:
        problem = f"{params.n_prompts} prompts are needed, and the train split has {train.height}"
        raise BadInput(f"{PARAMS_FILE}: select.n_prompts", problem, "Lower it, or raise prompts.train_size")
    drawn: list[tuple[str, int]] = []
    for epoch in train["n_groups"].unique().sort():
        waiting = train.filter(pl.col("n_groups") == epoch)["prompt_id"].to_list()
        drawn += [(prompt_id, epoch) for prompt_id in _first_of(waiting, params.n_prompts - len(drawn), seed, epoch)]
        if len(drawn) == params.n_prompts:
            break
    return pl.DataFrame(
        {
            "iteration": [iteration] * len(drawn),
            "position": range(len(drawn)),
            "prompt_id": [prompt_id for prompt_id, _ in drawn],
            "reason": [f"epoch {epoch}" for _, epoch in drawn],
        },
        schema=SELECTION.schema,
    )


def _first_of(prompt_ids: list[str], n_prompts: int, seed: int, epoch: int) -> list[str]:
    """The first `n_prompts` in the order of the epoch."""
    return heapq.nsmallest(n_prompts, prompt_ids, key=lambda prompt_id: stable_hash(seed, epoch, prompt_id))
