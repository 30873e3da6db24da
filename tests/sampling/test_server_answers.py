"""Every way in which an answer of a server can be wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pipeline.sampling.server_answers import Expected, read_answer
from pipeline.sampling.stopping import Stops

END = 2
STOPS = Stops(end_token_ids=frozenset({END, 9}), strings=(), min_tokens=0, max_tokens=4)


def expected(**changes: Any) -> Expected:
    given: dict[str, Any] = {"model": "m", "prompt_token_ids": [5, 6], "n": 2, "n_vocabulary": 10, "stops": STOPS}
    return Expected(**given | changes)


def choice(index: int, ids: list[Any], reason: Any = "stop", logprobs: list[Any] | None = None) -> dict[str, Any]:
    given = [-0.5] * len(ids) if logprobs is None else logprobs
    return {"index": index, "token_ids": ids, "finish_reason": reason, "logprobs": {"token_logprobs": given}}


def body(*choices: dict[str, Any], model: str = "m") -> bytes:
    return json.dumps({"model": model, "choices": choices, "usage": {}}).encode()


GOOD = choice(0, [4, END])


def test_completions_come_by_their_index() -> None:
    answer = body(choice(1, [4, 5, 6, 7], "length"), {**GOOD, "prompt_token_ids": [5, 6]})
    assert [(each.token_ids, each.finish_reason) for each in read_answer(answer, expected())] == [
        ([4, END], "stop"),
        ([4, 5, 6, 7], "length"),
    ]


def test_an_end_token_in_the_last_permitted_place_and_one_before_enough_tokens_are_right() -> None:
    assert read_answer(body(choice(0, [4, 5, 6, 9])), expected(n=1))[0].finish_reason == "stop"
    # Before the place 2 a token that is an end token later on ends nothing.
    assert read_answer(body(choice(0, [4, END, 9])), expected(n=1, stops=replace(STOPS, min_tokens=2)))


def test_text_may_stop_a_completion_where_there_are_stop_strings() -> None:
    assert read_answer(body(choice(0, [4, 5])), expected(n=1, stops=replace(STOPS, strings=("a",))))


def test_rounding_may_put_a_log_probability_just_above_zero() -> None:
    assert read_answer(body(choice(0, [END], logprobs=[1e-6])), expected(n=1))


WRONG: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", r"Invalid JSON"),
    "no JSON": (b"<html>502</html>", r"Invalid JSON.*it begins with '<html>502"),
    "cut off": (body(GOOD)[:-9], r"Invalid JSON"),
    "a list": (b"[]", r"Input should be an object"),
    "no choices": (b'{"model": "m"}', r"choices: Field required"),
    "another model": (body(GOOD, model="other"), r"from the model 'other', and 'm' was asked"),
    "too few completions": (body(GOOD), r"it has 1 completions, and 2 were asked for"),
    "the same one twice": (body(GOOD, GOOD), r"it has 2 completions, and 2 were asked for"),
    "no tokens": (body(choice(0, []), choice(1, [END])), r"completion 0 has 0 tokens, which is not between 1 and 4"),
    "too many tokens": (body(GOOD, choice(1, [4, 4, 4, 4, END])), r"completion 1 has 5 tokens"),
    "fewer log-probabilities": (
        body(choice(0, [4, END], logprobs=[-1]), GOOD | {"index": 1}),
        r"has 1 log-prob.* for 2",
    ),
    "more log-probabilities": (
        body(choice(0, [END], logprobs=[-1, -1]), GOOD | {"index": 1}),
        r"has 2 log-prob.* for 1",
    ),
    "no log-probabilities": (
        body({**GOOD, "logprobs": None}),
        r"choices\.0\.logprobs: Input should be an object",
    ),
    "a log-probability that is null": (body(choice(0, [4, END], logprobs=[None, -1])), r"token_logprobs\.0"),
    "not a number": (body(choice(0, [END], logprobs=[float("nan")])), r"token_logprobs\.0: .*finite"),
    "minus infinity": (body(choice(0, [END], logprobs=[float("-inf")])), r"token_logprobs\.0: .*finite"),
    "above zero": (body(choice(0, [END], logprobs=[0.5])), r"token_logprobs\.0: .*less than or equal to 0\.001"),
    "a token in words": (body(choice(0, ["4", END])), r"token_ids\.0: Input should be a valid integer"),
    "a fraction of a token": (body(choice(0, [4.5, END])), r"token_ids\.0: Input should be a valid integer"),
    "a token below zero": (body(choice(0, [-1, END])), r"token_ids\.0: .*greater than or equal to 0"),
    "a token beyond the vocabulary": (body(choice(0, [10, END]), choice(1, [END])), r"has the token 10, .* ends at 9"),
    "another prompt": (body({**GOOD, "prompt_token_ids": [5]}, choice(1, [END])), r"is of another prompt"),
    "on after the end": (body(choice(0, [END, 4, END]), choice(1, [END])), r"goes on after an end token"),
    "cut off early": (body(choice(0, [4, 5], "length"), choice(1, [END])), r"is cut off after 2 of 4 tokens"),
    "stopped at no end": (body(choice(0, [4, 5]), choice(1, [END])), r"stops at the token 5, which is no end token"),
    "aborted": (body(choice(0, [4], "abort"), choice(1, [END])), r"finish_reason: Input should be 'stop' or 'length'"),
    "unfinished": (body(choice(0, [4], None), choice(1, [END])), r"finish_reason"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    content, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        read_answer(content, expected())
