"""What is where in a packed row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Places:
    """The places of prompts and completions in a row of `n_tokens`; what is neither's is padding, at its end."""

    prompts: Sequence[range]
    completions: Sequence[range]
    prompt_of_completion: Sequence[int]
    n_tokens: int
