"""Where the code stands in a completion: its last fenced block."""

from __future__ import annotations

import re

# Possessive throughout: a completion of tildes alone would else take hours.
_FENCE = re.compile(r"^ {0,3}+(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<language>[^`\s]*+)[^`\n]*+$", re.MULTILINE)
_LANGUAGES = {"", "python", "python3", "py", "py3"}


def code_block(text: str) -> str | None:
    r"""The last fenced block of Python, or of no named language; None where there is none, or it never closes.

    >>> code_block("So:\n```python\nprint(1)\n```\nDone. Output:\n```text\n1\n```")
    'print(1)\n'
    >>> code_block("```python\nprint(1)\n```\nBetter:\n```python\nprint(2)") is None
    True
    """
    block: str | None = None
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif _closes(fence, opened):
            if opened["language"].lower() in _LANGUAGES:
                block = text[opened.end() + 1 : fence.start()]
            opened = None
    return None if opened is not None and opened["language"].lower() in _LANGUAGES else block


def _closes(fence: re.Match[str], opened: re.Match[str]) -> bool:
    is_same = fence["fence"][0] == opened["fence"][0] and len(fence["fence"]) >= len(opened["fence"])
    return is_same and not fence["language"]
