"""The terms of structure: tags, and JSON that obeys a schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.rewards.completion import Unscored
from pipeline.rewards.terms import json_schema, tags
from tests.rewards.completions import completion

GOOD = "<think>2 + 2</think>\n<answer>4</answer>\n"


@pytest.mark.parametrize(
    ("text", "strict", "around"),
    [
        (GOOD, 1.0, 1.0),
        ("Well. " + GOOD + "Done.", 0.0, 1.0),
        ("<think>2</think> so <answer>4</answer>", 0.0, 1.0),
        ("<answer>4</answer><think>2</think>", 0.0, 0.0),
        ("<think>2 <answer>4</answer></think>", 0.0, 0.0),  # one within the other
        ("<think>2</think><answer>4</answer><answer>5</answer>", 0.0, 0.0),
        ("<think>2</think><answer>4", 0.0, 0.0),
        ("<think>say <answer> first</think><answer>4</answer>", 0.0, 0.0),  # which of the two is it?
        ("<THINK>2</THINK><answer>4</answer>", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_tags(text: str, strict: float, around: float) -> None:
    assert tags.score(completion(text), tags.Params(tags=["think", "answer"])) == strict
    assert tags.score(completion(text), tags.Params(tags=["think", "answer"], allow_around=True)) == around


def test_the_prompt_may_end_with_the_first_opening_tag() -> None:
    params = tags.Params(tags=["think", "answer"], is_opened=True)
    assert tags.score(completion(GOOD.removeprefix("<think>")), params) == 1.0
    assert tags.score(completion(GOOD), params) == 0.0


def test_a_tag_has_a_name() -> None:
    with pytest.raises(ValidationError):
        tags.Params(tags=["<think>"])
    with pytest.raises(ValidationError, match="it names a tag twice"):
        tags.Params(tags=["think", "think"])


SCHEMA = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string", "maxLength": 9}}}


def judge(text: str, metadata: Any = None, **params: Any) -> float | Unscored | None:
    packed = None if metadata is None else json.dumps(metadata)
    return json_schema.score(completion(text, metadata=packed), json_schema.Params.model_validate(params))


def test_json_schema_of_the_params() -> None:
    texts = ['{"city": "Paris"}', '{"city": 3}', "{'city': 'Paris'}", "Paris", '{"city": "Paris"} it is', ""]
    assert [judge(text, must_match=SCHEMA) for text in texts] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_json_schema_of_the_prompt() -> None:
    assert [judge(text, {"schema": SCHEMA}) for text in ('{"city": "Rome"}', "{}")] == [1.0, 0.0]
    assert judge("{}", {"schema": SCHEMA}, must_match={}) == 1.0
    assert judge("{}", {"other": 1}) is None
    assert judge("{}") is None


def test_a_schema_of_the_prompt_that_cannot_be_used_judges_nothing() -> None:
    problem = judge("{}", {"schema": {"$ref": "https://example.com/schema.json"}})
    assert isinstance(problem, Unscored)
    assert problem.reason.startswith("metadata: schema: it refers to 'https://example.com/schema.json'")
    assert judge("{}", [1]) == Unscored("metadata: it is a JSON list, not an object with the key schema")


def test_json_nested_too_deep_for_its_schema_is_wrong() -> None:
    lists = {"type": "array", "items": {"$ref": "#"}}
    assert [judge("[" * n + "]" * n, must_match=lists) for n in (3, 400)] == [1.0, 0.0]


def test_json_stands_where_extract_says() -> None:
    block = 'It is\n```json\n{"city": "Paris"}\n```\nas you see.'
    assert judge(block, must_match=SCHEMA) == 0.0
    assert judge(block, must_match=SCHEMA, extract="code_block") == 1.0
    assert judge('<answer>{"city": "Paris"}</answer>', must_match=SCHEMA, extract="answer_tag") == 1.0


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "objekt"}, "it is no JSON Schema: 'objekt'"),
        ({"pattern": "("}, r"it is no JSON Schema: '\(' is not a 'regex'"),
        ({"$ref": "https://example.com/schema.json"}, "it refers to 'https://example.com/schema.json', and only"),
        ({"items": {"$ref": "file:///etc/passwd"}}, "it refers to 'file:///etc/passwd', and only"),
        ({"$ref": "#/$defs/absent"}, "it is no JSON Schema: PointerToNowhere"),
        ({"$ref": "#"}, "it is no JSON Schema: maximum recursion depth"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        json_schema.Params(must_match=schema)
