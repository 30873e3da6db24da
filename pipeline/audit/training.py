"""Questions about the update: what it trained on, step by step and token by token."""

from __future__ import annotations

import polars as pl

from pipeline.audit.question import COMPLETION, Question, has_rows, join_completions, need
from pipeline.audit.tables import INDEX, Tables

_PROMPT_ID = pl.col("group_id").str.split("/").list.last().alias("prompt_id")
"""As `training_set` has no column of its own for it."""

RATIO_BOUNDS = (0.9, 1.1)
"""Sampler and trainer agree on a token where its ratio, exp(old - sampling), is within these."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


def find_truncated(tables: Tables) -> pl.LazyFrame:
    """The completions of the training set that were cut off; those that are masked took part in no step."""
    cut = tables["training_set"].filter("is_truncated").with_columns(_PROMPT_ID).select(*COMPLETION, "advantage")
    steps = tables["token_logprobs"].select("run", "completion_id", n_steps=pl.col("steps").list.len())
    return cut.join(steps, on=["run", "completion_id"], how="left").with_columns(pl.col("n_steps").fill_null(0))


def find_token_disagreements(tables: Tables) -> pl.LazyFrame:
    """Each trained token, with how far the log-probabilities of sampler and trainer are apart, in nats."""
    lists = ["token_id", "sampling_logprob", "old_logprob"]
    trained = _recorded(tables, "token_mismatch").select("run", "completion_id", old_logprob="old_logprobs")
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


def find_agreement(tables: Tables) -> pl.LazyFrame:
    """A row per iteration: how far, in nats, the log-probabilities of sampler and trainer are apart on trained tokens.

    `disagreement` is |old - sampling|; `outside_fraction` is the share of tokens whose ratio leaves `RATIO_BOUNDS`.
    """
    both = join_completions(_recorded(tables, "agreement"), tables["rollouts"], "sampling_logprobs")
    old, sampling = (pl.col(name).cast(pl.List(pl.Float64)) for name in ("old_logprobs", "sampling_logprobs"))
    difference = pl.col("difference").explode()
    size = difference.abs()
    return (
        both.select(*INDEX, difference=old - sampling)
        .group_by(*INDEX)
        .agg(
            n_completions=pl.len(),
            n_tokens=size.len(),
            outside_fraction=(~difference.exp().is_between(*RATIO_BOUNDS)).mean(),
            disagreement_mean=size.mean(),
            **{f"disagreement_{name}": size.quantile(part, "linear") for name, part in QUANTILES.items()},
            disagreement_max=size.max(),
        )
    )


def _recorded(tables: Tables, question: str) -> pl.LazyFrame:
    recorded = tables["token_logprobs"]
    problem = "nothing was trained on, so that the trainer has no log-probabilities"
    need(has_rows(recorded), question, problem, "Ask about an iteration that kept a group")
    return recorded


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
        "agreement",
        "How far are the log-probabilities of sampler and trainer apart?",
        find_agreement,
        ("run", "iteration"),
    ),
    Question(
        "steps",
        "What did one optimizer step see?",
        find_steps,
        ("run", "step", "-advantage", "completion_id"),
        ("reward", "completion_text"),
    ),
)
