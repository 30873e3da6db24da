"""Lengths that come again: oneDNN compiles a kernel of a megabyte or so for every shape it meets, and keeps it."""

from __future__ import annotations

LENGTH_BUCKET = 64
"""What linear layers see has so many tokens, or a multiple."""


def padded_length(n_tokens: int) -> int:
    """How many tokens `n_tokens` become.

    >>> padded_length(60), padded_length(64), padded_length(65)
    (64, 64, 128)
    """
    return n_tokens + -n_tokens % LENGTH_BUCKET
