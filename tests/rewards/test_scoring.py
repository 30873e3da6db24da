"""The frame of verdicts and rewards: composition, order, and what is refused at the start."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import BadInput
from pipeline.params import ScoreParams
from pipeline.rewards import registry, scoring
from pipeline.rewards.scoring import score_completions, whole_groups
from pipeline.tables import REWARDS
from tests.rewards import user_terms
from tests.rewards.frames import CORRECT, prompts, rollouts


def params(**sections: Any) -> ScoreParams:
    return ScoreParams.model_validate({"math": {"extract": "last_number"}, "terms": CORRECT, **sections})


def test_reward_is_the_weighted_sum_of_the_terms() -> None:
    mixed = {
        "correct": {"weight": 1.0},
        "short": {"weight": 0.25, "kind": "format", "params": {"pattern": r"\d"}},
        "wordy": {"weight": -0.5, "kind": "format", "params": {"pattern": "[a-z]", "full_match": False}},
    }
    scores = score_completions(rollouts(["7", "8", "it is 7", "12"]), prompts(["7"] * 4), params(terms=mixed))
    # 1 + 0.25, 0.25, 1 - 0.5, 0
    assert scores["reward"].to_list() == [1.25, 0.25, 0.5, 0.0]
    assert scores["is_correct"].to_list() == [True, False, True, False]
    assert scores["extracted_answer"].to_list() == ["7", "8", "7", "12"]
    assert scores["reward_short"].to_list() == [1.0, 1.0, 0.0, 0.0]
    assert scores["reward_wordy"].to_list() == [0.0, 0.0, 1.0, 0.0]
    assert scores["score_error"].to_list() == [None] * 4
    assert scores.columns[:5] == ["completion_id", "reward", "is_correct", "extracted_answer", "reward_correct"]
    for name, dtype in scores.schema.items():
        assert dtype == REWARDS.schema.get(name, pl.Float64)


def test_is_correct_comes_from_the_verifier_also_where_no_term_uses_it() -> None:
    only = {"format": {"weight": 1.0, "params": {"pattern": ".*"}}}
    scores = score_completions(rollouts(["7", "8"]), prompts(["7"] * 2), params(terms=only))
    assert scores["is_correct"].to_list() == [True, False]
    assert scores["reward"].to_list() == [1.0, 1.0]


def test_an_answer_comes_after_the_reasoning() -> None:
    texts = ["5 and 2, so 7</think>It is 7.", "It is 7.</think>It is 8.", "5 and 2, so 7", "no</think>8</think>7"]
    # The prompt opened the block, so that none of these does; the term sees all of a completion.
    closed = {
        "correct": {"weight": 1.0},
        "tags": {"weight": 0.5, "params": {"tags": ["think"], "is_opened": True, "allow_around": True}},
    }
    given = params(terms=closed, answer_after="</think>", shadow_verifiers=["json_answer"])
    scores = score_completions(rollouts(texts), prompts(["7"] * 4), given)
    assert scores["extracted_answer"].to_list() == ["7", "8", None, "7"]
    assert scores["is_correct"].to_list() == [True, False, False, True]
    assert scores["reward_tags"].to_list() == [1.0, 1.0, 0.0, 0.0]
    # Without it, a number within a block that never closes is taken for an answer.
    assert score_completions(rollouts(texts[2:3]), prompts(["7"]), params())["is_correct"].to_list() == [True]


def test_a_null_term_makes_the_reward_null_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "user", user_terms)
    both = {"correct": {"weight": 1.0}, "mine": {"weight": 0.5, "kind": "obedient"}}
    texts = ["7", "none", "7", "raise"]
    scores = score_completions(rollouts(texts), prompts(["7", "7", "", ""]), params(terms=both))
    assert scores["reward"].to_list() == [2.0, None, None, None]  # 1 + 0.5 * 2
    assert scores["reward_mine"].to_list() == [2.0, None, 1.0, None]
    assert scores["reward_correct"].to_list() == [1.0, 0.0, None, None]
    assert scores["is_correct"].to_list() == [True, False, None, None]
    unreadable = "answer: the prompt's is '', so there is nothing to compare with"
    assert scores["score_error"].to_list() == [
        None,
        "mine: it can't judge this completion",
        unreadable,
        f"{unreadable}; mine: ValueError: as told",
    ]


def test_a_reason_that_no_table_can_hold_is_written_as_far_as_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "user", user_terms)
    scores = score_completions(rollouts(["half"]), prompts(["7"]), params(terms={"obedient": {"weight": 1.0}}))
    assert scores["score_error"].to_list() == ["obedient: half of a pair: ?"]


def test_a_sum_beyond_floating_point_is_null() -> None:
    huge = {"a": {"weight": 1e308, "kind": "correct"}, "b": {"weight": 1e308, "kind": "correct"}}
    scores = score_completions(rollouts(["7"]), prompts(["7"]), params(terms=huge))
    assert scores["reward"].to_list() == [None]
    assert scores["score_error"].to_list() == ["reward: the weighted sum is not finite"]


def test_n_in_n_out_in_the_order_they_came() -> None:
    n = 100
    ids = [f"p{(7 * i) % 20}" for i in range(n)]
    # Some answers are decided at once, others by a worker, and one worker is killed.
    texts = [rf"\boxed{{\sqrt{{{i}}}}}" if i % 3 else rf"\boxed{{{i}}}" for i in range(n)]
    texts[40] = r"\boxed{2003^{2002^{2001}}}"
    answers: list[str | None] = [rf"\sqrt{{{i}}}" for i in range(20)]
    seen: list[int] = []
    asked = params(math={"extract": "boxed", "time_limit_seconds": 1.0})
    scores = score_completions(rollouts(texts, ids), prompts(answers), asked, lambda n, _: seen.append(n))
    assert scores["completion_id"].to_list() == [f"c{i}" for i in range(n)]
    assert sum(seen) == n
    # sqrt(i) is the root of its own prompt's number, and a bare i where that is i * i
    expected = [i != 40 and (7 * i) % 20 == (i if i % 3 else i * i) for i in range(n)]
    assert scores["is_correct"].to_list() == expected
    assert scores["score_error"].drop_nulls().to_list() == ["timeout: it took more than 1 s"]


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text(max_size=30).map(lambda text: rf"\boxed{{{text}}}"), max_size=20))
def test_any_text_is_scored(texts: list[str]) -> None:
    asked = params(math={"extract": "boxed"}, terms={"format": {"weight": 1.0, "params": {"pattern": ".*"}}})
    scores = score_completions(rollouts(texts), prompts([r"\frac{x}{2}"] * len(texts)), asked)
    assert scores["completion_id"].to_list() == [f"c{i}" for i in range(len(texts))]
    assert scores["reward"].null_count() == 0
    assert scores["is_correct"].null_count() == 0


def test_no_completions_give_no_rows() -> None:
    scores = score_completions(rollouts([]), prompts(["7"]), params())
    assert scores.height == 0
    assert scores.schema["reward_correct"] == pl.Float64


def test_without_a_verifier_there_is_no_verdict() -> None:
    unverified = prompts([None, None], "none")
    only = {"format": {"weight": 1.0, "params": {"pattern": r"\d"}}}
    scores = score_completions(rollouts(["7", "x"]), unverified, params(terms=only))
    assert scores["is_correct"].to_list() == [None, None]
    assert scores["reward"].to_list() == [1.0, 0.0]
    assert scores["score_error"].to_list() == [None, None]
    with pytest.raises(BadInput, match=r"params\.yaml: score\.terms\.correct: it needs a verdict, and prompt p0"):
        score_completions(rollouts(["7", "x"]), unverified, params())


def test_a_gated_term_needs_a_verdict() -> None:
    gated = {"format": {"weight": 1.0, "gated": True, "params": {"pattern": r"\d"}}}
    with pytest.raises(BadInput, match=r"params\.yaml: score\.terms\.format: it needs a verdict, and prompt p0"):
        score_completions(rollouts(["7"]), prompts([None], "none"), params(terms=gated))
    scores = score_completions(rollouts(["7", "8", "7"]), prompts(["7", "7", ""]), params(terms=gated))
    assert scores["reward"].to_list() == [1.0, 0.0, None]
    assert scores["score_error"][2] == "answer: the prompt's is '', so there is nothing to compare with"


def test_verifiers_may_be_mixed() -> None:
    mixed = prompts(["7", "7"]).with_columns(verifier=pl.Series(["math", "none"]))
    only = {"format": {"weight": 1.0, "params": {"pattern": r"\d"}}}
    scores = score_completions(rollouts(["7", "7"]), mixed, params(terms=only))
    assert scores["is_correct"].to_list() == [True, None]


def test_an_unknown_verifier_is_refused() -> None:
    message = r"data/prompts\.parquet: prompt p0: there is no verifier 'maths'\. Set prompts\.verifier to one of math"
    with pytest.raises(BadInput, match=message):
        score_completions(rollouts(["7"]), prompts(["7"], "maths"), params())


def test_a_prompt_that_is_missing_is_refused() -> None:
    message = r"data/rollouts\.parquet: row 1: prompt_id 'p9' is not in data/prompts\.parquet"
    with pytest.raises(BadInput, match=message):
        score_completions(rollouts(["7", "7"], ["p0", "p9"]), prompts(["7"]), params())


def test_a_shadow_verifier_is_recorded_and_never_rewarded() -> None:
    mixed = prompts(["7", "1,000", None, '{"a": 1}']).with_columns(
        verifier=pl.Series(["math", "math", "none", "json_answer"])
    )
    only = {"format": {"weight": 1.0, "params": {"pattern": ".*"}}}
    asked = params(terms=only, shadow_verifiers=["json_answer", "math"])
    scores = score_completions(rollouts(["7", "1,000", "7", '{"a": 1}']), mixed, asked)
    assert scores["is_correct"].to_list() == [True, True, None, True]
    assert scores["is_correct_json_answer"].to_list() == [True, None, None, True]  # 1,000 is no JSON
    assert scores["is_correct_math"].to_list() == [True, True, None, False]
    assert scores["reward"].to_list() == [1.0] * 4
    errors = scores["score_error"].to_list()
    assert errors[0] is None
    assert errors[1] == "shadow json_answer: answer: '1,000' is not valid JSON"
    assert errors[2].startswith("shadow json_answer: answer: it is null")
    assert errors[3] is None
    assert all(REWARDS.type_of(name) == dtype for name, dtype in scores.schema.items())


def test_batches_are_whole_groups_however_the_rows_come() -> None:
    sizes = [3, 1, 4, 2, 2]
    rows = rollouts(["x"] * 12, [f"p{i}" for i, size in enumerate(sizes) for _ in range(size)])
    for n_rows, heights in ((1, [3, 1, 4, 2, 2]), (4, [4, 4, 4]), (5, [8, 4]), (12, [12]), (99, [12])):
        for step in (1, 2, 5, 12):
            batches = list(whole_groups((rows.slice(start, step) for start in range(0, 12, step)), n_rows))
            assert [batch.height for batch in batches] == heights, (n_rows, step)
            assert pl.concat(batches).equals(rows)


def test_scores_do_not_depend_on_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "user", user_terms)
    both = {"correct": {"weight": 1.0}, "share": {"weight": 0.5}}
    ids = [f"p{i // 4}" for i in range(40)]
    texts = [rf"\boxed{{{i}\sqrt{{2}}}}" if i % 3 else rf"\boxed{{{i}}}" for i in range(40)]
    answers: list[str | None] = [rf"{4 * i + 1}\sqrt{{2}}" for i in range(10)]
    asked = params(math={"extract": "boxed"}, terms=both)
    whole = score_completions(rollouts(texts, ids), prompts(answers), asked)
    monkeypatch.setattr(scoring, "BATCH_COMPLETIONS", 7)
    assert score_completions(rollouts(texts, ids), prompts(answers), asked).equals(whole)
    assert whole["is_correct"].sum() == sum(1 for i in range(40) if i % 4 == 1 and i % 3)


def test_a_term_of_the_whole_iteration_sees_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "user", user_terms)
    monkeypatch.setattr(scoring, "BATCH_COMPLETIONS", 2)
    only = {"rank": {"weight": 1.0}}
    scores = score_completions(rollouts(["a" * i for i in range(9)]), prompts(["7"] * 9), params(terms=only))
    assert scores["reward"].to_list() == [float(i) for i in range(9)]


def test_the_inputs_are_left_alone() -> None:
    given_rollouts, given_prompts = rollouts(["7"]), prompts(["7"])
    score_completions(given_rollouts, given_prompts, params())
    assert given_rollouts.equals(rollouts(["7"]))
    assert given_prompts.equals(prompts(["7"]))
