"""Where the answer stands in a completion: each extraction is `str -> str | None`, and None means no answer.

The last answer counts, also where it is cut off: a last box that never closes is no answer, rather than a reason to
go back to an earlier one that the completion went on from.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

Extraction = Callable[[str], str | None]

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|$)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TAG = re.compile(r"<answer>", re.IGNORECASE)
_TAG_END = re.compile(r"</answer>", re.IGNORECASE)
_MARKER = re.compile(
    r"(?<!\#)\#{4}(?!\#)|\banswer\b(?: to [^.\n]{1,80}?)?[\s*_]*(?:\bis\b|:|=)[\s*_]*:?[*_]*", re.IGNORECASE
)
# A dollar that opens mathematics has no space after it, and the one that closes it none before and no digit after.
_DELIMITED = re.compile(
    r"""\$\$(?P<display>.+?)\$\$ | \$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$(?!\d)
    | \*\*(?P<bold>[^\n]+?)\*\* | `(?P<code>[^\n]+?)` | \\\((?P<round>.+?)\\\) | \\\[(?P<square>.+?)\\\]""",
    re.VERBOSE | re.DOTALL,
)
_TAIL = re.compile(r"[.!?;](?=\s|$).*|,\s+not\b.*|(?<=\d)\s+(?=[A-Z][a-z]*\s+[a-z]).*", re.DOTALL)
_SEPARATOR = re.compile(r"(?<=\d)\{,\}(?=\d{3}(?!\d))", re.ASCII)
_LOOSE_SIGN = re.compile(r"(\A|[=(]|\bis\b) *[-\u2212] +(?=[$]?(?:\.?\d|\\[dtc]?frac))", re.ASCII)
_FRACTION = re.compile(r"\\[dtc]?frac\s*\{(\d+)\}\s*\{(\d+)\}", re.ASCII)
_NUMBER = re.compile(
    r"""(?<![\w])(?P<sign>(?<![\w)\]}.%])[-\u2212](?=[$]?(?:\.?\d|\\[dtc]?frac)))?[$]?
    (?P<number>(?:\d+[ ]?)?\\[dtc]?frac\s*\{\d+\}\s*\{\d+\}
    |(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?(?:/\d+(?![\d/]|\.\d))?|\.\d+)""",
    re.VERBOSE | re.ASCII,
)


def boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` or ``\fbox{...}``, nested braces and all.

    >>> boxed(r"\boxed{1} wait, \boxed{\frac{1}{2}}")
    '\\frac{1}{2}'
    >>> boxed(r"\boxed{5} so the answer is \boxed{") is None
    True
    """
    last = _last(_BOX, text)
    if last is None or not last[0].endswith("{"):
        return None
    depth = 1
    for brace in _BRACE.finditer(text, last.end()):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return _or_none(text[last.end() : brace.start()])
    return None


def final_answer(text: str) -> str | None:
    r"""What follows the last ``####``, ``final answer is`` or ``answer:``, up to the end of its sentence or line.

    >>> final_answer("#### 42\nThat is how the total is found.")
    '42'
    >>> final_answer("The answer is 3.5 meters. I hope it is correct.")
    '3.5 meters'
    >>> final_answer(r"**Final Answer:** $\boxed{7}$.")
    '7'
    """
    last = _last(_MARKER, text)
    if last is None:
        return None
    rest = text[last.end() :].lstrip()
    line = rest.partition("\n")[0].strip()
    if _BOX.search(line):
        return boxed(line)
    delimited = _DELIMITED.match(rest)
    if delimited:
        return _or_none(delimited[delimited.lastgroup or 0])
    return _or_none(_TAIL.sub("", line).strip("*_`\"' "))


def last_number(text: str) -> str | None:
    r"""The last number: signed, with decimals, thousands separators, an exponent, or as a fraction.

    A minus between two operands is no sign, and one with a space after it only where nothing can stand before it.

    >>> last_number("4 - 9 = -5"), last_number("so 4 + 8 = 12."), last_number("5-3"), last_number("about -3/4 of 1,000")
    ('-5', '12', '3', '1,000')
    >>> last_number(r"$x = - 12{,}345$"), last_number(r"or 2\frac{3}{4}")
    ('-12345', '2 3/4')
    """
    last = _last(_NUMBER, _LOOSE_SIGN.sub(r"\1 -", _SEPARATOR.sub("", text)))
    if last is None:
        return None
    number = " ".join(_FRACTION.sub(r" \1/\2", last["number"]).split())
    return ("-" if last["sign"] else "") + number


def answer_tag(text: str) -> str | None:
    """The content of the last ``<answer>...</answer>``.

    >>> answer_tag("<answer>1</answer> no, <answer> 2 </answer>")
    '2'
    """
    last = _last(_TAG, text)
    end = _TAG_END.search(text, last.end()) if last else None
    return _or_none(text[last.end() : end.start()]) if last and end else None


def whole(text: str) -> str | None:
    """The whole completion, without the white space around it.

    >>> whole(" 12\\n")
    '12'
    """
    return _or_none(text)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _or_none(text: str) -> str | None:
    return text.strip() or None


EXTRACTIONS: dict[str, Extraction] = {
    "boxed": boxed,
    "final_answer": final_answer,
    "last_number": last_number,
    "answer_tag": answer_tag,
    "whole": whole,
}
"""Each extraction by the name that params.yaml gives it."""
