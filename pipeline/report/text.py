"""Text that a model wrote, made inert: shown to the reader as it is, and unable to do anything.

Escaping keeps it out of the markup. What would still act on the page, control characters and the invisible ones
that turn the writing direction or hide letters, is shown by its number.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from markupsafe import Markup, escape

MAX_CHARACTERS = 20_000
"""How much of one text the page shows."""

# Controls but tab and newline, soft hyphen, zero-width and directional marks, line and paragraph separators,
# annotations, tags and the variation selectors beyond the basic plane. The zero-width joiners stay: Persian, Hindi
# and many emoji are written with them.
SIGN_PATTERN = (
    "([\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff])\\1*"
)
"""A run of one sign that has no picture; the page's script has the same."""
SIGNS = re.compile(SIGN_PATTERN)
_CONTROL_NAMES = {"\0": "NULL", "\a": "BELL", "\b": "BACKSPACE", "\r": "CARRIAGE RETURN", "\x1b": "ESCAPE"}


def inert(text: str | None, max_characters: int = MAX_CHARACTERS) -> Markup:
    """`text` as markup without effect; beyond `max_characters` it is cut, and the cut says how much it left out.

    >>> inert("<b>\\x07")
    Markup('&lt;b&gt;<span class="sign" title="BELL">U+0007</span>')
    """
    if text is None:
        return Markup()
    marked = Markup().join(_pieces(text[:max_characters]))
    if len(text) <= max_characters:
        return marked
    note = f"{len(text) - max_characters:,} of {len(text):,} characters are left out here"
    return marked + Markup(' <span class="cut">{}</span>').format(note)


def _pieces(text: str) -> Iterator[Markup]:
    """`text` in pieces: ordinary stretches escaped, each run of one sign as its number."""
    start = 0
    for run in SIGNS.finditer(text):
        yield escape(text[start : run.start()])
        yield _sign(run.group())
        start = run.end()
    yield escape(text[start:])


def _sign(run: str) -> Markup:
    times = f" ×{len(run)}" if len(run) > 1 else ""
    return Markup('<span class="sign" title="{}">U+{:04X}{}</span>').format(sign_name(run[0]), ord(run[0]), times)


def sign_name(sign: str) -> str:
    r"""What Unicode calls `sign`.

    >>> sign_name("\u202e"), sign_name("\x00")
    ('RIGHT-TO-LEFT OVERRIDE', 'NULL')
    """
    return unicodedata.name(sign, _CONTROL_NAMES.get(sign, "CONTROL CHARACTER"))
