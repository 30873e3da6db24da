"""JSON Schema, as far as it can be checked offline: no reference leaves the schema.

A pattern of a schema can take exponential time on some texts, so what calls `schema_error` runs in a worker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable


def check_schema(schema: Any) -> str | None:
    """Why nothing can be checked against `schema`, or None.

    >>> check_schema({"type": "object"}), check_schema({"type": "objekt"})
    (None, "it is no JSON Schema: 'objekt' is not valid under any of the given schemas")
    """
    if not isinstance(schema, dict | bool):
        return f"it is no JSON Schema: {schema!r:.100} is neither an object nor a boolean"
    outside = next((reference for reference in _references(schema) if not reference.startswith("#")), None)
    if outside is not None:
        return f"it refers to {outside!r}, and only references within the schema, such as #/$defs/x, are followed"
    try:
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema)
        kind(schema, registry=Registry()).is_valid(None)
    except (SchemaError, Unresolvable, RecursionError) as error:
        return f"it is no JSON Schema: {getattr(error, 'message', error)}"
    return None


def schema_error(value: Any, schema: Any) -> str | None:
    """What `schema` finds wrong with `value`, or None.

    >>> schema_error({"days": "3"}, {"properties": {"days": {"type": "integer"}}})
    "days: '3' is not of type 'integer'"
    """
    error = next(_validator(json.dumps(schema)).iter_errors(value), None)
    if error is None:
        return None
    return ": ".join([*(".".join(map(str, error.absolute_path)) or "it",), error.message])


def read_schema(metadata: str | None) -> Any:
    """The key `schema` of a prompt's `metadata`, or None; a ValueError where that is no JSON object."""
    if metadata is None:
        return None
    content = json.loads(metadata)
    if not isinstance(content, dict):
        raise ValueError(f"it is a JSON {type(content).__name__}, not an object with the key schema")
    return content.get("schema")


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Validator:
    content = json.loads(schema)
    return validator_for(content, default=Draft202012Validator)(content, registry=Registry())


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (schema[key] for key in ("$ref", "$dynamicRef") if isinstance(schema.get(key), str))
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _references(inner)
