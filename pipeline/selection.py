"""Which prompts an iteration shows: each once, in a seeded order, by one of two strategies."""

from __future__ import annotations

import polars as pl

from pipeline.difficulty import Candidate, draw_by_difficulty
from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, SelectParams
from pipeline.seeds import stable_hash
from pipeline.tables import SELECTION


def select_prompts(
    prompts: pl.DataFrame, prompt_stats: pl.DataFrame, iteration: int, seed: int, n_prompts: int, params: SelectParams
) -> pl.DataFrame:
    """The selection table of `iteration`: `n_prompts` of the train prompts, drawn by `params.strategy`.

    Statistics of prompts that are no train prompts (any more) are ignored.

    Args:
        prompts: `prompt_id` and `split` of every prompt.
        prompt_stats: `prompt_id`, `n_groups`, `recent_pass_rate` and `last_iteration` of the prompts seen so far.

    Raises:
        BadInput: there are fewer train prompts than `n_prompts`.
    """
    candidates = _candidates(prompts, prompt_stats)
    if len(candidates) < n_prompts:
        problem = f"{n_prompts} prompts are needed, and the train split has {len(candidates)}"
        remedy = "Lower it or rollout.oversample, or raise prompts.train_size"
        raise BadInput(f"{PARAMS_FILE}: select.n_prompts", problem, remedy)
    if params.strategy == "difficulty":
        drawn = draw_by_difficulty(candidates, n_prompts, iteration, seed, params.difficulty)
    else:
        drawn = draw_uniformly(candidates, n_prompts, seed)
    return pl.DataFrame(
        {
            "iteration": [iteration] * len(drawn),
            "position": range(len(drawn)),
            "prompt_id": [prompt_id for prompt_id, _ in drawn],
            "reason": [reason for _, reason in drawn],
        },
        schema=SELECTION.schema,
    )


def draw_uniformly(candidates: list[Candidate], n_prompts: int, seed: int) -> list[tuple[str, str]]:
    """The `n_prompts` that were shown least, ties in an order by hash, as prompt_id and reason.

    The epoch of a draw is how many groups the prompt had. So an epoch ends only when every prompt was shown in it, each
    epoch has another order, and the draw needs no memory but `prompt_stats`. A prompt added to a run catches up first.
    """
    order = sorted(candidates, key=lambda each: (each.n_groups, stable_hash(seed, each.n_groups, each.prompt_id)))
    return [(each.prompt_id, f"epoch {each.n_groups}") for each in order[:n_prompts]]


def _candidates(prompts: pl.DataFrame, prompt_stats: pl.DataFrame) -> list[Candidate]:
    train = prompts.filter(pl.col("split") == "train").select("prompt_id")
    known = train.join(prompt_stats, on="prompt_id", how="left").select(
        "prompt_id", pl.col("n_groups").fill_null(0), "recent_pass_rate", "last_iteration"
    )
    return [Candidate(*row) for row in known.iter_rows()]
