"""Stage `filter`: drop the groups that teach nothing, and say why; count what was seen of each prompt."""

from __future__ import annotations

from typing import Any

import polars as pl

from pipeline.errors import BadInput
from pipeline.groups import (
    build_training_set,
    is_surplus,
    limit_groups,
    summarize_groups,
    target_groups,
    update_prompt_stats,
)
from pipeline.params import Params
from pipeline.table_io import read_table, scan_table, write_table
from pipeline.tables import ADVANTAGES, GROUPS, PROMPT_STATS, REWARDS, ROLLOUTS, SELECTION, TRAINING_SET, Outcome
from stages import paths
from stages.runner import Result, run_stage


def filter_groups(params: Params) -> Result:
    """Read `advantages`, `rewards`, `rollouts`, `selection`; write `groups`, `training_set`, `next_prompt_stats`."""
    reward_columns = ["iteration", "completion_id", "group_id", "prompt_id", "reward", "is_correct"]
    rewards = scan_table(paths.REWARDS, REWARDS, reward_columns)
    advantages = scan_table(paths.ADVANTAGES, ADVANTAGES, ["completion_id", "group_id", "advantage"])
    training_columns = [name for name in TRAINING_SET.schema if name in ROLLOUTS.schema]
    rollouts = scan_table(paths.ROLLOUTS, ROLLOUTS, [*training_columns, "prompt_id", "finish_reason"])
    stats = read_table(paths.PROMPT_STATS, PROMPT_STATS).lazy()
    selection = read_table(paths.SELECTION, SELECTION).lazy()
    _check_same_completions(rewards, advantages, rollouts)
    _check_selected(rollouts, selection)

    target = target_groups(params.select, params.rollout, params.filter)
    groups = limit_groups(summarize_groups(rewards, rollouts), selection, target).collect(engine="in-memory")
    write_table(groups, paths.GROUPS, GROUPS)
    training_set = build_training_set(advantages, groups.lazy(), rollouts)
    n_completions = write_table(training_set, paths.TRAINING_SET, TRAINING_SET)
    next_stats = update_prompt_stats(stats, rewards, params.filter).collect(engine="in-memory")
    write_table(next_stats, paths.NEXT_PROMPT_STATS, PROMPT_STATS)

    metrics = _metrics(groups, target) | {"n_training_completions": n_completions}
    counts = ", ".join(f"{count} {name}" for name, count in metrics["outcomes"].items() if count)
    line = f"{metrics['n_kept']} of {groups.height} groups kept, {n_completions} completions ({counts})"
    return Result(line + _about_target(metrics), metrics)


def _metrics(groups: pl.DataFrame, target: int | None) -> dict[str, Any]:
    n_kept, n_surplus = int(groups["kept"].sum()), groups.filter(is_surplus()).height
    outcomes = {name: int((groups["outcome"] == name).sum()) for name in Outcome.categories}
    dropped = groups.filter(~pl.col("kept"))["reason"].value_counts(sort=True)
    return {
        "n_groups": groups.height,
        "n_kept": n_kept,
        "n_surplus": n_surplus,
        "signal_fraction": (n_kept + n_surplus) / groups.height,
        "target_groups": target,
        "n_missing": None if target is None else target - n_kept,
        "outcomes": outcomes,
        "dropped_reasons": dict(dropped.iter_rows()),
    }


def _about_target(metrics: dict[str, Any]) -> str:
    """What a limit did: groups that were not needed, or groups that it lacks."""
    if metrics["n_surplus"]:
        return f", {metrics['n_surplus']} surplus"
    return f", {metrics['n_missing']} fewer than wanted" if metrics["n_missing"] else ""


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


def _check_selected(rollouts: pl.LazyFrame, selection: pl.LazyFrame) -> None:
    first = rollouts.select("prompt_id").join(selection, on="prompt_id", how="anti").head(1).collect()
    if first.height:
        problem = f"it lacks prompt_id {first.item()!r}, which {paths.ROLLOUTS} has"
        raise BadInput(str(paths.SELECTION), problem, "Run `dvc repro` so that both are of the same iteration")


if __name__ == "__main__":
    run_stage("filter", filter_groups)
