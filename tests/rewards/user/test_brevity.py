"""The term `brevity`: a worked example of a test of a term."""

from __future__ import annotations

import pytest

from pipeline.rewards.user import brevity
from tests.rewards.completions import completion


@pytest.mark.parametrize(("text", "value"), [("", 1.0), ("abcd", 0.6), ("a" * 10, 0.0), ("a" * 15, 0.0)])
def test_a_shorter_completion_gets_more(text: str, value: float) -> None:
    # 1 - 4 / 10 for four characters of ten
    assert brevity.score(completion(text), brevity.Params(max_characters=10)) == pytest.approx(value)


def test_a_completion_that_was_cut_off_is_not_judged() -> None:
    assert brevity.score(completion("abcd", finish_reason="length"), brevity.Params()) is None
