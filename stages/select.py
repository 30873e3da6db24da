"""Stage `select`: which prompts this iteration shows."""

from __future__ import annotations

from collections import Counter

from pipeline.params import Params
from pipeline.selection import select_prompts
from pipeline.table_io import scan_table, write_table
from pipeline.tables import PROMPT_STATS, PROMPTS, SELECTION
from stages import paths
from stages.runner import Result, run_stage

STATISTICS = ["prompt_id", "n_groups", "recent_pass_rate", "last_iteration"]


def select(params: Params) -> Result:
    """Read `prompts` and `prompt_stats`, write `selection`."""
    prompts = scan_table(paths.PROMPTS, PROMPTS, ["prompt_id", "split"]).collect()
    prompt_stats = scan_table(paths.PROMPT_STATS, PROMPT_STATS, STATISTICS).collect()
    n_prompts = params.rollout.count_groups(params.select.n_prompts)
    selection = select_prompts(prompts, prompt_stats, params.iteration, params.seed, n_prompts, params.select)
    write_table(selection, paths.SELECTION, SELECTION)
    epochs = selection.join(prompt_stats, on="prompt_id", how="left")["n_groups"].fill_null(0)
    metrics = {
        "n_prompts": selection.height,
        "strategy": params.select.strategy,
        "epoch_min": epochs.min(),
        "epoch_max": epochs.max(),
        "n_by_rule": dict(Counter(reason.split()[0] for reason in selection["reason"])),
    }
    return Result(f"{selection.height} prompts, {_epochs(metrics['epoch_min'], metrics['epoch_max'])}", metrics)


def _epochs(first: object, last: object) -> str:
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


if __name__ == "__main__":
    run_stage("select", select)
