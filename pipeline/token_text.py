"""Tokens as text: how ids are decoded without torch, and a token in the text around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from pipeline.errors import BadInput, first_line

Decode = Callable[[Sequence[int]], str]
"""Token ids -> their text, special tokens included."""

TOKENS_BEFORE, TOKENS_AFTER = 12, 6
CHARACTERS_BEFORE, CHARACTERS_AFTER = 30, 20
"""How much text around a token is shown: by tokens, and of these at most so many characters."""


def read_decoder(file: Path) -> Decode:
    """How the tokenizer.json at `file` decodes; where there is none, ids stand for their text.

    Raises:
        BadInput: it is damaged.
    """
    if not file.is_file():
        return lambda ids: "".join(f"<{token_id}>" for token_id in ids)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no class of its own
        problem = f"it can't be read as a tokenizer ({first_line(error)})"
        raise BadInput(str(file), problem, "Restore it with `dvc checkout`") from error
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def in_context(prompt: Sequence[int], completion: Sequence[int], position: int, decode: Decode) -> str:
    """The text around the token at `position` of `completion`, which is in brackets: empty ones after the last token.

    >>> text = lambda ids: bytes(ids).decode()
    >>> in_context([104, 105, 32], [49, 50, 51], 1, text), in_context([104, 105, 32], [49], 1, text)
    ('hi 1⟦2⟧3', 'hi 1⟦⟧')
    """
    place = len(prompt) + position
    tokens = [*prompt, *completion]
    before = decode(tokens[max(0, place - TOKENS_BEFORE) : place])[-CHARACTERS_BEFORE:]
    after = decode(tokens[place + 1 : place + 1 + TOKENS_AFTER])[:CHARACTERS_AFTER]
    return f"{before}⟦{decode(tokens[place : place + 1])}⟧{after}"
