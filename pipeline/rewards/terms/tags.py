"""The term `tags`: 1 where a completion is `<think>...</think><answer>...</answer>`, or whatever tags are asked for.

Source: the format reward of DeepSeek-R1 (arXiv 2501.12948), with each tag exactly once and nothing between them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from pipeline.params import Section
from pipeline.rewards.completion import Completion

Tag = Annotated[str, Field(pattern=r"^[A-Za-z_][\w-]*$")]


class Params(Section):
    """`tags` in the order in which they must come.

    With `is_opened` the prompt ends with the first opening tag, so that the completion begins inside it; with
    `allow_around` there may be text before, between and after them.
    """

    tags: Annotated[list[Tag], Field(min_length=1)]
    is_opened: bool = False
    allow_around: bool = False

    @field_validator("tags")
    @classmethod
    def _are_distinct(cls, value: list[Tag]) -> list[Tag]:
        if len(set(value)) < len(value):
            raise ValueError("it names a tag twice, and each may be opened once")
        return value


def score(completion: Completion, params: Params) -> float:
    """1 where each tag is opened and closed exactly once, one after the other, else 0."""
    opened = f"<{params.tags[0]}>" if params.is_opened else ""
    return float(has_structure(opened + completion.completion_text, params))


def has_structure(text: str, params: Params) -> bool:
    """Whether `text` has the tags as `params` asks for them.

    >>> params = Params(tags=["think", "answer"])
    >>> [has_structure(f"<think>2+2{end}", params) for end in ("</think> <answer>4</answer>", "<answer>4</answer>")]
    [True, False]
    """
    marks = [mark for tag in params.tags for mark in (f"<{tag}>", f"</{tag}>")]
    if any(text.count(mark) != 1 for mark in marks):
        return False
    places = [text.index(mark) for mark in marks]
    if places != sorted(places):
        return False
    openings, closings = places[::2], [place + len(mark) for place, mark in zip(places, marks, strict=True)][1::2]
    outside = zip([0, *closings], [*openings, len(text)], strict=True)
    return params.allow_around or not any(text[start:end].strip() for start, end in outside)
