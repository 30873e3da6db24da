"""Questions about how a run goes: what rises alone, and how prompts fare from one time to the next."""

from __future__ import annotations

import polars as pl

from pipeline.audit.question import PROMPT, Question, has_rows, need, terms_of
from pipeline.audit.tables import INDEX, Tables
from pipeline.tables import TERM

RISE = 0.05
"""A change that counts, of a pass rate or of the mean of a term."""
TURN = 0.5
"""A prompt flips where the pass rate of its group crosses this."""

Pattern = pl.Enum(["flipped to wrong", "flipped to right", "never", "always"])


def find_paying_terms(tables: Tables) -> pl.LazyFrame:
    """A row per iteration and term beside correctness: what it pays, whom, and how that changed since the first.

    `pays_alone` is where the mean of the term rose by `RISE` or more and the pass rate did not.
    """
    rewards = tables["rewards"]
    terms = [term for term in terms_of(rewards) if term != f"{TERM}correct"]
    remedy = "Add terms to score.terms in params.yaml to reward something else too"
    need(bool(terms), "format", "the reward has no term beside `correct`", remedy)
    is_wrong = pl.col("is_correct").eq(False)
    means = rewards.group_by(*INDEX).agg(
        pass_rate=pl.col("is_correct").mean(),
        **{f"{term} mean": pl.col(term).mean() for term in terms},
        **{f"{term} wrong": pl.col(term).filter(is_wrong).sum() / pl.col(term).sum() for term in terms},
    )
    each = pl.concat(
        [
            means.select(
                *INDEX,
                pl.lit(term.removeprefix(TERM)).alias("term"),
                pl.col(f"{term} mean").alias("term_mean"),
                "pass_rate",
                pl.when(pl.col(f"{term} wrong").is_finite()).then(f"{term} wrong").alias("paid_to_wrong_fraction"),
            )
            for term in terms
        ]
    )
    changed = each.filter(pl.col("term_mean").is_not_null()).with_columns(
        _change("term_mean", "run", "term").alias("term_change"),
        _change("pass_rate", "run", "term").alias("pass_rate_change"),
    )
    return changed.with_columns(
        pays_alone=(pl.col("term_change") >= RISE) & (pl.col("pass_rate_change").fill_null(0) < RISE)
    )


def find_held_out(tables: Tables) -> pl.LazyFrame:
    """A row per iteration that was evaluated: training since the evaluation before it, beside what is held out.

    `rises_alone` is where training rose by `RISE` or more since the first of these, and what is held out did not: in
    pass rate, or in reward where there are no verdicts.
    """
    after = tables["eval"].filter(pl.col("policy") == "after")
    problem = "no iteration among these was evaluated"
    need(has_rows(after), "held_out", problem, "See `evaluate.every` in params.yaml")
    held_out = after.group_by(*INDEX).agg(
        held_out_pass_rate=pl.col("is_correct").mean(), held_out_reward=pl.col("reward").mean()
    )
    train = (
        tables["rewards"]
        .group_by(*INDEX)
        .agg(
            sum_reward=pl.col("reward").sum(),
            n_reward=pl.col("reward").count(),
            sum_correct=pl.col("is_correct").sum(),
            n_verdicts=pl.col("is_correct").count(),
        )
    )
    evaluated = held_out.select(*INDEX, pl.col("iteration").alias("evaluated_at")).sort(INDEX)
    spans = train.sort(INDEX).join_asof(evaluated, on="iteration", by="run", strategy="forward")
    sums = spans.group_by("run", "evaluated_at").agg(
        reward_mean=pl.col("sum_reward").sum() / pl.col("n_reward").sum(),
        pass_rate=pl.col("sum_correct").sum() / pl.col("n_verdicts").sum(),
    )
    means = sums.select("run", "evaluated_at", *(_finite(name) for name in ("reward_mean", "pass_rate")))
    rows = held_out.join(means, left_on=INDEX, right_on=["run", "evaluated_at"], how="left")
    changed = rows.with_columns(
        train=pl.coalesce("pass_rate", "reward_mean"), held_out=pl.coalesce("held_out_pass_rate", "held_out_reward")
    ).with_columns(
        _change("train", "run").alias("train_change"),
        _change("held_out", "run").alias("held_out_change"),
    )
    return changed.select(
        *INDEX,
        *("reward_mean", "held_out_reward", "pass_rate", "held_out_pass_rate", "train_change", "held_out_change"),
        rises_alone=(pl.col("train_change") >= RISE) & (pl.col("held_out_change") < RISE),
    )


def find_prompts(tables: Tables) -> pl.LazyFrame:
    """The prompts that never or always succeed, and those whose latest group flipped; with their latest iteration.

    `pass_rate` is over everything up to that group, `last_pass_rate` is of the group, `recent_pass_rate` what came
    before it, older groups decayed.
    """
    verdicts = tables["rewards"].filter(pl.col("is_correct").is_not_null())
    problem = "no completion of these has a verdict"
    need(has_rows(verdicts), "prompts", problem, "Give the prompts a verifier with prompts.verifier in params.yaml")
    groups = verdicts.group_by(*PROMPT).agg(n=pl.len(), correct=pl.col("is_correct").sum())
    latest = groups.filter(pl.col("iteration") == pl.col("iteration").max().over("run", "prompt_id"))
    before = tables["prompt_stats"].select(*PROMPT, "n_completions", "n_correct", "recent_pass_rate")
    rows = latest.join(before, on=PROMPT, how="left").select(
        *PROMPT,
        "recent_pass_rate",
        last_pass_rate=pl.col("correct") / pl.col("n"),
        n_completions=pl.col("n") + pl.col("n_completions").fill_null(0),
        n_correct=pl.col("correct") + pl.col("n_correct").fill_null(0),
    )
    was, now = pl.col("recent_pass_rate"), pl.col("last_pass_rate")
    pattern = (
        pl.when((was >= TURN) & (now < TURN))
        .then(pl.lit("flipped to wrong"))
        .when((was < TURN) & (now >= TURN))
        .then(pl.lit("flipped to right"))
        .when(pl.col("n_correct") == 0)
        .then(pl.lit("never"))
        .when(pl.col("n_correct") == pl.col("n_completions"))
        .then(pl.lit("always"))
    )
    return rows.select(
        *PROMPT,
        pattern.cast(Pattern).alias("pattern"),
        "n_completions",
        pass_rate=pl.col("n_correct") / pl.col("n_completions"),
        recent_pass_rate=was,
        last_pass_rate=now,
    ).filter(pl.col("pattern").is_not_null())


def _change(column: str, *over: str) -> pl.Expr:
    """`column` less what it was in the first iteration that has it."""
    return pl.col(column) - pl.col(column).sort_by("iteration").drop_nulls().first().over(*over)


def _finite(name: str) -> pl.Expr:
    return pl.when(pl.col(name).is_finite()).then(name).alias(name)


QUESTIONS = (
    Question(
        "format",
        "Does format, or another term, pay while correctness stalls?",
        find_paying_terms,
        ("run", "term", "iteration"),
        is_local=False,
    ),
    Question(
        "held_out",
        "Is training reward rising while held-out is flat?",
        find_held_out,
        INDEX,
        is_local=False,
    ),
    Question(
        "prompts",
        "Which prompts never or always succeed, and which just flipped?",
        find_prompts,
        ("pattern", "-n_completions", "run", "prompt_id"),
        ("answer", "prompt"),
        is_local=False,
    ),
)
