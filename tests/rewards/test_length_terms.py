"""The terms of length and repetition, with numbers worked by hand from their papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.rewards.terms import cosine_length, overlong, repetition
from tests.rewards.completions import completion

METRICS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden/metrics.json").read_text("utf-8"))
(OVERLONG,) = (case for case in METRICS if case["name"] == "overlong")


@pytest.mark.parametrize(("n_tokens", "penalty"), [*zip(OVERLONG["lengths"], OVERLONG["penalty"], strict=True)])
def test_overlong(n_tokens: int, penalty: float) -> None:
    params = overlong.Params(max_tokens=100, buffer_tokens=20)
    assert overlong.score(completion(completion_token_ids=range(n_tokens)), params) == pytest.approx(penalty)


def test_overlong_counts_tokens_and_not_characters() -> None:
    params = overlong.Params(max_tokens=4, buffer_tokens=2)
    assert overlong.score(completion("many letters", completion_token_ids=[1, 2, 3]), params) == -0.5
    with pytest.raises(ValidationError, match="buffer_tokens 5 is more than max_tokens 4"):
        overlong.Params(max_tokens=4, buffer_tokens=5)


# cos(0) = 1, cos(pi / 3) = 0.5, cos(pi / 2) = 0, cos(2 pi / 3) = -0.5
@pytest.mark.parametrize(
    ("n_tokens", "correct", "wrong"),
    [
        (0, 2.0, -10.0),
        (20, 1 + 0.75, -7.5),  # 1 + (2 - 1) * 1.5 / 2, and 0 + (-10 - 0) * 1.5 / 2
        (30, 1.5, -5.0),
        (40, 1.25, -2.5),
        (60, -10.0, -10.0),
        (61, -10.0, -10.0),
    ],
)
def test_cosine_length(n_tokens: int, correct: float, wrong: float) -> None:
    params = cosine_length.Params(max_tokens=60)
    for is_correct, value in ((True, correct), (False, wrong)):
        given_completion = completion(completion_token_ids=range(n_tokens), is_correct=is_correct)
        assert cosine_length.score(given_completion, params) == pytest.approx(value)


def test_cosine_length_of_what_was_cut_off_and_of_what_has_no_verdict() -> None:
    params = cosine_length.Params(max_tokens=60, exceeded=-3.0)
    assert cosine_length.score(completion(finish_reason="length"), params) == -3.0
    assert cosine_length.score(completion(is_correct=None), params) is None


@pytest.mark.parametrize(
    ("token_ids", "n", "fraction"),
    [
        ([], 2, 0.0),
        ([1], 2, 0.0),
        ([1, 2, 3, 4], 2, 0.0),
        ([1, 2, 1, 2], 2, 2 / 4),  # the second 1, 2
        ([1, 1, 1, 1], 2, 3 / 4),  # 1, 1 again at 1 and at 2: tokens 1 to 3
        ([1, 2, 3, 1, 2, 3, 1, 2], 3, 5 / 8),  # 1, 2, 3 again at 3; 2, 3, 1 at 4; 3, 1, 2 at 5: tokens 3 to 7
        ([1, 2, 9, 1, 2, 8, 1, 2], 2, 4 / 8),  # 1, 2 again at 3 and at 6
        ([7] * 5, 1, 4 / 5),
    ],
)
def test_repetition(token_ids: list[int], n: int, fraction: float) -> None:
    assert repetition.repeated_fraction(token_ids, n) == pytest.approx(fraction)
    params = repetition.Params(ngram_tokens=n)
    assert repetition.score(completion(completion_token_ids=token_ids), params) == pytest.approx(-fraction)


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 5))
def test_repetition_is_what_a_plain_loop_marks(token_ids: list[int], n: int) -> None:
    marked: set[int] = set()
    for start in range(len(token_ids) - n + 1):
        ngram = token_ids[start : start + n]
        if any(token_ids[earlier : earlier + n] == ngram for earlier in range(start)):
            marked.update(range(start, start + n))
    assert repetition.repeated_fraction(token_ids, n) == (len(marked) / len(token_ids) if token_ids else 0.0)
