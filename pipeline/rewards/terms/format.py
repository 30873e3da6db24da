"""The term `format`: 1 where a completion matches a regular expression, else 0."""

from __future__ import annotations

from functools import lru_cache

import regex
from pydantic import field_validator

from pipeline.params import Section
from pipeline.rewards.completion import Completion

TIME_LIMIT_SECONDS = 1.0
"""Some patterns take exponential time on some texts; the package regex, unlike re, can be stopped."""


class Params(Section):
    """`pattern` in the syntax of the package regex, which is that of re and more; `full_match` has it match all."""

    pattern: str
    full_match: bool = True

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            regex.compile(value)
        except regex.error as error:
            raise ValueError(f"it is no regular expression ({error})") from error
        return value


def score(completion: Completion, params: Params) -> float:
    """1 where the pattern matches the text, or without `full_match` some part of it.

    Raises:
        TimeoutError: the pattern took too long.
    """
    pattern = _compiled(params.pattern)
    match = pattern.fullmatch if params.full_match else pattern.search
    try:
        return float(match(completion.completion_text, timeout=TIME_LIMIT_SECONDS) is not None)
    except TimeoutError as error:
        raise TimeoutError(f"the pattern took more than {TIME_LIMIT_SECONDS:g} s on this text") from error


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> regex.Pattern[str]:
    return regex.compile(pattern)
