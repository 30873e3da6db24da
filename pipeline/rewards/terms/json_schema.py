"""The term `json_schema`: 1 where the JSON in a completion is what a JSON Schema allows, else 0.

The schema is that of `params`, or else of the key `schema` in the prompt's metadata.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import field_validator

from pipeline.params import Section
from pipeline.rewards.completion import Completion, Unscored
from pipeline.rewards.verifiers.documents import Extract, find_document
from pipeline.rewards.verifiers.schemas import check_schema, read_schema, schema_error

RUNS_IN_WORKER = True  # the patterns of a schema can take exponential time


class Params(Section):
    """`must_match` is the schema, null for the prompt's own; `extract` is where the JSON stands in a completion."""

    must_match: dict[str, Any] | None = None
    extract: Extract = "whole"

    @field_validator("must_match")
    @classmethod
    def _is_a_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and (problem := check_schema(value)):
            raise ValueError(problem)
        return value


def score(completion: Completion, params: Params) -> float | Unscored | None:
    """1 or 0; None where neither `params` nor the prompt has a schema."""
    schema = params.must_match
    if schema is None:
        if problem := _problem(completion.metadata):
            return Unscored(f"metadata: {problem}")
        schema = read_schema(completion.metadata)
    if schema is None:
        return None
    document = find_document(completion.completion_text, params.extract)
    try:
        return float(document is not None and schema_error(document.value, schema) is None)
    except RecursionError:  # of the completion: the schema by itself has been tried
        return 0.0


@lru_cache(maxsize=1024)
def _problem(metadata: str | None) -> str | None:
    """Why the prompt's schema can't be used, or None, also where it has none."""
    try:
        schema = read_schema(metadata)
    except ValueError as error:
        return str(error)
    problem = None if schema is None else check_schema(schema)
    return problem and f"schema: {problem}"
