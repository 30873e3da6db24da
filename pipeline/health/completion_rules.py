"""Rules on the texts: cut off, empty, or going round in circles.

A text is repetitive where zlib makes it smaller by more than `repetitive_compression_ratio`. Whisper (openai/whisper,
`transcribe.py`) gives up on a transcript of half a minute at 2.4; longer texts and mathematics compress better, hence
the higher ratio here.
"""

from __future__ import annotations

import dataclasses
import zlib

import polars as pl

from pipeline.health.evidence import N_IDS, Evidence, point_at
from pipeline.health.finding import Finding, Limit, Rows, bounded
from pipeline.params import HealthParams

SHORTEST_BYTES = 64
"""A shorter text says nothing by how well it compresses."""


def completions_finish(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where more than `max_truncated_fraction` of the completions are cut off by the limit."""
    finding = bounded(
        "completions_finish",
        "fraction of completions cut off",
        evidence.metrics["rollout"]["truncated_fraction"],
        Limit(limits.max_truncated_fraction),
        "Raise sampling.max_completion_tokens; an answer that comes too late counts as wrong",
    )
    return point_at(finding, evidence, _completions(evidence, "finish_reason = 'length'"))


def completions_not_empty(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where more than `max_empty_fraction` of the completions have no text."""
    is_empty = "trim(completion_text) = ''"
    counts = pl.SQLContext(rollouts=evidence.tables["rollouts"]).execute(
        f"select avg(cast({is_empty} as double)) from rollouts"
    )
    finding = bounded(
        "completions_not_empty",
        "fraction of completions without text",
        counts.collect().item(),
        Limit(limits.max_empty_fraction),
        "Does saying nothing pay? See their rewards, and whether the chat template ends the turn too early",
    )
    return point_at(finding, evidence, _completions(evidence, is_empty))


def completions_not_repetitive(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where more than `max_repetitive_fraction` of the completions repeat themselves."""
    is_repetitive = pl.col("completion_text").map_batches(
        lambda texts: _are_repetitive(texts, limits.repetitive_compression_ratio), return_dtype=pl.Boolean
    )
    judged = evidence.tables["rollouts"].select("completion_id", is_repetitive=is_repetitive).collect()
    finding = bounded(
        "completions_not_repetitive",
        "fraction of completions that repeat themselves",
        judged["is_repetitive"].mean(),
        Limit(limits.max_repetitive_fraction),
        "The policy degenerates, or repeating pays: see their rewards, lower training.learning_rate",
    )
    rows = Rows(f"rollbook audit repetition --iterations {evidence.iteration}")
    if finding.level != "ok":
        found = judged.filter("is_repetitive")["completion_id"].sort()
        rows = dataclasses.replace(rows, n=found.len(), ids=tuple(found.head(N_IDS)))
    return dataclasses.replace(finding, rows=rows)


def compression_ratio(text: str) -> float:
    """How many times smaller zlib makes `text`; 1 for a text too short to say.

    >>> compression_ratio("Four."), round(compression_ratio("So it is four. " * 20))
    (1.0, 12)
    """
    content = text.encode()
    return len(content) / len(zlib.compress(content)) if len(content) >= SHORTEST_BYTES else 1.0


def _are_repetitive(texts: pl.Series, ratio: float) -> pl.Series:
    return pl.Series([compression_ratio(text) > ratio for text in texts], dtype=pl.Boolean)


def _completions(evidence: Evidence, condition: str) -> str:
    return (
        f"select completion_id, completion_text from rollouts where iteration = {evidence.iteration}"
        f" and {condition} order by completion_id"
    )
