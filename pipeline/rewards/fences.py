"""Fenced blocks in a completion, as Markdown has them: the last one counts, and one that never closes is none."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet

# Possessive throughout: a completion of tildes alone would else take hours.
_FENCE = re.compile(r"^ {0,3}+(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<language>[^`\s]*+)[^`\n]*+$", re.MULTILINE)


def last_block(text: str, languages: AbstractSet[str] | None = None) -> str | None:
    r"""The last block in one of `languages`, by their names in lower case, or in any where that is None.

    None where there is no such block, or where one of them never closes.

    >>> last_block("So:\n```python\nprint(1)\n```\nDone. Output:\n```text\n1\n```", {"python"})
    'print(1)\n'
    >>> last_block("```python\nprint(1)\n```\nBetter:\n```python\nprint(2)") is None
    True
    """
    block: str | None = None
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif _closes(fence, opened):
            if _is_in(opened, languages):
                block = text[opened.end() + 1 : fence.start()]
            opened = None
    return None if opened is not None and _is_in(opened, languages) else block


def _is_in(opened: re.Match[str], languages: AbstractSet[str] | None) -> bool:
    return languages is None or opened["language"].lower() in languages


def _closes(fence: re.Match[str], opened: re.Match[str]) -> bool:
    is_same = fence["fence"][0] == opened["fence"][0] and len(fence["fence"]) >= len(opened["fence"])
    return is_same and not fence["language"]
