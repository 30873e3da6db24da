"""Stage `score`: completions -> verdicts and rewards.

Batches are kept under `.rollbook/scores` as they are finished, so that a stage that was killed goes on from there.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from pipeline import rewards as code
from pipeline.params import Params, ScoreParams
from pipeline.rewards.scoring import (
    BATCH_COMPLETIONS,
    PROMPT_COLUMNS,
    ROLLOUT_COLUMNS,
    OnProgress,
    Scorer,
    make_scorer,
    score_batch,
    whole_groups,
)
from pipeline.table_io import scan_table, write_table
from pipeline.tables import PROMPTS, REWARDS, ROLLOUTS
from stages import paths
from stages.progress import progress
from stages.runner import Result, run_stage

CODE = Path(code.__file__).parent
"""What determines the scores, beside params and tables."""


def score(params: Params) -> Result:
    """Read `rollouts` and `prompts`, write `rewards`."""
    rollouts = scan_table(paths.ROLLOUTS, ROLLOUTS, ["iteration", *ROLLOUT_COLUMNS])
    prompt_ids = rollouts.select("prompt_id").collect()["prompt_id"]
    scorer = make_scorer(prompt_ids, scan_table(paths.PROMPTS, PROMPTS, PROMPT_COLUMNS), params.score)
    with progress("scoring", prompt_ids.len(), "with a score_error", is_rate=False) as advance:
        shards = _score_in_shards(_batches(rollouts, scorer), scorer, shards_folder(params.score), advance)
    write_table(pl.concat([scan_table(shard, REWARDS) for shard in shards]), paths.REWARDS, REWARDS)
    shutil.rmtree(paths.SCORES)

    rewards = pl.scan_parquet(paths.REWARDS).drop("extracted_answer").collect()
    metrics = {**score_metrics(rewards), "code_isolation": scorer.code_isolation}
    return Result(_line(metrics, rewards["score_error"].drop_nulls()), metrics)


def _batches(rollouts: pl.LazyFrame, scorer: Scorer) -> Iterator[pl.DataFrame]:
    """Whole groups, since the rows of a group come one after another."""
    if scorer.needs_whole_iteration:
        return iter([rollouts.collect()])
    return whole_groups(rollouts.collect_batches(chunk_size=BATCH_COMPLETIONS, maintain_order=True), BATCH_COMPLETIONS)


def _score_in_shards(batches: Iterator[pl.DataFrame], scorer: Scorer, folder: Path, advance: OnProgress) -> list[Path]:
    """A file of `rewards` for each of `batches` in `folder`, made where it is not there from an earlier try."""
    shards = []
    with scorer.start_workers() as workers:
        for number, batch in enumerate(batches):
            shards.append(folder / f"{number:06d}.parquet")
            if shards[-1].is_file():
                advance(batch.height, 0)
                continue
            scores = score_batch(batch, scorer, workers, advance)
            keys = batch.select("iteration", "completion_id", "group_id", "prompt_id")
            write_table(keys.hstack(scores.drop("completion_id")), shards[-1], REWARDS)
    return shards


def shards_folder(params: ScoreParams) -> Path:
    """Where the shards of these rollouts, scored with this code and these params, are kept; others are removed."""
    digest = hashlib.sha256(params.model_dump_json().encode())
    for path in (paths.ROLLOUTS, paths.PROMPTS, *sorted(CODE.rglob("*.py"))):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    folder = paths.SCORES / digest.hexdigest()[:16]
    for stale in set(paths.SCORES.glob("*")) - {folder}:
        shutil.rmtree(stale)
    return folder


def score_metrics(rewards: pl.DataFrame) -> dict[str, Any]:
    """How many completions were scored, and the means over those that were; null where there is none.

    `shadows` says of each verifier that looked on how many verdicts it gave, and how many contradict the prompt's own.
    """
    prefix, shadow = "reward_", "is_correct_"
    terms = [name for name in rewards.columns if name.startswith(prefix)]
    shadows = [name for name in rewards.columns if name.startswith(shadow)]
    return {
        "n_completions": rewards.height,
        "n_scored": rewards["reward"].count(),
        "n_errors": rewards["score_error"].count(),
        "reward_mean": rewards["reward"].mean(),
        "pass_rate": rewards["is_correct"].mean(),
        "term_means": {name.removeprefix(prefix): rewards[name].mean() for name in terms},
        "shadows": {
            name.removeprefix(shadow): {
                "n_verdicts": rewards[name].count(),
                "n_contradictions": int((rewards[name] != rewards["is_correct"]).sum()),
            }
            for name in shadows
        },
    }


def _line(metrics: dict[str, Any], errors: pl.Series) -> str:
    mean, rate = ("none" if metrics[name] is None else f"{metrics[name]:.3f}" for name in ("reward_mean", "pass_rate"))
    scored = f"{metrics['n_scored']} of {metrics['n_completions']} completions scored"
    common = f", {errors.len()} with a score_error, such as {errors.mode().sort()[0]!r}" if errors.len() else ""
    seen = [f", {name} contradicts {counts['n_contradictions']}" for name, counts in metrics["shadows"].items()]
    return f"{scored}{common}; mean reward {mean}, pass rate {rate}{''.join(seen)}"


if __name__ == "__main__":
    run_stage("score", score)
