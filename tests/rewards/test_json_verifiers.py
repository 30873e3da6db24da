"""The verifiers json_answer and tool_calls: exact and partial credit, bad references, and what never ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.params import ScoreParams
from pipeline.rewards.scoring import score_completions
from tests.rewards.frames import prompts, rollouts

PARTIAL = {"correct": {"weight": 1.0, "params": {"partial_credit": True}}}


def score(
    verifier: str, texts: list[str], answers: list[str | None], metadata: list[Any], **params: Any
) -> list[dict[str, Any]]:
    """The rows of one completion per text, each of a prompt of its own."""
    packed = [each if each is None or isinstance(each, str) else json.dumps(each) for each in metadata]
    settings = ScoreParams.model_validate({"terms": PARTIAL, **params})
    return score_completions(rollouts(texts), prompts(answers, verifier, packed), settings).to_dicts()


# Completion, answer, score. Of two objects, the score is equal entries over all keys.
ANSWERS: list[tuple[str, str, float]] = [
    ("[1, 2.0]", "[1.0, 2]", 1.0),
    ("[2, 1]", "[1, 2]", 0.0),
    ("1", "true", 0.0),
    ("true", "1", 0.0),
    ('"1"', "1", 0.0),
    ("null", "null", 1.0),
    ('{"b": 2, "a": 1}', '{"a": 1, "b": 2}', 1.0),
    ('{"a": 1, "b": 3}', '{"a": 1, "b": 2}', 1 / 2),
    ('{"a": 1, "b": 2, "c": 3}', '{"a": 1, "b": 2}', 2 / 3),
    ("{}", '{"a": 1}', 0.0),
    ('{"a": {"b": [1]}}', '{"a": {"b": [1]}}', 1.0),
    ("NaN", "1", 0.0),
    ("{'a': 1}", '{"a": 1}', 0.0),
    ("", "1", 0.0),
    ("9" * 5000, "1", 0.0),  # more digits than Python reads
    ("[" * 100_000 + "]" * 100_000, "1", 0.0),
]


def test_json_answers() -> None:
    rows = score("json_answer", [text for text, _, _ in ANSWERS], [answer for _, answer, _ in ANSWERS], [None] * 16)
    for row, (text, _, value) in zip(rows, ANSWERS, strict=True):
        assert row["reward"] == pytest.approx(value), text[:50]
        assert row["is_correct"] is (value == 1), text[:50]
        assert row["score_error"] is None, text[:50]


def test_a_schema_alone_can_decide() -> None:
    schema = {
        "schema": {
            "type": "array",
            "minItems": 2,
            "items": {"$ref": "#/$defs/one"},
            "$defs": {"one": {"type": "integer"}},
        }
    }
    rows = score("json_answer", ["[1, 2]", "[1]", '["a", "b"]'], [None] * 3, [schema] * 3)
    assert [row["is_correct"] for row in rows] == [True, False, False]


def test_json_references_that_cannot_be_used_are_data_errors() -> None:
    bad: list[tuple[str | None, Any, str]] = [
        (None, None, "answer: it is null, and so is metadata"),
        (None, {}, "answer: it is null, and metadata has no schema"),
        ("Paris", None, "answer: 'Paris' is not valid JSON"),
        ("1", "[]", "metadata: it is a JSON list, not an object"),
        ("1", {"schema": {"type": "objekt"}}, "metadata: schema: it is no JSON Schema"),
        ("1", {"schema": {"$ref": "http://localhost/x"}}, "metadata: schema: it refers to 'http://localhost/x'"),
        (
            "1",
            {"schema": {"type": "string"}},
            "answer: the prompt's own schema refuses it: it: 1 is not of type 'string'",
        ),
    ]
    rows = score("json_answer", ["1"] * 7, [answer for answer, _, _ in bad], [metadata for _, metadata, _ in bad])
    for row, (_, _, reason) in zip(rows, bad, strict=True):
        assert row["score_error"].startswith(reason), row
        assert (row["is_correct"], row["reward"]) == (None, None)


def test_a_pattern_that_never_ends_is_stopped() -> None:
    metadata = {"schema": {"type": "string", "pattern": "^(a|aa)+$"}}
    texts = ['"aaa"', json.dumps("a" * 60 + "b"), '"b"']
    rows = score("json_answer", texts, [None] * 3, [metadata] * 3, json_answer={"time_limit_seconds": 0.5})
    assert [row["is_correct"] for row in rows] == [True, False, False]
    assert [row["score_error"] for row in rows] == [None, "timeout: it took more than 0.5 s", None]


WEATHER = {"name": "weather", "arguments": {"city": "Paris", "days": 3}}
CLOCK = {"name": "clock", "arguments": {}}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "required": ["city"]}}},
    {"name": "clock", "parameters": {"type": "object", "additionalProperties": False}},
]


def tagged(*calls: Any) -> str:
    return "I look it up.\n" + "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


def changed(**arguments: Any) -> dict[str, Any]:
    return {"name": "weather", "arguments": arguments}


# ToolRL: names (Jaccard) + argument names (Jaccard) + right arguments, over 1 + calls + arguments, here 1 + 1 + 2 = 4.
ONE_CALL: list[tuple[str, float]] = [
    (tagged(WEATHER), 1.0),
    (tagged({"name": "weather", "arguments": json.dumps(WEATHER["arguments"])}), 1.0),
    (tagged({"function": WEATHER}), 1.0),
    (tagged(changed(days=3.0, city="Paris")), 1.0),
    (tagged(changed(city="Paris", days=4)), 3 / 4),  # 1 + 1 + 1
    (tagged(changed(city="Paris", days="3")), 3 / 4),
    (tagged(changed(city="Paris")), 2.5 / 4),  # 1 + 1/2 + 1
    (tagged(changed(city="Paris", days=3, unit="C")), (1 + 2 / 3 + 2) / 4),
    (tagged(changed(city="Rome", days=4)), 2 / 4),
    (tagged(changed(days=3)), 1 / 4),  # its tool wants a city: only the name is right
    (tagged(WEATHER, WEATHER), 3.5 / 4),  # names 1/2
    (tagged(WEATHER, CLOCK), 3.5 / 4),
    (tagged(CLOCK), 0.0),
    ("It is sunny.", 0.0),
    ("<tool_call>{'name': 'weather'}</tool_call>", 0.0),
    (tagged(WEATHER).removesuffix("}\n</tool_call>"), 0.0),
    (tagged(WEATHER) + "<tool_call>", 0.0),  # cut off in the second
    (tagged(*[CLOCK] * 65), 0.0),
]


def test_tool_calls() -> None:
    n = len(ONE_CALL)
    metadata = [{"tool_calls": [WEATHER], "tools": TOOLS}] * n
    rows = score("tool_calls", [text for text, _ in ONE_CALL], [None] * n, metadata)
    for row, (text, value) in zip(rows, ONE_CALL, strict=True):
        assert row["reward"] == pytest.approx(value), text[:120]
        assert row["is_correct"] is (value == 1), text[:120]
        assert row["score_error"] is None


def test_several_calls_and_none() -> None:
    both: dict[str, Any] = {"tool_calls": [WEATHER, CLOCK]}
    neither: dict[str, Any] = {"tool_calls": []}
    texts = [tagged(CLOCK, WEATHER), tagged(WEATHER), "No need.", tagged(CLOCK)]
    rows = score("tool_calls", texts, [None] * 4, [both, both, neither, neither])
    # names 1/2, then 1 + 2 of the weather, of 1 + 2 + 2
    assert [row["reward"] for row in rows] == [1.0, pytest.approx(3.5 / 5), 1.0, 0.0]


def test_calls_may_be_the_whole_completion() -> None:
    texts = [json.dumps([WEATHER]), json.dumps(WEATHER), tagged(WEATHER)]
    metadata = [{"tool_calls": [WEATHER]}] * 3
    rows = score("tool_calls", texts, [None] * 3, metadata, tool_calls={"extract": "whole"})
    assert [row["is_correct"] for row in rows] == [True, True, False]


def test_tool_references_that_cannot_be_used_are_data_errors() -> None:
    bad: list[tuple[Any, str]] = [
        (None, "metadata: it is null, and the verifier tool_calls needs tool_calls in it"),
        ({}, "metadata: it has no tool_calls of name and arguments (KeyError"),
        ({"tool_calls": [{"name": "x"}]}, "metadata: it has no tool_calls of name and arguments (KeyError"),
        (
            {"tool_calls": [{"name": "x", "arguments": [1]}]},
            "metadata: it has no tool_calls of name and arguments (Type",
        ),
        (
            {"tool_calls": [changed(days=1)], "tools": TOOLS},
            "metadata: tool_calls: its own tools refuse the call of 'wea",
        ),
        (
            {"tool_calls": [], "tools": [{"name": "x", "parameters": {"type": 3}}]},
            "metadata: tools: x: it is no JSON Sch",
        ),
    ]
    rows = score("tool_calls", [tagged(WEATHER)] * 6, [None] * 6, [metadata for metadata, _ in bad])
    for row, (_, reason) in zip(rows, bad, strict=True):
        assert row["score_error"].startswith(reason), row
        assert (row["is_correct"], row["reward"]) == (None, None)
