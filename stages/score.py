"""Stage `score`: completions -> verdicts and rewards.

Batches are kept under `.rollbook/scores` as they are finished, so that a stage that was killed goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from pipeline import rewards as code
from pipeline.fingerprint import digest_files
from pipeline.params import Params, ScoreParams
from pipeline.rewards.judging import judgements
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
from pipeline.rewards.workers import WorkersOnDemand
from pipeline.table_io import read_batches, read_table, scan_table, write_json, write_table
from pipeline.tables import JUDGEMENTS, PROMPTS, REWARDS, ROLLOUTS, SHADOW, TERM
from pipeline.versioning.lockfile import LOCKFILE, parse_lock
from pipeline.versioning.objects import object_path
from pipeline.versioning.repository import Repository
from stages import paths
from stages.progress import progress
from stages.runner import Result, run_stage

CODE = Path(code.__file__).parent
"""What determines the scores, beside params and tables: modules, and what a term of one's own reads beside it."""


def score(params: Params) -> Result:
    """Read `rollouts` and `prompts`, write `rewards`."""
    columns = ["iteration", *ROLLOUT_COLUMNS]
    prompt_ids = scan_table(paths.ROLLOUTS, ROLLOUTS, columns).select("prompt_id").collect()["prompt_id"]
    scorer = make_scorer(prompt_ids, scan_table(paths.PROMPTS, PROMPTS, PROMPT_COLUMNS), params.score)
    judgements.KEPT.begin(_judgements_before() if scorer.asks_judges else None)
    batches = _batches(read_batches(paths.ROLLOUTS, ROLLOUTS, columns), scorer)
    n_completions = prompt_ids.len()
    with (
        progress("scoring", n_completions, "with a score_error", is_rate=False) as advance,
        scorer.start_workers() as workers,
    ):
        score_rows = partial(_rewards, scorer=scorer, workers=workers, advance=advance)
        if n_completions <= BATCH_COMPLETIONS or scorer.needs_whole_iteration:  # one batch: nothing to resume
            write_table(score_rows(next(batches)), paths.REWARDS, REWARDS)
        else:
            shards = _score_in_shards(batches, score_rows, shards_folder(params.score), advance)
            write_table(pl.concat([scan_table(shard, REWARDS) for shard in shards]), paths.REWARDS, REWARDS)
    write_table(judgements.KEPT.used(), paths.JUDGEMENTS, JUDGEMENTS)
    shutil.rmtree(paths.SCORES, ignore_errors=True)

    rewards = pl.scan_parquet(paths.REWARDS).drop("extracted_answer").collect()
    metrics = {**score_metrics(rewards), "code_isolation": scorer.code_isolation}
    return Result(_line(metrics, rewards["score_error"].drop_nulls()), metrics)


def _batches(rollouts: Iterator[pl.DataFrame], scorer: Scorer) -> Iterator[pl.DataFrame]:
    """Whole groups, since the rows of a group come one after another."""
    return iter([pl.concat(rollouts)]) if scorer.needs_whole_iteration else whole_groups(rollouts, BATCH_COMPLETIONS)


def _rewards(batch: pl.DataFrame, scorer: Scorer, workers: WorkersOnDemand, advance: OnProgress) -> pl.DataFrame:
    """Rows of `rewards`."""
    scores = score_batch(batch, scorer, workers, advance)
    return batch.select("iteration", "completion_id", "group_id", "prompt_id").hstack(scores.drop("completion_id"))


def _score_in_shards(
    batches: Iterator[pl.DataFrame],
    score_rows: Callable[[pl.DataFrame], pl.DataFrame],
    folder: Path,
    advance: OnProgress,
) -> list[Path]:
    """A file of `rewards` for each of `batches` in `folder`, made where it is not there from an earlier try."""
    shards = []
    for number, batch in enumerate(batches):
        shards.append(folder / f"{number:06d}.parquet")
        used = shards[-1].with_suffix(".json")
        if shards[-1].is_file() and all(judgements.KEPT.use(key) for key in json.loads(used.read_text("utf-8"))):
            advance(batch.height, 0)
            continue
        rewards = score_rows(batch)
        write_json(judgements.KEPT.used_keys, used)
        write_table(rewards, shards[-1], REWARDS)
    return shards


def _judgements_before() -> pl.DataFrame | None:
    """What judges said when these rewards were last made, here or where this commit comes from.

    DVC removed the file before the stage, and keeps the object.
    """
    if not Path(LOCKFILE).is_file():
        return None
    output = parse_lock(Path(LOCKFILE).read_text(encoding="utf-8")).get(paths.JUDGEMENTS.as_posix())
    if output is None:
        return None
    kept = object_path(Repository.find().cache_dir, output.md5)
    return read_table(kept, JUDGEMENTS) if kept.is_file() else None


def shards_folder(params: ScoreParams) -> Path:
    """Where the shards of these rollouts, scored with this code and these params, are kept; others are removed."""
    code_files = sorted(path for path in CODE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    files = digest_files((path.name, path) for path in (paths.ROLLOUTS, paths.PROMPTS, *code_files))
    folder = paths.SCORES / hashlib.sha256((params.model_dump_json() + files).encode()).hexdigest()[:16]
    for stale in set(paths.SCORES.glob("*")) - {folder}:
        shutil.rmtree(stale)
    return folder


def score_metrics(rewards: pl.DataFrame) -> dict[str, Any]:
    """How many completions were scored, and the means over those that were; null where there is none.

    `shadows` says of each verifier that looked on how many verdicts it gave, and how many contradict the prompt's own.
    """
    terms = [name for name in rewards.columns if name.startswith(TERM)]
    shadows = [name for name in rewards.columns if name.startswith(SHADOW)]
    return {
        "n_completions": rewards.height,
        "n_scored": rewards["reward"].count(),
        "n_errors": rewards["score_error"].count(),
        "reward_mean": rewards["reward"].mean(),
        "pass_rate": rewards["is_correct"].mean(),
        "term_means": {name.removeprefix(TERM): rewards[name].mean() for name in terms},
        "shadows": {
            name.removeprefix(SHADOW): {
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
