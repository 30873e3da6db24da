"""What a verifier says of a completion, and what a term sees of it. Kept light: worker processes import it first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict


class Message(TypedDict):
    """One message of a prompt."""

    role: str
    content: str


@dataclass(frozen=True)
class Verdict:
    """What the verifier says of one completion.

    `is_correct` is null where the verifier can't judge, and `error` then says why; a completion that broke the
    verifier is wrong, and `error` says so too. `partial_score` is in 0 to 1, and 1 means correct.
    """

    is_correct: bool | None
    partial_score: float | None
    extracted_answer: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Unscored:
    """What a term gives in place of a number, where it can say why it can't judge."""

    reason: str


@dataclass(frozen=True)
class Completion:
    """One completion with its prompt and its verdict: all that a term may look at.

    `source`, `messages`, `answer` and `metadata` (JSON as text) are the prompt's; completions of one `group_id` share
    them. `completion_token_ids` include the end token; `finish_reason` is `stop` or `length`. `is_correct`,
    `partial_score` and `extracted_answer` are the verifier's, null where it has none.
    """

    completion_id: str
    group_id: str
    prompt_id: str
    source: str
    messages: tuple[Message, ...]
    answer: str | None
    metadata: str | None
    completion_text: str
    completion_token_ids: Sequence[int]
    finish_reason: str
    is_correct: bool | None
    partial_score: float | None
    extracted_answer: str | None
