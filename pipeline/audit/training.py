"""Questions about the update: what it trained on, step by step and token by token."""

from __future__ import annotations

import polars as pl

from pipeline.audit.question import COMPLETION, Question, has_rows, join_completions, need
from pipeline.audit.tables import Tables

_PROMPT_ID = pl.col("group_id").str.split("/").list.last().alias("prompt_id")
"""As `training_set` has no column of its own for it."""


def find_truncated(tables: Tables) -> pl.LazyFrame:
    """The completions of the training set that were cut off; those that are masked took part in no step."""
    cut = tables["training_set"].filter("is_truncated").with_columns(_PROMPT_ID).select(*COMPLETION, "advantage")
    steps = tables["token_logprobs"].select("run", "completion_id", n_steps=pl.col("steps").list.len())
    return cut.join(steps, on=["run", "completion_id"], how="left").with_columns(pl.col("n_steps").fill_null(0))


def find_token_disagreements(tables: Tables) -> pl.LazyFrame:
    """Each trained token, with how far the log-probabilities of sampler and trainer are apart, in nats."""
    lists = ["token_id", "sampling_logprob", "old_logprob"]
    recorded = tables["token_logprobs"]
    problem = "nothing was trained on, so that the trainer has no log-probabilities"
    need(has_rows(recorded), "token_mismatch", problem, "Ask about an iteration that kept a group")
    trained = recorded.select("run", "completion_id", old_logprob="old_logprobs")
    sampled = tables["rollouts"].select(
        *COMPLETION, token_id="completion_token_ids", sampling_logprob="sampling_logprobs"
    )
    rows = join_completions(sampled, trained, "old_logprob").with_columns(
        position=pl.int_ranges(pl.col("token_id").list.len())
    )
    return rows.explode("position", *lists).select(
        *COMPLETION,
        *("position", *lists),
        disagreement=(pl.col("old_logprob") - pl.col("sampling_logprob")).abs(),
    )


def find_steps(tables: Tables) -> pl.LazyFrame:
    """A row per optimizer step and completion that it saw."""
    steps = tables["token_logprobs"].select("run", "completion_id", step="steps").explode("step")
    trained = tables["training_set"].with_columns(_PROMPT_ID).select(*COMPLETION, "advantage", "is_truncated")
    return trained.join(steps, on=["run", "completion_id"]).select(*COMPLETION, "step", "advantage", "is_truncated")


QUESTIONS = (
    Question(
        "truncated",
        "Which truncated completions are trained on, and with what advantage?",
        find_truncated,
        ("-advantage", "run", "completion_id"),
        ("reward", "completion_text"),
    ),
    Question(
        "token_mismatch",
        "On which tokens do sampler and trainer disagree most?",
        find_token_disagreements,
        ("-disagreement", "run", "completion_id", "position"),
        ("completion_text",),
    ),
    Question(
        "steps",
        "What did one optimizer step see?",
        find_steps,
        ("run", "step", "-advantage", "completion_id"),
        ("reward", "completion_text"),
    ),
)
