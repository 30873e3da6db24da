"""Stage `select`: which prompts this iteration shows."""

from __future__ import annotations

from pipeline.params import Params
from pipeline.selection import select_prompts
from pipeline.table_io import scan_table, write_table
from pipeline.tables import PROMPT_STATS, PROMPTS, SELECTION
from stages import paths
from stages.runner import Result, run_stage


def select(params: Params) -> Result:
    """Read `prompts` and `prompt_stats`, write `selection`."""
    prompts = scan_table(paths.PROMPTS, PROMPTS, ["prompt_id", "split"]).collect()
    prompt_stats = scan_table(paths.PROMPT_STATS, PROMPT_STATS, ["prompt_id", "n_groups"]).collect()
    selection = select_prompts(prompts, prompt_stats, params.iteration, params.seed, params.select)
    write_table(selection, paths.SELECTION, SELECTION)
    epochs = selection["reason"].str.strip_prefix("epoch ").cast(int)
    metrics = {"n_prompts": selection.height, "epoch_min": epochs.min(), "epoch_max": epochs.max()}
    return Result(f"{selection.height} prompts, {_epochs(metrics['epoch_min'], metrics['epoch_max'])}", metrics)


def _epochs(first: object, last: object) -> str:
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


if __name__ == "__main__":
    run_stage("select", select)
