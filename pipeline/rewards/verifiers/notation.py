r"""One notation for an answer, whatever its writer used: plain LaTeX without delimiters, sizes and typography."""

from __future__ import annotations

import re
import unicodedata

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
        "\u2248": r"\approx ",
        "\u222a": r"\cup ",
        "\u2205": r"\emptyset ",
        "\u00b0": r"^\circ ",
        "\u00b1": r"\pm ",
        "\u221a": r"\sqrt ",
        "\u20ac": "",
        "\u00a3": "",
        "\u00a5": "",
    }
)
# What compatibility characters stand for, which normalization would run into the characters beside them.
_SCRIPTS = (
    (re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u207b\u207f]+"), r"^{\g<0>}"),
    (re.compile("[\u2080-\u208b]+"), r"_{\g<0>}"),
    (re.compile("[\u00bc-\u00be\u2150-\u215e]"), r" \g<0>"),  # 2 and a half, not 21/2
)
_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (r"(\d+)\u2044(\d+)", r"\\frac{\1}{\2}"),
        ("\u2044", "/"),
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![a-zA-Z])", ""),
        (r"(?<!\\)\\[!$]|\$|(?<!\\)\\[()\[\]]|\*\*(?!.)|^\*\*", ""),
        (r"\{,\}", ","),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
        (r"^\s*\\approx(?![a-zA-Z])", ""),
        (r"^\s*\\(?:text|mathrm|mbox) ?\{[^{}]*(?:\bis|[:=])\s*\}", ""),  # \text{The answer is }
        (r"(?<!\\)\\(?:[,;: ]|q?quad(?![a-zA-Z]))|~", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"(?<!\\)\\%", "%"),
        (r"(?<![\\a-zA-Z])(pi|sqrt)(?![a-zA-Z])", r"\\\1 "),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt\s+(\d+)", r"\\sqrt{\1}"),
        (r"\\frac *(\w)", r"\\frac{\1}"),
        (r"(\\frac ?\{[^{}]*\}) *(\w)", r"\1{\2}"),
        (r"^\s*\\(?:text|textbf|mathrm|mbox) ?\{\s*([-+]?\d[^{}]*)\}\s*$", r"\1"),  # \text{16 square units}
        (r"\s+", " "),
    )
)


def plain_latex(text: str) -> str:
    r"""`text` in the one notation.

    >>> plain_latex(r"$\left( \dfrac12,\, 3 \right)$")
    '( \\frac{1}{2}, 3 )'
    >>> plain_latex("−2π")
    '-2\\pi'
    >>> plain_latex("x² + 2½")
    'x^{2} + 2 \\frac{1}{2}'
    """
    for pattern, by in _SCRIPTS:
        text = pattern.sub(by, text)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
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
