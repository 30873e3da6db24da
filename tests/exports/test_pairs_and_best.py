from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from pipeline.exports.best import best_completions
from pipeline.exports.pairs import preference_pairs


def completions(*rows: tuple[str, str, float | None, bool | None]) -> pl.LazyFrame:
    """Completions of the group and prompt that a row begins with: group, text, reward, verdict."""
    made: list[dict[str, Any]] = [
        {
            "run": "demo",
            "iteration": int(group[0]),
            "commit": "ab",
            "prompt_id": group[1:],
            "group_id": group,
            "completion_id": f"{group}/{place}",
            "completion_index": place,
            "prompt": [{"role": "user", "content": group}],
            "completion_text": text,
            "reward": reward,
            "is_correct": is_correct,
        }
        for place, (group, text, reward, is_correct) in enumerate(rows)
    ]
    return pl.LazyFrame(made, schema_overrides={"reward": pl.Float64, "is_correct": pl.Boolean})


GROUPS = completions(
    ("0p", "five", 0.4, False),
    ("0p", "four", 1.0, True),
    ("0p", "4", 1.0, True),
    ("0p", "six", 0.4, False),
    ("0p", "?", None, None),
    ("1q", "a", 0.25, False),
    ("1q", "b", 0.75, True),
    ("2r", "same", 0.0, None),
    ("2r", "same", 1.0, None),
    ("3s", "alone", 1.0, True),
)


def test_the_best_stands_against_the_worst_of_its_group() -> None:
    rows = preference_pairs(GROUPS, 0.5).collect().rows(named=True)
    # Of p the first with 1.0 and the first with 0.4; of q 0.75 against 0.25, which is just 0.5 apart.
    assert [(row["chosen"][0]["content"], row["rejected"][0]["content"], row["margin"]) for row in rows] == [
        ("four", "five", pytest.approx(0.6)),
        ("b", "a", 0.5),
    ]
    assert [(row["chosen_id"], row["rejected_id"]) for row in rows] == [("0p/1", "0p/0"), ("1q/6", "1q/5")]
    assert rows[0]["prompt"] == [{"role": "user", "content": "0p"}]
    assert (rows[0]["chosen_is_correct"], rows[0]["rejected_is_correct"]) == (True, False)


def test_a_margin_just_missed_makes_no_pair() -> None:
    assert preference_pairs(GROUPS, 0.51).collect()["group_id"].to_list() == ["0p"]


def test_without_a_margin_equal_rewards_of_one_completion_make_no_pair() -> None:
    assert preference_pairs(GROUPS, 0.0).collect()["group_id"].to_list() == ["0p", "1q"]


def test_the_best_of_a_prompt_are_right_and_the_shorter_ones_first() -> None:
    rows = best_completions(GROUPS, 1, None).collect().rows(named=True)
    assert [(row["prompt_id"], row["completion"][0]["content"]) for row in rows] == [
        ("p", "4"),
        ("q", "b"),
        ("r", "same"),
        ("s", "alone"),
    ]


def test_a_text_counts_once_and_a_reward_can_be_asked_for() -> None:
    again = completions(
        ("0p", "4", 1.0, True), ("1p", "4", 1.0, True), ("2p", "four", 1.0, True), ("2p", " ", 1.0, True)
    )
    rows = best_completions(again, 5, 1.0).collect()
    assert rows["completion_id"].to_list() == ["1p/1", "2p/2"]  # of the two 4s the later iteration's
    assert best_completions(again, 5, 1.01).collect().height == 0


def test_trl_takes_the_rows_for_conversations() -> None:
    trl = pytest.importorskip("trl.data_utils")
    for rows in (preference_pairs(GROUPS, 0.5), best_completions(GROUPS, 1, None)):
        assert trl.is_conversational(rows.collect().row(0, named=True))
