"""Runs in a worker: how well tool calls match those that the prompt expects.

Source: Qian et al., ToolRL (arXiv 2504.13958), section 3.3: r_name + r_param + r_value over their maximum, with
r_name the Jaccard index of the names, r_param that of the argument names of each matched call, and r_value the number
of its arguments that are right.

Deviations:
1. From 0 to 1, where ToolRL stretches it to -3 to 3.
2. Each expected call, in turn, is matched with the best call of its name that is left, not all with all at once.
3. A call that the schema of its tool refuses matches nothing, as it could not run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pipeline.rewards.verifiers.documents import are_equal, jaccard, read_document
from pipeline.rewards.verifiers.schemas import check_schema, schema_error

MAX_CALLS = 64
"""A completion with more is wrong, as matching takes their square."""


@dataclass(frozen=True)
class ToolCall:
    """A call of the tool `name`."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Expected:
    """The calls that a prompt expects, and the schema of each tool's arguments, where it says."""

    calls: list[ToolCall]
    schemas: dict[str, Any]


def score(metadata: str, texts: tuple[str, ...]) -> tuple[float | None, str | None]:
    """1 where the calls in `texts`, JSON each, are those expected in any order, else less; null without a reference."""
    error = check_reference(metadata)
    if error:
        return None, error
    calls = read_calls(texts)
    if calls is None:
        return 0.0, None
    try:
        return match(_read_expected(metadata), calls), None
    except RecursionError:
        return 0.0, "the completion's tool calls are nested too deep to be compared"


@lru_cache(maxsize=4096)
def check_reference(metadata: str) -> str | None:
    """Why no completion can be judged, or None: the expected calls must match themselves."""
    try:
        expected = _read_expected(metadata)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"metadata: it has no tool_calls of name and arguments ({type(error).__name__}: {error})"
    for name, schema in expected.schemas.items():
        if problem := check_schema(schema):
            return f"metadata: tools: {name}: {problem}"
    refused = next((call for call in expected.calls if not _is_allowed(call, expected.schemas)), None)
    return f"metadata: tool_calls: its own tools refuse the call of {refused.name!r}" if refused else None


def match(expected: Expected, calls: Sequence[ToolCall]) -> float:
    """ToolRL's score of `calls`, from 0 to 1; 1 is equality.

    >>> wanted = Expected([ToolCall("weather", {"city": "Paris", "days": 3})], {})
    >>> match(wanted, [ToolCall("weather", {"city": "Paris", "days": 4})])  # (1 + 1 + 1) / (1 + 1 + 2)
    0.75
    """
    left = [call for call in calls if _is_allowed(call, expected.schemas)]
    points = jaccard((call.name for call in expected.calls), (call.name for call in calls))
    for wanted in expected.calls:
        rivals = [call for call in left if call.name == wanted.name]
        if rivals:
            best = max(rivals, key=lambda call: _points(wanted, call))
            left = [call for call in left if call is not best]
            points += _points(wanted, best)
    return points / (1 + len(expected.calls) + sum(len(call.arguments) for call in expected.calls))


def read_calls(texts: Sequence[str]) -> list[ToolCall] | None:
    """The calls that `texts` hold, each one call or a list of them; None where one is none, or there are too many."""
    calls: list[ToolCall] = []
    for text in texts:
        document = read_document(text)
        if document is None:
            return None
        try:
            calls += _calls(document.value)
        except (ValueError, TypeError, KeyError):
            return None
    return calls if len(calls) <= MAX_CALLS else None


def _points(wanted: ToolCall, call: ToolCall) -> float:
    shared = wanted.arguments.keys() & call.arguments.keys()
    n_right = sum(are_equal(wanted.arguments[key], call.arguments[key]) for key in shared)
    return jaccard(wanted.arguments, call.arguments) + n_right


def _is_allowed(call: ToolCall, schemas: dict[str, Any]) -> bool:
    """Whether the call could run, as far as the prompt says which tools there are."""
    if not schemas:
        return True
    return call.name in schemas and schema_error(call.arguments, schemas[call.name]) is None


def _read_expected(metadata: str) -> Expected:
    content = json.loads(metadata)
    tools = [tool.get("function", tool) for tool in content.get("tools") or []]
    return Expected(_calls(content["tool_calls"]), {tool["name"]: tool.get("parameters", {}) for tool in tools})


def _calls(value: Any) -> list[ToolCall]:
    """A call or a list of them, as `{"name": ..., "arguments": {...}}`, which may be under the key `function`."""
    return [_call(each) for each in (value if isinstance(value, list) else [value])]


def _call(value: Any) -> ToolCall:
    content = value.get("function", value) if isinstance(value, dict) else {}
    name, arguments = content["name"], content["arguments"]
    if isinstance(arguments, str):  # as the API of OpenAI has them
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise TypeError(f"{value!r:.200} is no call with a name and an object of arguments")
    return ToolCall(name, arguments)
