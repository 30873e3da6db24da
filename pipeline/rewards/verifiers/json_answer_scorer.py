"""Runs in a worker: whether a completion's JSON is what the prompt's schema allows and its answer says."""

from __future__ import annotations

import json
from functools import lru_cache

from pipeline.rewards.verifiers.documents import read_document, shared_entries
from pipeline.rewards.verifiers.schemas import check_schema, read_schema, schema_error

ScoreAndReason = tuple[float | None, str | None]


def score(answer: str | None, metadata: str | None, text: str | None) -> ScoreAndReason:
    """1 where the JSON `text` is right, and for an object the share of entries that are; null without a reference."""
    error = check_reference(answer, metadata)
    if error:
        return None, error
    document = None if text is None else read_document(text)
    if document is None:
        return 0.0, None
    schema = read_schema(metadata)
    try:
        if schema is not None and schema_error(document.value, schema):
            return 0.0, None
        return (1.0 if answer is None else shared_entries(json.loads(answer), document.value)), None
    except RecursionError:
        return 0.0, "the completion's JSON is nested too deep to be compared"


@lru_cache(maxsize=4096)
def check_reference(answer: str | None, metadata: str | None) -> str | None:
    """Why no completion can be judged, or None: the answer must be JSON that the schema allows."""
    document = None if answer is None else read_document(answer)
    if answer is not None and document is None:
        return f"answer: {answer!r:.200} is not valid JSON"
    try:
        schema = read_schema(metadata)
    except ValueError as error:
        return f"metadata: {error}"
    if document is None and schema is None:
        return "answer: it is null, and metadata has no schema, so there is nothing to compare with"
    if schema is not None and (problem := check_schema(schema)):
        return f"metadata: schema: {problem}"
    if document is None:
        return None
    if schema is not None and (problem := schema_error(document.value, schema)):
        return f"answer: the prompt's own schema refuses it: {problem}"
    return None
