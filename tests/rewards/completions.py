"""A completion for tests of terms."""

from __future__ import annotations

from typing import Any

from pipeline.rewards.completion import Completion


def completion(text: str = "12", **changes: Any) -> Completion:
    """A completion of `text`, correct, with a token per character; `changes` are fields that are to be different."""
    fields: dict[str, Any] = {
        "completion_id": "c0",
        "group_id": "g0",
        "prompt_id": "p0",
        "source": "file",
        "messages": ({"role": "user", "content": "?"},),
        "answer": "12",
        "metadata": None,
        "completion_text": text,
        "completion_token_ids": [ord(letter) for letter in text],
        "finish_reason": "stop",
        "is_correct": True,
        "partial_score": 1.0,
        "extracted_answer": text,
    }
    return Completion(**{**fields, **changes})
