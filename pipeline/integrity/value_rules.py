"""Rules of what was computed from the rollouts: each table is computed again from those before it."""

from __future__ import annotations

import polars as pl

from pipeline.advantages import compute_advantages
from pipeline.groups import (
    build_training_set,
    limit_groups,
    summarize_groups,
    target_groups,
    update_prompt_stats,
)
from pipeline.integrity.evidence import Evidence
from pipeline.integrity.rules import Rule, breaks, compare, same_keys
from pipeline.rewards.composition import column_of, compose_rewards
from pipeline.rewards.judging.questions import key_of
from pipeline.tables import ADVANTAGES, GROUPS, PROMPT_STATS, SHADOW, TERM, TRAINING_SET

IDS = ("iteration", "group_id", "prompt_id")


def find_unrewarded(evidence: Evidence) -> pl.LazyFrame:
    """Completions without a row of rewards, and rows of rewards without a completion."""
    return same_keys(evidence["rewards"], evidence["rollouts"], "completion_id", "the rollouts")


def find_other_questions(evidence: Evidence) -> pl.LazyFrame:
    """Answers of judges whose id is not the hash of who was asked what."""
    rows = evidence["judgements"].select("judgement_id", "address", "request")

    def keys(asked: pl.Series) -> pl.Series:
        return pl.Series([key_of(**question) for question in asked], dtype=pl.String)

    key = pl.struct("address", "request").map_batches(keys, return_dtype=pl.String, is_elementwise=True)
    why = pl.format("it is the answer to another question, {}", pl.col("key").fill_null("which is no JSON"))
    is_bad = pl.col("judgement_id").ne_missing(pl.col("key"))
    return breaks(rows.with_columns(key=key), "judgement_id", is_bad, why)


def find_without_advantage(evidence: Evidence) -> pl.LazyFrame:
    """Completions without a row of advantages, and rows of advantages without a completion."""
    return same_keys(evidence["advantages"], evidence["rollouts"], "completion_id", "the rollouts")


def find_strange_ids(evidence: Evidence) -> pl.LazyFrame:
    """Rows of rewards whose group or prompt is another than that of the completion."""
    known = evidence["rollouts"].join(evidence["rewards"].select("completion_id"), on="completion_id", how="semi")
    return compare(_of_rollouts(evidence, "rewards"), known, "completion_id", exact=IDS)


def find_other_rewards(evidence: Evidence) -> pl.LazyFrame:
    """Completions whose reward is not what its terms make of it."""
    rewards, score = evidence["rewards"], evidence.params.score
    terms = {name for name in rewards.collect_schema() if name.startswith(TERM)}
    named = {column_of(name) for name in score.terms}
    if terms != named:
        why = f"there are {_listed(terms)}, and score.terms has {_listed(named)}"
        return pl.LazyFrame({"columns": ["reward terms"], "why": [why]})
    expected = rewards.select("completion_id", reward=compose_rewards(score.terms, score.clip).reward)
    return compare(rewards, expected, "completion_id", close=["reward"])


def find_other_shadows(evidence: Evidence) -> pl.LazyFrame:
    """Columns of shadow verifiers that params.yaml doesn't name or that are missing.

    Where such a verifier is the prompt's own, completions whose two verdicts differ.
    """
    names = evidence.params.score.shadow_verifiers
    columns = {name for name in evidence["rewards"].collect_schema() if name.startswith(SHADOW)}
    named = {f"{SHADOW}{name}" for name in names}
    if columns != named:
        why = f"there are {_listed(columns)}, and score.shadow_verifiers has {_listed(named)}"
        return pl.LazyFrame({"columns": ["shadow verdicts"], "why": [why]})
    rows = evidence["rewards"].join(evidence["prompts"].select("prompt_id", "verifier"), on="prompt_id")
    other = {name: pl.col(f"{SHADOW}{name}").ne_missing(pl.col("is_correct")) for name in names}
    contradicts = [pl.when(pl.col("verifier") == name, is_other).then(pl.lit(name)) for name, is_other in other.items()]
    differing = pl.coalesce(*contradicts, pl.lit(None, pl.String))
    said = pl.format("its own verifier {} says another thing as a shadow", differing)
    return breaks(rows, "completion_id", differing.is_not_null(), said)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def find_silent_nulls(evidence: Evidence) -> pl.LazyFrame:
    """Completions without a reward and without a reason."""
    is_bad = pl.col("reward").is_null() & pl.col("score_error").is_null()
    return breaks(
        evidence["rewards"], "completion_id", is_bad, pl.lit("its reward is null, and score_error does not say why")
    )


