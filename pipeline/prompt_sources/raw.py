"""What every prompt source gives, and how its messages name a place in params.yaml."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, WHERE_SOURCES_LIVE

SOURCE_KEY = f"{PARAMS_FILE}: prompts.source"

Message = dict[str, str]
"""`{"role": ..., "content": ...}`."""

Rows = Iterator[tuple[str, dict[str, Any]]]
"""For each row, the words that name it and its columns. Lines and rows count from 1, a header not counted."""

Advance = Callable[[int, int], None]
"""Tells a progress bar of finished items, and of units of work in them."""


@dataclass(frozen=True)
class RawPrompt:
    """A row of a source: a question, or a chat that ends with the user's message, and what its verifier needs.

    `source` is the value of the column of that name in the prompts table; `where` names the row in messages. Without a
    `verifier` of its own a row has that of `prompts.verifier`.
    """

    prompt: str | list[Message]
    answer: str | None
    source: str
    metadata: str | None
    where: str
    verifier: str | None = None


def no_advance(_n_items: int, _n_units: int) -> None:
    """An `Advance` that tells nobody."""


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """A remedy that names what is spelled most like `name`, or `otherwise` where nothing is.

    >>> nearest("chain_sums", ["chain_sum", "gcd"], "See the list")
    "The nearest is 'chain_sum'"
    """
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    if not near:
        return otherwise
    verb = "is" if len(near) == 1 else "are"
    return f"The nearest {verb} {', '.join(map(repr, near))}"


def path_in_sources(name: str, key: str) -> Path:
    """`name` as a path relative to the current directory; a `BadInput` unless DVC watches it."""
    path = Path(name)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    # By the letters of the path: a file that DVC put there may be a link into its cache.
    if ".." in path.parts or not path.is_relative_to(WHERE_SOURCES_LIVE):
        watched = f"{WHERE_SOURCES_LIVE.as_posix()}/"
        problem = f"{name!r} is not under {watched}, the folder that DVC watches, so an edit of it would go unnoticed"
        raise BadInput(f"{SOURCE_KEY}.{key}", problem, f"Copy it to {watched}, or `dvc add` it there")
    return path
