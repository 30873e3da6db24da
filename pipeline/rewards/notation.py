r"""One notation for an answer, whatever its writer used: plain LaTeX without delimiters, sizes and typography."""

from __future__ import annotations

import re

MAX_NESTING = 50
"""Brackets within brackets that an answer may have; what is deeper isn't parsed."""

_SIGNS = str.maketrans(
    {
        "\u2212": "-",
        "\u2013": "-",
        "\u00d7": r"\times ",
        "\u00b7": r"\cdot ",
        "\u22c5": r"\cdot ",
        "\u00f7": r"\div ",
        "\u03c0": r"\pi ",
        "\u221e": r"\infty ",
        "\u2264": r"\le ",
        "\u2265": r"\ge ",
        "\u2260": r"\ne ",
        "\u222a": r"\cup ",
        "\u2205": r"\emptyset ",
        "\u00b0": r"^\circ ",
        "\u00b1": r"\pm ",
        "\u221a": r"\sqrt ",
        "\u2044": "/",
        "\u2009": " ",
        "\u202f": " ",
        "\u00a0": " ",
        "\u20ac": "",
        "\u00a3": "",
        "\u00a5": "",
    }
)
_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![a-zA-Z])", ""),
        (r"(?<!\\)\\[!$]|\$|(?<!\\)\\[()\[\]]|\*\*(?!.)|^\*\*", ""),
        (r"\{,\}", ","),
        (r"(?<!\\)\\(?:[,;: ]|q?quad(?![a-zA-Z]))|~", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"(?<!\\)\\%", "%"),
        (r"(?<![\\a-zA-Z])(pi|sqrt)(?![a-zA-Z])", r"\\\1 "),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt\s+(\d+)", r"\\sqrt{\1}"),
        (r"\\frac *(\w)", r"\\frac{\1}"),
        (r"(\\frac ?\{[^{}]*\}) *(\w)", r"\1{\2}"),
        (r"\s+", " "),
    )
)


def plain_latex(text: str) -> str:
    r"""`text` in the one notation.

    >>> plain_latex(r"$\left( \dfrac12,\, 3 \right)$")
    '( \\frac{1}{2}, 3 )'
    >>> plain_latex("−2π")
    '-2\\pi'
    """
    text = text.translate(_SIGNS)
    for pattern, by in _REWRITES:
        text = pattern.sub(by, text)
    return text.strip().rstrip(".,;").strip()


def nesting(text: str) -> int:
    """How deep the brackets of `text` are nested.

    >>> nesting("((1)) + {2}")
    2
    """
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest
