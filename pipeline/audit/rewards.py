"""Questions about rewards: which are high, and where verdicts, terms or commits disagree about them."""

from __future__ import annotations

from functools import reduce

import polars as pl

from pipeline.audit.question import COMPLETION, Question, need, shadows_of, terms_of
from pipeline.audit.tables import Tables
from pipeline.tables import SHADOW, TERM

LEAST_DISAGREEMENT = 0.5
"""How far apart two terms are at least, each from 0 to 1 over its iteration, where they disagree."""


def find_highest(tables: Tables) -> pl.LazyFrame:
    """Every completion with a reward, with its terms, and how far it is above the mean of its group."""
    rewards = tables["rewards"]
    above = pl.col("reward") - pl.col("reward").mean().over("run", "group_id")
    rows = rewards.filter(pl.col("reward").is_not_null())
    return rows.select(
        *COMPLETION, "reward", above.alias("reward_above_group"), *_several(terms_of(rewards)), "is_correct"
    )


def _several(terms: list[str]) -> list[str]:
    """`terms`, but none where there is but one, as that is the reward but for its weight."""
    return terms if len(terms) > 1 else []


def find_verifier_disagreements(tables: Tables) -> pl.LazyFrame:
    """A row per completion and shadow verifier whose verdict is another than that which counts."""
    rewards = tables["rewards"]
    shadows = shadows_of(rewards)
    problem = f"no shadow verifier judged these completions: rewards have no column {SHADOW}<verifier>"
    need(bool(shadows), "verifiers", problem, "Name shadow verifiers under `score` in params.yaml, then `dvc repro`")
    verdicts = rewards.select(*COMPLETION, "is_correct", "reward", *shadows)
    rows = verdicts.unpivot(
        shadows, index=[*COMPLETION, "is_correct", "reward"], variable_name="shadow", value_name="shadow_is_correct"
    )
    return rows.filter(pl.col("is_correct") != pl.col("shadow_is_correct")).with_columns(
        pl.col("shadow").str.strip_prefix(SHADOW)
    )


def find_term_disagreements(tables: Tables) -> pl.LazyFrame:
    """Completions that one term of the reward rates high and another low, each from 0 to 1 over its iteration."""
    rewards = tables["rewards"]
    terms = terms_of(rewards)
    problem = f"the reward has one term, {terms[0].removeprefix(TERM)}" if terms else "the reward has no term"
    need(len(terms) > 1, "terms", f"{problem}, and two can disagree", "Add terms to score.terms in params.yaml")
    rows = rewards.select(*COMPLETION, "reward", "is_correct", *terms, *(_scaled(term) for term in terms))
    names = [f"scaled {term}" for term in terms]
    highest, lowest = pl.max_horizontal(names), pl.min_horizontal(names)
    return (
        rows.with_columns(
            high_term=_which(terms, highest), low_term=_which(terms, lowest), disagreement=highest - lowest
        )
        .filter(pl.col("disagreement") >= LEAST_DISAGREEMENT)
        .select(*COMPLETION, "high_term", "low_term", "disagreement", "reward", *terms, "is_correct")
    )


def _scaled(term: str) -> pl.Expr:
    """A term from 0 to 1 over its iteration; null where it is the same throughout."""
    value = pl.col(term)
    low, high = value.min().over("run", "iteration"), value.max().over("run", "iteration")
    return pl.when(high > low).then((value - low) / (high - low)).alias(f"scaled {term}")


def _which(terms: list[str], extreme: pl.Expr) -> pl.Expr:
    """The name of the first of `terms` whose scaled value is `extreme`."""
    return pl.coalesce(
        pl.when(pl.col(f"scaled {term}") == extreme).then(pl.lit(term.removeprefix(TERM))) for term in terms
    )


def find_flips(tables: Tables) -> pl.LazyFrame:
    """The completions that two runs share, text and all, whose reward or verdict is another in the second.

    Ids repeat where a run samples an iteration anew, so the text is compared too.
    """
    names = tables.names
    problem = f"it compares the same completions in two runs or iterations, and got {', '.join(names)}"
    remedy = "Name both: --run demo/0003 --run strict/0003"
    need(len(names) == 2, "flips", problem, remedy)
    values = ("reward", "is_correct", "extracted_answer")
    before, after = (tables["rewards"].filter(pl.col("run") == name).select(*COMPLETION, *values) for name in names)
    old = before.select("completion_id", *(pl.col(name).alias(f"{name}_before") for name in values))
    both = after.rename({name: f"{name}_after" for name in values}).join(old, on="completion_id")
    changed = both.filter(
        pl.col("reward_before").ne_missing(pl.col("reward_after"))
        | pl.col("is_correct_before").ne_missing(pl.col("is_correct_after"))
    )
    texts = [
        tables["rollouts"].filter(pl.col("run") == name).select("completion_id", pl.col("completion_text").alias(place))
        for name, place in zip(names, ("text_before", "text_after"), strict=True)
    ]
    same = reduce(lambda rows, text: rows.join(text, on="completion_id"), texts, changed)
    return same.filter(pl.col("text_before") == pl.col("text_after")).select(
        *COMPLETION,
        *(f"{name}_{when}" for name in values for when in ("before", "after")),
        change=(pl.col("reward_after") - pl.col("reward_before")).abs(),
    )


QUESTIONS = (
    Question(
        "highest",
        "Which completions scored highest, and do they deserve it?",
        find_highest,
        ("-reward", "-reward_above_group", "run", "completion_id"),
        ("extracted_answer", "answer", "completion_text"),
    ),
    Question(
        "verifiers",
        "Where do the verifier and its shadows disagree?",
        find_verifier_disagreements,
        ("-is_correct", "run", "completion_id", "shadow"),
        ("extracted_answer", "answer", "completion_text"),
    ),
    Question(
        "terms",
        "Where do terms of the reward disagree?",
        find_term_disagreements,
        ("-disagreement", "-reward", "run", "completion_id"),
        ("completion_text",),
    ),
    Question(
        "flips",
        "Which stored completions change reward or correctness between two commits?",
        find_flips,
        ("-change", "completion_id"),
        ("answer", "completion_text"),
        is_local=False,
    ),
)
