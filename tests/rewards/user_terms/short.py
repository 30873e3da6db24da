"""A term of many groups that forgets the last completion."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.params import Section
from pipeline.rewards.completion import Completion


def score_groups(completions: Sequence[Completion], params: Section) -> list[float]:
    return [1.0 for _ in completions[1:]]
