"""Checks across tables that several stages read together."""

from __future__ import annotations

import polars as pl

from pipeline.errors import BadInput
from stages import paths


def selected_prompts(selection: pl.DataFrame, prompts: pl.DataFrame, iteration: int) -> pl.DataFrame:
    """The rows of `prompts` that `selection` names, in its order; a `BadInput` where one is missing or out of date."""
    made_for = selection["iteration"][0]
    if made_for != iteration:
        problem = f"it was made for iteration {made_for}, and params.yaml says {iteration}"
        raise BadInput(str(paths.SELECTION), problem, "Run `dvc repro select`")
    missing = selection.join(prompts, on="prompt_id", how="anti")
    if missing.height:
        problem = f"prompt_id {missing['prompt_id'][0]!r} is not in {paths.PROMPTS}"
        raise BadInput(str(paths.SELECTION), problem, "Run `dvc repro select`")
    return selection.join(prompts, on="prompt_id", how="left", maintain_order="left")
