"""Stage `normalize`: rewards -> group-relative advantages."""

from __future__ import annotations

from pipeline.advantages import compute_advantages
from pipeline.params import Params
from pipeline.table_io import scan_table, write_table
from pipeline.tables import ADVANTAGES, REWARDS
from stages import paths
from stages.runner import Result, run_stage


def normalize(params: Params) -> Result:
    """Read `rewards`, write `advantages`: a row for each row."""
    rewards = scan_table(paths.REWARDS, REWARDS, ["iteration", "completion_id", "group_id", "prompt_id", "reward"])
    # A group must be summed in one piece and in one order to give the same bits each time, so not by streaming;
    # without token lists a million rows are small.
    advantages = compute_advantages(rewards, params.normalize).collect(engine="in-memory")
    n_rows = write_table(advantages, paths.ADVANTAGES, ADVANTAGES)
    column = advantages["advantage"]
    n_null = column.null_count()
    metrics = {"n_advantages": n_rows - n_null, "n_null": n_null, "advantage_abs_mean": column.abs().mean()}
    baseline, scale = params.normalize.baseline, params.normalize.scale
    return Result(f"{n_rows - n_null} advantages (baseline {baseline}, scale {scale}), {n_null} null", metrics)


if __name__ == "__main__":
    run_stage("normalize", normalize)
