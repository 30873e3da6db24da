"""JSON as text, without the module json: it and what it imports take as long to start as Python itself."""

from __future__ import annotations

TYPE_CHECKING = False  # as of typing, which takes a while to import too
if TYPE_CHECKING:
    from typing import Any

_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(32), ord('"'), ord("\\"))}


def json_text(value: Any) -> str:
    r"""`value`, of None, booleans, integers, texts, lists and dicts of texts, as JSON.

    >>> json_text({"a": [None, True, 1, '"é']})
    '{"a":[null,true,1,"\\u0022é"]}'
    """
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{','.join([json_text(each) for each in value])}]"
    return f"{{{','.join([f'{json_text(key)}:{json_text(each)}' for key, each in value.items()])}}}"
