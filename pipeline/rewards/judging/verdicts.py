"""What a judge's text says: the one JSON object that was asked for, or nothing."""

from __future__ import annotations

import re

from pipeline.rewards.verifiers.documents import read_document

_THOUGHTS = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_FENCES = re.compile(r"\A```(?:json)?\n(.*)\n```\Z", re.DOTALL)
_PREFERENCES = {"first": 1.0, "tie": 0.5, "second": 0.0}


def read_score(text: str, scale: tuple[int, int]) -> float | None:
    """The score as a fraction of the scale, or None where `text` is no verdict.

    >>> read_score('{"reasoning": "good", "score": 7}', (0, 10)), read_score('{"score": 11}', (0, 10))
    (0.7, None)
    """
    score = _value(text, "score")
    if isinstance(score, bool) or not isinstance(score, int) or not scale[0] <= score <= scale[1]:
        return None
    return (score - scale[0]) / (scale[1] - scale[0])


def read_preference(text: str) -> float | None:
    """1 where the first is better, 0 where the second is, 0.5 for a tie, or None where `text` is no verdict.

    >>> read_preference('{"better": "first"}'), read_preference("the first")
    (1.0, None)
    """
    better = _value(text, "better")
    return _PREFERENCES.get(better) if isinstance(better, str) else None


def _value(text: str, key: str) -> object:
    """The value of `key`, in an object that is all of `text`, but for thoughts before it and fences around it."""
    document = read_document(_FENCES.sub(r"\1", _THOUGHTS.sub("", text).strip()))
    return document.value.get(key) if document and isinstance(document.value, dict) else None
