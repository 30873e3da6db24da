"""The term `json_schema`: 1 where the JSON in a completion is what a JSON Schema allows, else 0.

The schema is that of `params`, or else of the key `schema` in the prompt's metadata.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import field_validator

from pipeline.params import Section
from pipeline.rewards.completion import Completion
from pipeline.rewards.verifiers.documents import Extract, find_document
from pipeline.rewards.verifiers.schemas import check_schema, schema_error

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


def score(completion: Completion, params: Params) -> float | None:
    """1 or 0; None where neither `params` nor the prompt has a schema."""
    schema = params.must_match if params.must_match is not None else _of_prompt(completion.metadata)
    if schema is None:
        return None
    document = find_document(completion.completion_text, params.extract)
    return float(document is not None and schema_error(document.value, schema) is None)


def _of_prompt(metadata: str | None) -> Any:
    content = json.loads(metadata) if metadata else None
    return content.get("schema") if isinstance(content, dict) else None
