"""A term of the whole iteration: how many completions are shorter."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.params import Section
from pipeline.rewards.completion import Completion


def score_batch(completions: Sequence[Completion], params: Section) -> list[int]:
    lengths = [len(each.completion_token_ids) for each in completions]
    return [sum(other < length for other in lengths) for length in lengths]
