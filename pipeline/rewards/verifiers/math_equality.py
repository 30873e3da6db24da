"""Runs in a worker: whether two answers are equal by math-verify, where exact arithmetic has no verdict.

Two deviations from math-verify's defaults: its time-outs, signals that can't interrupt a computation in C, are off,
since the worker is killed instead; and it compares 60 digits where it would compare 15 and drop what is tiny.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from pipeline.rewards.verifiers.exact import exact_number
from pipeline.rewards.verifiers.intervals import as_interval
from pipeline.rewards.verifiers.notation import plain_latex

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that its time-outs are off

_DIGITS = 60
_TARGETS = (LatexExtractionConfig(boxed_match_priority=-1),)
_BRACKETED = re.compile(r"(\\\{|[(\[]).*(\\\}|[)\]])")


def compare(reference: str, answer: str) -> tuple[float | None, str | None]:
    """1 where `answer` equals `reference`, else 0; null with the reason where `reference` can't be read."""
    plain = _comparable(plain_latex(reference), plain_latex(answer))
    parsed = _parse_reference(plain[0])
    if not parsed or plain[0] == plain[1]:
        error = check_reference(reference)
        return (None, error) if error else (1.0, None)
    if {_is_set(plain[0]), _is_set(plain[1])} == {True, False}:
        return 0.0, None
    return float(_are_equal(parsed, _parse(plain[1]))), None


def refuse(reference: str, reason: str | None) -> tuple[float | None, str | None]:
    """0 and `reason`, for a completion with nothing to compare; null with the reason if `reference` can't be read."""
    error = check_reference(reference)
    return (None, error) if error else (0.0, reason)


@lru_cache(maxsize=4096)
def check_reference(reference: str) -> str | None:
    """Why no answer can be compared with `reference`, or None. A number whose comparison never ends hangs here too."""
    parsed = _parse_reference(plain_latex(reference))
    if not parsed:
        return f"answer: {reference!r} can't be read as mathematics"
    if not getattr(parsed[0], "free_symbols", None):  # what has symbols would be simplified for nothing
        _are_equal(parsed, _parse("1.5"))
    return None


def _are_equal(reference: list[Any], answer: list[Any]) -> bool:
    return bool(verify(reference, answer, numeric_precision=_DIGITS, timeout_seconds=None))


@lru_cache(maxsize=4096)
def _parse(text: str) -> list[Any]:
    parsed: list[Any] = parse(f"${text}$", _TARGETS, fallback_mode="no_fallback", parsing_timeout=None)
    return parsed


def _parse_reference(plain: str) -> list[Any]:
    """As `_parse`, and a percentage, which math-verify can't read, is its value."""
    number = exact_number(plain)
    if number and number.is_percent and len(plain) < 100:
        return _parse(rf"\frac{{{number.value.numerator}}}{{{number.value.denominator}}}")
    return _parse(plain)


def _comparable(reference: str, answer: str) -> tuple[str, str]:
    """The two, an inequality as an interval where the other one is an interval."""
    if _BRACKETED.fullmatch(reference):
        return reference, as_interval(answer) or answer
    return (as_interval(reference) or reference, answer) if _BRACKETED.fullmatch(answer) else (reference, answer)


def _is_set(text: str) -> bool | None:
    """Whether braces enclose `text`, rather than the brackets of a tuple or an interval; None without either."""
    match = _BRACKETED.fullmatch(text)
    return match[1] == r"\{" if match else None


compare(r"\frac{x}{2}", "0.5x")  # builds the grammar, which takes longer than a comparison: once, in the fork server
