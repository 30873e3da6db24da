"""Stage `filter`: drop the groups that teach nothing, and say why; count what was seen of each prompt."""

from __future__ import annotations

import polars as pl

from pipeline.errors import BadInput
from pipeline.groups import build_training_set, summarize_groups, update_prompt_stats
from pipeline.params import Params
from pipeline.table_io import read_table, scan_table, write_table
from pipeline.tables import ADVANTAGES, GROUPS, PROMPT_STATS, REWARDS, ROLLOUTS, TRAINING_SET, Outcome
from stages import paths
from stages.runner import Result, run_stage


def filter_groups(params: Params) -> Result:
    """Read `advantages`, `rewards`, `rollouts`; write `groups`, `training_set`, `next_prompt_stats`."""
    reward_columns = ["iteration", "completion_id", "group_id", "prompt_id", "reward", "is_correct"]
    rewards = scan_table(paths.REWARDS, REWARDS, reward_columns)
    advantages = scan_table(paths.ADVANTAGES, ADVANTAGES, ["completion_id", "group_id", "advantage"])
    training_columns = [name for name in TRAINING_SET.schema if name in ROLLOUTS.schema]
    rollouts = scan_table(paths.ROLLOUTS, ROLLOUTS, [*training_columns, "finish_reason"])
    stats = read_table(paths.PROMPT_STATS, PROMPT_STATS).lazy()
    _check_same_completions(rewards, advantages, rollouts)

    groups = summarize_groups(rewards, rollouts).collect(engine="in-memory")
    write_table(groups, paths.GROUPS, GROUPS)
    training_set = build_training_set(advantages, groups.lazy(), rollouts)
    n_completions = write_table(training_set, paths.TRAINING_SET, TRAINING_SET)
    next_stats = update_prompt_stats(stats, rewards, params.filter).collect(engine="in-memory")
    write_table(next_stats, paths.NEXT_PROMPT_STATS, PROMPT_STATS)

    n_kept = int(groups["kept"].sum())
    outcomes = {name: int((groups["outcome"] == name).sum()) for name in Outcome.categories}
    dropped = groups.filter(~pl.col("kept"))["reason"].value_counts(sort=True)
    metrics = {
        "n_groups": groups.height,
        "n_kept": n_kept,
        "n_training_completions": n_completions,
        "outcomes": outcomes,
        "dropped_reasons": dict(dropped.iter_rows()),
    }
    counts = ", ".join(f"{count} {name}" for name, count in outcomes.items() if count)
    return Result(f"{n_kept} of {groups.height} groups kept, {n_completions} completions ({counts})", metrics)


def _check_same_completions(rewards: pl.LazyFrame, advantages: pl.LazyFrame, rollouts: pl.LazyFrame) -> None:
    ids = rollouts.select("completion_id")
    for path, other in ((paths.REWARDS, rewards), (paths.ADVANTAGES, advantages)):
        here = other.select("completion_id")
        for missing, where, source in (
            (ids.join(here, on="completion_id", how="anti"), path, paths.ROLLOUTS),
            (here.join(ids, on="completion_id", how="anti"), paths.ROLLOUTS, path),
        ):
            first = missing.sort("completion_id").head(1).collect()
            if first.height:
                problem = f"it lacks completion_id {first.item()!r}, which {source} has"
                raise BadInput(str(where), problem, "Run `dvc repro` so that both come from the same rollouts")


if __name__ == "__main__":
    run_stage("filter", filter_groups)
