"""Rules on the texts: cut off, empty, or going round in circles.

A text repeats itself where zlib makes it smaller by more than `repetitive_compression_ratio`. Whisper (openai/whisper,
`transcribe.py`) gives up on a transcript of half a minute at 2.4; longer texts and mathematics compress better, hence
the higher ratio here.
"""

from __future__ import annotations

import dataclasses

import polars as pl

from pipeline.audit.measures import compression_ratio
from pipeline.health.evidence import N_IDS, Evidence, point_at
from pipeline.health.finding import Finding, Limit, Rows, bounded
from pipeline.params import HealthParams


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
    ratio = compression_ratio(pl.col("completion_text")).fill_null(1.0)
    ratios = evidence.tables["rollouts"].select("completion_id", ratio=ratio).collect()
    repetitive = ratios.filter(pl.col("ratio") > limits.repetitive_compression_ratio)
    finding = bounded(
        "completions_not_repetitive",
        "fraction of completions that repeat themselves",
        repetitive.height / ratios.height,
        Limit(limits.max_repetitive_fraction),
        "The policy degenerates, or repeating pays: see their rewards, lower training.learning_rate",
    )
    rows = Rows(f'rollbook audit repetition --where "compression_ratio > {limits.repetitive_compression_ratio:g}"')
    if finding.level != "ok":
        found = repetitive.sort("ratio", "completion_id", descending=[True, False])["completion_id"]
        rows = dataclasses.replace(rows, n=found.len(), ids=tuple(found.head(N_IDS)))
    return dataclasses.replace(finding, rows=rows)


def _completions(evidence: Evidence, condition: str) -> str:
    return (
        f"select completion_id, completion_text from rollouts where iteration = {evidence.iteration}"
        f" and {condition} order by completion_id"
    )
