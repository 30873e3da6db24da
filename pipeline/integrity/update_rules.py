"""Rules of the update: what is on record of each trained completion and each optimizer step."""

from __future__ import annotations

import polars as pl

from pipeline.integrity.evidence import Evidence
from pipeline.integrity.rules import Rule, above_zero, breaks, compare, same_keys


def find_unrecorded(evidence: Evidence) -> pl.LazyFrame:
    """Completions that are trained on and have no log-probabilities on record, or the other way round."""
    trained = evidence["training_set"]
    if evidence.params.training.mask_truncated:
        trained = trained.filter(~pl.col("is_truncated"))
    return same_keys(evidence["token_logprobs"], trained, "completion_id", "the training set")


def find_other_lengths(evidence: Evidence) -> pl.LazyFrame:
    """Completions with another number of old log-probabilities than of tokens."""
    n_old = pl.col("old_logprobs").list.len().alias("n_old")
    lengths = evidence["rollouts"].select("completion_id", n_tokens=pl.col("completion_token_ids").list.len())
    rows = evidence["token_logprobs"].select("completion_id", n_old).join(lengths, on="completion_id")
    why = pl.format("it has {} old log-probabilities for {} tokens", "n_old", "n_tokens")
    return breaks(rows, "completion_id", pl.col("n_old") != pl.col("n_tokens"), why)


def find_impossible_logprobs(evidence: Evidence) -> pl.LazyFrame:
    """Completions with a log-probability of the trainer or the reference above 0."""
    return above_zero(evidence["token_logprobs"], "old_logprobs", "ref_logprobs")


def find_other_counts(evidence: Evidence) -> pl.LazyFrame:
    """Steps with another number of completions or tokens than the completions that say they were in it."""
    lengths = evidence["training_set"].select("completion_id", n_tokens=pl.col("completion_token_ids").list.len())
    used = evidence["token_logprobs"].select("completion_id", step="steps").explode("step").drop_nulls("step")
    counts = (
        used.join(lengths, on="completion_id")
        .group_by("step")
        .agg(n_completions=pl.len().cast(pl.UInt32), n_tokens=pl.col("n_tokens").sum().cast(pl.UInt64))
    )
    return compare(evidence["train_steps"], counts, "step", exact=["n_completions", "n_tokens"])


def find_gaps_in_steps(evidence: Evidence) -> pl.LazyFrame:
    """Steps that do not follow the one before."""
    rows = evidence["train_steps"].select("step", before=pl.col("step").shift(1))
    why = pl.format("the step before it is {}", "before")
    return breaks(rows, "step", pl.col("step") != pl.col("before") + 1, why)


RULES = (
    Rule("trained_is_on_record", "token_logprobs", ("token_logprobs", "training_set"), find_unrecorded),
    Rule("one_logprob_a_token", "token_logprobs", ("token_logprobs", "rollouts"), find_other_lengths),
    Rule("trained_logprobs_are_negative", "token_logprobs", ("token_logprobs",), find_impossible_logprobs),
    Rule(
        "steps_saw_what_they_say", "train_steps", ("train_steps", "token_logprobs", "training_set"), find_other_counts
    ),
    Rule("steps_follow", "train_steps", ("train_steps",), find_gaps_in_steps),
)