def find_other_advantages(evidence: Evidence) -> pl.LazyFrame:
    """Rows of advantages that are not what the rewards make of them."""
    expected = compute_advantages(evidence["rewards"], evidence.params.normalize)
    close = [name for name in ADVANTAGES.schema if ADVANTAGES.schema[name] == pl.Float64]
    return compare(evidence["advantages"], expected, "completion_id", exact=IDS, close=close)


def find_other_groups(evidence: Evidence) -> pl.LazyFrame:
    """Groups that are not what rewards and rollouts make of them, and the order of the selection of the surplus."""
    params = evidence.params
    target = target_groups(params.select, params.rollout, params.filter)
    summary = summarize_groups(evidence["rewards"], evidence["rollouts"])
    expected = limit_groups(summary, evidence["selection"], target)
    close = ["reward_mean", "reward_std"]
    exact = [name for name in GROUPS.schema if name not in ("group_id", *close)]
    return compare(evidence["groups"], expected, "group_id", exact, close)


def find_other_training_set(evidence: Evidence) -> pl.LazyFrame:
    """Rows of the training set that are not those of the kept groups."""
    expected = build_training_set(evidence["advantages"], evidence["groups"], evidence["rollouts"])
    exact = [name for name in TRAINING_SET.schema if name not in ("completion_id", "advantage")]
    return compare(evidence["training_set"], expected, "completion_id", exact, ["advantage"])


def find_other_statistics(evidence: Evidence) -> pl.LazyFrame:
    """Statistics of prompts after the iteration that are not those before it, with its groups."""
    expected = update_prompt_stats(evidence["prompt_stats"], evidence["rewards"], evidence.params.filter)
    close = ["pass_rate", "recent_pass_rate"]
    exact = [name for name in PROMPT_STATS.schema if name not in ("prompt_id", *close)]
    return compare(evidence["next_prompt_stats"], expected, "prompt_id", exact, close)


def _of_rollouts(evidence: Evidence, table: str) -> pl.LazyFrame:
    """The rows of `table` whose completion there is."""
    return evidence[table].join(evidence["rollouts"].select("completion_id"), on="completion_id", how="semi")


RULES = (
    Rule("one_reward_each", "rewards", ("rewards", "rollouts"), find_unrewarded),
    Rule("rewards_have_the_ids", "rewards", ("rewards", "rollouts"), find_strange_ids),
    Rule("reward_is_its_terms", "rewards", ("rewards",), find_other_rewards),
    Rule("shadows_are_verdicts", "rewards", ("rewards", "prompts"), find_other_shadows),
    Rule("null_has_a_reason", "rewards", ("rewards",), find_silent_nulls),
    Rule("judgements_have_their_keys", "judgements", ("judgements",), find_other_questions),
    Rule("one_advantage_each", "advantages", ("advantages", "rollouts"), find_without_advantage),
    Rule("advantages_follow", "advantages", ("advantages", "rewards"), find_other_advantages),
    Rule("groups_follow", "groups", ("groups", "rewards", "rollouts", "selection"), find_other_groups),
    Rule(
        "training_set_follows",
        "training_set",
        ("training_set", "advantages", "groups", "rollouts"),
        find_other_training_set,
    ),
    Rule(
        "statistics_follow",
        "next_prompt_stats",
        ("next_prompt_stats", "prompt_stats", "rewards"),
        find_other_statistics,
    ),
)
