"""What a verifier is: it judges a completion at once, or says what a worker has to find out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pipeline.rewards.completion import Message, Verdict
from pipeline.rewards.workers import Call


@dataclass(frozen=True)
class Prompt:
    """What scoring needs of a row of the prompts table."""

    prompt_id: str
    messages: tuple[Message, ...]
    answer: str | None
    verifier: str
    metadata: str | None
    source: str = ""


@dataclass(frozen=True)
class Question:
    """A completion that a worker has to judge.

    `call` returns a score from 0 to 1, or None where the prompt can't be judged, and the reason or None.
    `reference_check` returns why the prompt can't be judged, or None; it tells whether a reference that hangs by
    itself is to blame when `call` takes too long. `warm_up` makes a worker import what `call` needs.
    """

    extracted_answer: str | None
    call: Call
    reference_check: Call
    warm_up: Call


class Verifier(Protocol):
    """Decides `is_correct` for the prompts that name it."""

    def judge(self, completion_text: str, prompt: Prompt) -> Verdict | Question:
        """The verdict, where it takes no worker to find it."""


def right(extracted_answer: str) -> Verdict:
    """The verdict on a correct completion."""
    return Verdict(True, 1.0, extracted_answer)


def wrong(extracted_answer: str | None = None, error: str | None = None) -> Verdict:
    """The verdict on a completion that is not correct."""
    return Verdict(False, 0.0, extracted_answer, error)


def unjudged(extracted_answer: str | None, error: str | None) -> Verdict:
    """The verdict on a completion that can't be judged."""
    return Verdict(None, None, extracted_answer, error)
