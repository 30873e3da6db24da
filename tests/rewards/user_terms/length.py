"""A term without params: the number of characters."""

from __future__ import annotations

from pipeline.params import Section
from pipeline.rewards.completion import Completion


def score(completion: Completion, params: Section) -> float:
    return float(len(completion.completion_text))
