"""A term of a group: each completion's share of its characters."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.params import Section
from pipeline.rewards.completion import Completion


def score_group(completions: Sequence[Completion], params: Section) -> list[float | None]:
    total = sum(len(each.completion_text) for each in completions)
    return [len(each.completion_text) / total if total else None for each in completions]
