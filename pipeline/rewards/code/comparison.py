"""Whether what a solution gave is what a test expects. Nothing here runs code of a solution's values."""

from __future__ import annotations

import math
from typing import Any


def equal_values(expected: Any, given: Any, tolerance: float | None = None) -> bool:
    """Whether the forms (`inside.values`) of two values are those of equal values of the same types.

    >>> from pipeline.rewards.code.inside.values import encode
    >>> equal_values(encode([1, 0.3]), encode([1, 0.1 + 0.2])), equal_values(encode(1), encode(True))
    (False, False)
    >>> equal_values(encode([1, 0.3]), encode([1, 0.1 + 0.2]), tolerance=1e-9)
    True
    """
    if type(expected) is not type(given):
        return False
    if isinstance(expected, list):
        return len(expected) == len(given) and all(
            equal_values(*pair, tolerance) for pair in zip(expected, given, strict=True)
        )
    if not isinstance(expected, dict):
        return bool(expected == given)
    if expected.keys() != given.keys():
        return False
    ((kind, content),) = expected.items()
    if kind == "float":
        return _equal_floats(content, given[kind], tolerance)
    return equal_values(content, given[kind], tolerance)


def equal_outputs(expected: str, given: str, compare: str, tolerance: float | None = None) -> bool:
    r"""Whether a program wrote what it had to.

    >>> equal_outputs("1 2\n", "1 2  \n\n", "lines"), equal_outputs("1 2\n", "1 2", "exact")
    (True, False)
    >>> equal_outputs("0.3333", "0.33333333", "lines", tolerance=1e-3)
    True
    """
    if tolerance is not None:
        words = expected.split(), given.split()
        return len(words[0]) == len(words[1]) and all(
            _equal_words(*pair, tolerance) for pair in zip(*words, strict=True)
        )
    return expected == given if compare == "exact" else _lines(expected) == _lines(given)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _equal_floats(expected: str, given: Any, tolerance: float | None) -> bool:
    try:
        return _close(float.fromhex(expected), float.fromhex(given), tolerance)
    except (TypeError, ValueError, OverflowError):
        return False


def _equal_words(expected: str, given: str, tolerance: float) -> bool:
    if expected == given:
        return True
    try:
        return _close(float(expected), float(given), tolerance)
    except ValueError:
        return False


def _close(expected: float, given: float, tolerance: float | None) -> bool:
    if expected == given or (math.isnan(expected) and math.isnan(given)):
        return True
    return tolerance is not None and abs(expected - given) <= tolerance * max(1.0, abs(expected)) < math.inf
