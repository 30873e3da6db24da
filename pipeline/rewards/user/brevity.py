"""A worked example of a term: 1 for an empty completion, falling linearly to 0 at `max_characters`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.params import Section
from pipeline.rewards.completion import Completion


class Params(Section):
    """The length from which on a completion gets nothing."""

    max_characters: Annotated[int, Field(gt=0)] = 200


def score(completion: Completion, params: Params) -> float | None:
    """1 - characters / max_characters, and 0 beyond; None for a completion that was cut off."""
    if completion.finish_reason == "length":
        return None
    return max(0.0, 1.0 - len(completion.completion_text) / params.max_characters)
