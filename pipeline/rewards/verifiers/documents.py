"""JSON in completions: where it stands, how it is read, and how much of it is right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from pipeline.rewards.fences import last_block
from pipeline.rewards.verifiers.extraction import answer_tag, whole

Extract = Literal["whole", "answer_tag", "code_block"]


@dataclass(frozen=True)
class Document:
    """A JSON value that was read, `null` too."""

    value: Any


def code_block(text: str) -> str | None:
    r"""The content of the last fenced block, in whatever language.

    >>> code_block('First\n```json\n{"a": 1}\n```\nand so on')
    '{"a": 1}'
    """
    return whole(last_block(text) or "")


EXTRACTIONS: dict[Extract, Callable[[str], str | None]] = {
    "whole": whole,
    "answer_tag": answer_tag,
    "code_block": code_block,
}
"""What each `extract` takes of a completion."""


def find_document(text: str, extract: Extract) -> Document | None:
    """The JSON in `text`, or None where there is none."""
    found = EXTRACTIONS[extract](text)
    return None if found is None else read_document(found)


def read_document(text: str) -> Document | None:
    """`text` as JSON, or None where it is none, or nested too deep to be read.

    >>> read_document('{"a": [1, null]}'), read_document("NaN"), read_document("{'a': 1}")
    (Document(value={'a': [1, None]}), None, None)
    """
    try:
        return Document(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def are_equal(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: numbers by value, and true is not 1.

    >>> are_equal({"a": [1, "x"], "b": None}, {"b": None, "a": [1.0, "x"]}), are_equal(True, 1), are_equal("1", 1)
    (True, False, False)
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    return bool(one == other)


def shared_entries(reference: Any, given: Any) -> float:
    """Of two objects, how many entries are equal over how many keys there are; of anything else, 1 or 0.

    >>> shared_entries({"city": "Paris", "days": 3}, {"city": "Paris", "days": 4, "unit": "C"})
    0.3333333333333333
    """
    if are_equal(reference, given):
        return 1.0
    if not (isinstance(reference, dict) and isinstance(given, dict)):
        return 0.0
    n_equal = sum(are_equal(reference[key], given[key]) for key in reference.keys() & given.keys())
    return n_equal / len(reference.keys() | given.keys())


def jaccard(one: Iterable[Hashable], other: Iterable[Hashable]) -> float:
    """How much two multisets have in common, from 0 to 1; nothing and nothing have all.

    >>> jaccard(["a", "a", "b"], ["a", "b", "c"])
    0.5
    """
    counts, others = Counter(list(one)), Counter(list(other))
    n_all = (counts | others).total()
    return (counts & others).total() / n_all if n_all else 1.0


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
