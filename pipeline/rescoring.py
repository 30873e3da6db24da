"""Stored rollouts of a run, scored as params.yaml and the code say now, beside the rewards that they got.

Nothing stored is touched: it is how a reward is tried out before rollouts are spent on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import polars as pl

from pipeline.errors import BadInput
from pipeline.history import scan
from pipeline.params import ScoreParams
from pipeline.rewards.judging import judgements
from pipeline.rewards.scoring import (
    BATCH_COMPLETIONS,
    ROLLOUT_COLUMNS,
    make_scorer,
    no_progress,
    score_batch,
    whole_groups,
)
from pipeline.rewards.workers import WorkersOnDemand
from pipeline.tables import JUDGEMENTS
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import Iteration, tag_name

FLIPS = ("became_correct", "became_wrong", "lost_verdict", "got_verdict")
"""What can become of a verdict."""
CHANGES = (*FLIPS, "reward_changed", "same")

COMPARED = ["reward", "is_correct", "extracted_answer", "score_error"]


@dataclass(frozen=True)
class Rescored:
    """An iteration scored anew.

    `scores` has one row per completion: completion_id, `COMPARED` as they were and, with `_now` at the end, as they
    are now, and `change`. `examples` has those rows of it that flip or whose reward changes, up to the number that was
    asked for of each change, with `messages`, `answer` and `completion_text`.
    """

    name: str
    scores: pl.DataFrame
    examples: pl.DataFrame


def rescore(
    repository: Repository, run: str, iterations: Sequence[Iteration], params: ScoreParams, n_examples: int
) -> Iterator[Rescored]:
    """Each of `iterations` of `run`, scored with `params` and the code that is here.

    Raises:
        BadInput: a table is not in DVC's cache or damaged, or `params` can't score these prompts.
    """
    with ExitStack() as stack:
        workers: WorkersOnDemand | None = None
        for iteration in iterations:
            name = tag_name(run, iteration.number)
            tables = {table: scan(table, [name], repo=repository) for table in ("rollouts", "prompts", "rewards")}
            rollouts = tables["rollouts"].select(ROLLOUT_COLUMNS)
            scorer = make_scorer(rollouts.select("prompt_id").collect()["prompt_id"], tables["prompts"], params)
            if scorer.asks_judges:
                judgements.KEPT.begin(_judgements_of(repository, name))
            workers = workers or stack.enter_context(scorer.start_workers())
            size = None if scorer.needs_whole_iteration else BATCH_COMPLETIONS
            batches = whole_groups(rollouts.collect_batches(chunk_size=size), size) if size else [rollouts.collect()]
            now = pl.concat([score_batch(batch, scorer, workers, no_progress) for batch in batches])
            scores = compare_scores(tables["rewards"].select("completion_id", *COMPARED).collect(), now)
            yield Rescored(name, scores, _examples(scores, rollouts, tables["prompts"], n_examples))


def _judgements_of(repository: Repository, name: str) -> pl.DataFrame | None:
    """What judges said for the rewards of an iteration, as far as it is here: it need not be asked again."""
    try:
        return scan("judgements", [name], repo=repository).select(list(JUDGEMENTS.schema)).collect()
    except BadInput:  # the table isn't there: the judge is asked
        return None


def compare_scores(before: pl.DataFrame, now: pl.DataFrame) -> pl.DataFrame:
    """The rows of `before` with the columns of `now` beside them, and what changed in each.

    >>> columns = {"completion_id": ["a", "b"], "extracted_answer": ["1", "2"], "score_error": [None, None]}
    >>> before = pl.DataFrame({**columns, "reward": [0.0, 1.0], "is_correct": [False, True]})
    >>> now = pl.DataFrame({**columns, "reward": [1.0, 0.9], "is_correct": [True, True]})
    >>> compare_scores(before, now)["change"].to_list()
    ['became_correct', 'reward_changed']
    """
    was, is_now = pl.col("is_correct"), pl.col("is_correct_now")
    change = (
        pl.when(was.eq_missing(is_now))
        .then(
            pl.when(pl.col("reward").eq_missing(pl.col("reward_now")))
            .then(pl.lit("same"))
            .otherwise(pl.lit("reward_changed"))
        )
        .when(is_now.is_null())
        .then(pl.lit("lost_verdict"))
        .when(was.is_null())
        .then(pl.lit("got_verdict"))
        .when(is_now)
        .then(pl.lit("became_correct"))
        .otherwise(pl.lit("became_wrong"))
    )
    after = now.select("completion_id", pl.col(COMPARED).name.suffix("_now"))
    joined = before.join(after, on="completion_id", how="left", maintain_order="left")
    return joined.with_columns(change=change.cast(pl.Enum(CHANGES)))


def _examples(scores: pl.DataFrame, rollouts: pl.LazyFrame, prompts: pl.LazyFrame, n_examples: int) -> pl.DataFrame:
    chosen = scores.filter(pl.col("change") != "same").group_by("change", maintain_order=True).head(n_examples)
    texts = rollouts.select("completion_id", "prompt_id", "completion_text")
    asked = prompts.select("prompt_id", "messages", "answer")
    with_texts = chosen.lazy().join(texts, on="completion_id", how="left", maintain_order="left")
    return with_texts.join(asked, on="prompt_id", how="left", maintain_order="left").collect()
