"""Questions about what completions say: repetitions, other scripts, several answers, right ones that got nothing."""

from __future__ import annotations

import polars as pl

from pipeline.audit.measures import (
    SCRIPTS,
    compression_ratio,
    listed_answers,
    mentions,
    n_letters,
    repeated_fraction,
)
from pipeline.audit.question import COMPLETION, PROMPT, Question, join_completions, prompt_text, with_prompt
from pipeline.audit.tables import Tables

REPETITIVE = 0.2
"""A completion repeats itself where more of its three-word sequences than this were there before."""
WELL_COMPRESSED = 4.0
"""Or where zlib makes it this many times shorter."""


def find_repeats(tables: Tables) -> pl.LazyFrame:
    """The completions that repeat themselves."""
    text = pl.col("completion_text")
    rows = tables["rollouts"].select(
        *COMPLETION, repeated_fraction=repeated_fraction(text), compression_ratio=compression_ratio(text)
    )
    return rows.filter((pl.col("repeated_fraction") > REPETITIVE) | (pl.col("compression_ratio") > WELL_COMPRESSED))


def find_other_scripts(tables: Tables) -> pl.LazyFrame:
    """The completions with letters of a script that their prompt has none of.

    A change between languages of one script, such as from English to French, is not seen.
    """
    text = pl.col("completion_text")
    in_prompt = {script: (n_letters(prompt_text(), script) > 0).alias(f"has_{script}") for script in SCRIPTS}
    rows = with_prompt(tables["rollouts"].select(*COMPLETION, text), tables, *in_prompt.values())
    # Most texts are in ASCII, which is told at once.
    rows = rows.filter(text.str.contains(r"[^\x00-\x7F]") | ~pl.col("has_Latin"))
    counts = {script: n_letters(text, script) for script in SCRIPTS}
    foreign = {script: pl.when(~pl.col(f"has_{script}")).then(count).otherwise(0) for script, count in counts.items()}
    named = [pl.when(count > 0).then(pl.lit(script)) for script, count in foreign.items()]
    n_all, n_foreign = pl.sum_horizontal(counts.values()), pl.sum_horizontal(foreign.values())
    return rows.select(
        *COMPLETION,
        scripts=pl.concat_str(named, separator=", ", ignore_nulls=True),
        n_foreign_letters=n_foreign,
        foreign_fraction=n_foreign / n_all,
    ).filter(pl.col("n_foreign_letters") > 0)


def find_several_answers(tables: Tables) -> pl.LazyFrame:
    """The completions that offer more than one answer."""
    answers = listed_answers(pl.col("completion_text")).alias("answers")
    rows = tables["rollouts"].select("run", "completion_id", answers).filter(pl.col("answers").list.len() > 1)
    judged = join_completions(tables["rewards"].select(*COMPLETION, "reward", "is_correct"), rows, "answers")
    return judged.select(
        *COMPLETION,
        "reward",
        "is_correct",
        n_answers=pl.col("answers").list.len(),
        answers=pl.col("answers").list.join(" / "),
    )


def find_unrewarded(tables: Tables) -> pl.LazyFrame:
    """The completions that hold the gold answer, or whose extracted answer is it, and that aren't judged correct."""
    rewards = tables["rewards"].filter(pl.col("is_correct").ne_missing(True))
    columns = (*COMPLETION, "reward", "is_correct", "extracted_answer", "score_error")
    rows = join_completions(rewards.select(columns), tables["rollouts"], "completion_text")
    gold, extracted = pl.col("answer"), pl.col("extracted_answer")
    is_in_prompt = mentions(prompt_text(), gold).alias("is_gold_in_prompt")
    rows = with_prompt(rows, tables, "answer", is_in_prompt).filter(gold.is_not_null())
    is_same = extracted.str.strip_chars().str.to_lowercase() == gold.str.strip_chars().str.to_lowercase()
    why = (
        pl.when(pl.col("score_error").is_not_null())
        .then(pl.col("score_error"))
        .when(extracted.is_null())
        .then(pl.lit("no answer was extracted"))
        .when(pl.col("is_extracted"))
        .then(pl.lit("the gold answer was extracted, and judged wrong"))
        .otherwise(pl.lit("another answer was extracted"))
    )
    return (
        rows.with_columns(is_extracted=is_same.fill_null(False))
        .filter(pl.col("is_extracted") | mentions(pl.col("completion_text"), gold))
        .select(*COMPLETION, "reward", "extracted_answer", "answer", "is_extracted", "is_gold_in_prompt", why=why)
    )


def find_gold_in_prompt(tables: Tables) -> pl.LazyFrame:
    """The prompts whose text holds the gold answer, with how they fared."""
    fared = (
        tables["rewards"]
        .group_by("run", "prompt_id")
        .agg(n_completions=pl.len(), pass_rate=pl.col("is_correct").mean())
    )
    prompts = tables.distinct("prompts").filter(mentions(prompt_text(), pl.col("answer")))
    given = prompts.group_by("run", "prompt_id", "answer").agg(pl.col("iteration").min(), prompt=prompt_text().first())
    return given.join(fared, on=["run", "prompt_id"]).select(*PROMPT, "n_completions", "pass_rate", "answer", "prompt")


QUESTIONS = (
    Question(
        "unrewarded",
        "Which completions look right but got nothing?",
        find_unrewarded,
        ("-is_extracted", "is_gold_in_prompt", "why", "run", "completion_id"),
        ("completion_text",),
    ),
    Question(
        "repetition",
        "What repeats itself?",
        find_repeats,
        ("-repeated_fraction", "-compression_ratio", "run", "completion_id"),
        ("reward", "completion_text"),
    ),
    Question(
        "scripts",
        "Which completions changed language or script?",
        find_other_scripts,
        ("-foreign_fraction", "-n_foreign_letters", "run", "completion_id"),
        ("reward", "completion_text"),
    ),
    Question(
        "gold_in_prompt",
        "Does the gold answer stand in the prompt?",
        find_gold_in_prompt,
        ("-pass_rate", "-n_completions", "run", "prompt_id"),
        is_local=False,
    ),
    Question(
        "several_answers",
        "Does it list several answers?",
        find_several_answers,
        ("-reward", "-n_answers", "run", "completion_id"),
        ("answer", "completion_text"),
    ),
)
