"""Stage `score`: completions -> verdicts and rewards."""

from __future__ import annotations

from typing import Any

import polars as pl

from pipeline.params import Params
from pipeline.rewards.scoring import PROMPT_COLUMNS, ROLLOUT_COLUMNS, score_completions
from pipeline.table_io import scan_table, write_table
from pipeline.tables import PROMPTS, REWARDS, ROLLOUTS
from stages import paths
from stages.progress import progress
from stages.runner import Result, run_stage


def score(params: Params) -> Result:
    """Read `rollouts` and `prompts`, write `rewards`."""
    rollouts = scan_table(paths.ROLLOUTS, ROLLOUTS, ["iteration", "group_id", *ROLLOUT_COLUMNS]).collect()
    prompts = scan_table(paths.PROMPTS, PROMPTS, PROMPT_COLUMNS)
    used = prompts.join(rollouts.lazy(), on="prompt_id", how="semi").collect()
    with progress("scoring", rollouts.height) as advance:
        scores = score_completions(rollouts, used, params.score, lambda n: advance(n, 0))
    keys = rollouts.select("iteration", "completion_id", "group_id", "prompt_id")
    rewards = keys.hstack(scores.drop("completion_id"))
    write_table(rewards, paths.REWARDS, REWARDS)

    metrics = score_metrics(rewards)
    return Result(_line(metrics, rewards["score_error"].drop_nulls()), metrics)


def score_metrics(rewards: pl.DataFrame) -> dict[str, Any]:
    """How many completions were scored, and the means over those that were; null where there is none."""
    prefix = "reward_"
    terms = [name for name in rewards.columns if name.startswith(prefix)]
    return {
        "n_completions": rewards.height,
        "n_scored": rewards["reward"].count(),
        "n_errors": rewards["score_error"].count(),
        "reward_mean": rewards["reward"].mean(),
        "pass_rate": rewards["is_correct"].mean(),
        "term_means": {name.removeprefix(prefix): rewards[name].mean() for name in terms},
    }


def _line(metrics: dict[str, Any], errors: pl.Series) -> str:
    mean, rate = ("none" if metrics[name] is None else f"{metrics[name]:.3f}" for name in ("reward_mean", "pass_rate"))
    scored = f"{metrics['n_scored']} of {metrics['n_completions']} completions scored"
    common = f", {errors.len()} with a score_error, such as {errors.mode().sort()[0]!r}" if errors.len() else ""
    return f"{scored}{common}; mean reward {mean}, pass rate {rate}"


if __name__ == "__main__":
    run_stage("score", score)
