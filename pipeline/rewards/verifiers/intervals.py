r"""Inequalities in one variable as the intervals that they are: ``0 \le x < 1`` is ``[0, 1)``."""

from __future__ import annotations

import re

_SIGN = r"(<|>|\\leq?(?![a-zA-Z])|\\geq?(?![a-zA-Z]))"
_VARIABLE = r"([a-zA-Z])"
_BETWEEN = re.compile(rf"([^<>=]+?) ?{_SIGN} ?{_VARIABLE} ?{_SIGN} ?([^<>=]+)")
_BEYOND = re.compile(rf"{_VARIABLE} ?{_SIGN} ?([^<>=]+)")
_BEFORE = re.compile(rf"([^<>=]+?) ?{_SIGN} ?{_VARIABLE}")
_TURNED = {"<": ">", ">": "<"}


def as_interval(text: str) -> str | None:
    r"""The interval that the inequality `text`, in the notation of `plain_latex`, is; None for anything else.

    >>> as_interval(r"0 \le x < 1"), as_interval(r"x \geq 2"), as_interval(r"3 > t"), as_interval("x < y < z")
    ('[0, 1)', '[2, \\infty)', '(-\\infty, 3)', '(x, z)')
    """
    text = re.sub(r"\\(?:leq|le)slant(?![a-zA-Z])", r"\\le", text)
    if between := _BETWEEN.fullmatch(text):
        low, first, _, second, high = between.groups()
        if _direction(first) != _direction(second):
            return None
        if _direction(first) == ">":
            low, first, second, high = high, second, first, low
        return f"{'[' if _is_closed(first) else '('}{low}, {high}{']' if _is_closed(second) else ')'}"
    if beyond := _BEYOND.fullmatch(text):
        _, sign, bound = beyond.groups()
        direction = _direction(sign)
    elif before := _BEFORE.fullmatch(text):
        bound, sign, _ = before.groups()
        direction = _TURNED[_direction(sign)]
    else:
        return None
    if direction == ">":
        return f"{'[' if _is_closed(sign) else '('}{bound}, \\infty)"
    return f"(-\\infty, {bound}{']' if _is_closed(sign) else ')'}"


def _direction(sign: str) -> str:
    return "<" if sign == "<" or sign.startswith(r"\l") else ">"


def _is_closed(sign: str) -> bool:
    return sign.startswith("\\")
