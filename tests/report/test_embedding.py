from __future__ import annotations

import json

import polars as pl
import pytest

from pipeline.errors import BadInput
from pipeline.report import embedding
from pipeline.report.embedding import MAX_COMPLETIONS_OF_GROUP, as_script, embed_groups, fair_limit, sign_names
from tests.iteration_sample import lazy_tables, sample_frames
from tests.report.hostile import HOSTILE

MIXED = "0000/0000000000000000"


def test_nothing_in_the_json_can_leave_its_element() -> None:
    for text in HOSTILE:
        written = as_script({"text": text})
        assert not set(written) & set("<>&\u2028\u2029")
        assert json.loads(written)["text"] == text


def test_a_group_has_its_prompt_and_its_completions_best_first() -> None:
    (group,) = embed_groups(lazy_tables(sample_frames()), [MIXED])
    assert (group["outcome"], group["answer"], group["position"]) == ("mixed", "5", 0)
    assert group["messages"][0]["text"].startswith("State the final answer")
    # Rewards 1, 0, 0, 1: the best first, equals by their place in the group.
    assert [completion["completion_index"] for completion in group["completions"]] == [0, 3, 1, 2]
    assert group["completions"][1]["reward_format"] == 1.0
    assert group["completions"][1]["advantage"] == 0.5
    assert "completion_token_ids" not in group["completions"][0]


def test_groups_come_in_the_order_that_is_asked_for() -> None:
    wanted = [f"0000/{number:016x}" for number in (9, 2, 15)]
    groups = embed_groups(lazy_tables(sample_frames()), wanted)
    assert [group["group_id"] for group in groups] == wanted
    # Unscorable completions come last.
    assert [completion["reward"] for completion in groups[2]["completions"]] == [0.0, None, None, None]


def test_a_huge_group_is_cut_with_a_count() -> None:
    frames = sample_frames(outcomes=["mixed"])
    n = MAX_COMPLETIONS_OF_GROUP + 36
    for name in ("rollouts", "rewards", "advantages"):
        one = pl.concat([frames[name].head(1)] * n)
        frames[name] = one.with_columns(completion_id=pl.format("c{}", pl.int_range(n)))
    (group,) = embed_groups(lazy_tables(frames), [MIXED])
    assert (len(group["completions"]), group["n_left_out"]) == (64, 36)


def test_a_group_without_its_prompt_is_named() -> None:
    frames = sample_frames()
    frames["prompts"] = frames["prompts"].tail(-1)
    with pytest.raises(BadInput, match="no prompt 0000000000000000, and group 0000/0000000000000000"):
        embed_groups(lazy_tables(frames), [MIXED])


def test_texts_share_the_room_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "MAX_PAGE_CHARACTERS", 100)
    texts = ["a" * 10, "b" * 500, "c" * 20, "d" * 500]
    (group,) = embed_groups(lazy_tables(sample_frames(outcomes=["mixed"], texts=texts)), [MIXED])
    held = {
        row["completion_text"][0]: (len(row["completion_text"]), row["n_characters"]) for row in group["completions"]
    }
    # 10 and 20 stay whole, and the others share the remaining 70.
    assert held == {"a": (10, 10), "b": (35, 500), "c": (20, 20), "d": (35, 500)}


@pytest.mark.parametrize(
    ("lengths", "budget", "limit"),
    [([], 10, 20_000), ([5, 5], 10, 20_000), ([5, 6], 10, 5), ([100_000], 10**9, 20_000), ([3, 3, 3], 2, 0)],
)
def test_the_limit_is_the_largest_that_fits(lengths: list[int], budget: int, limit: int) -> None:
    assert fair_limit(lengths, budget) == limit


def test_a_number_that_json_has_not_is_null() -> None:
    frames = sample_frames(outcomes=["mixed"])
    frames["rewards"] = frames["rewards"].with_columns(reward_format=pl.lit(float("inf")))
    (group,) = embed_groups(lazy_tables(frames), [MIXED])
    assert {completion["reward_format"] for completion in group["completions"]} == {None}


def test_signs_are_named_wherever_they_stand() -> None:
    assert sign_names([{"messages": [{"role": "a\u202e", "text": "b\x00"}], "n": 1}]) == {
        "\u202e": "RIGHT-TO-LEFT OVERRIDE",
        "\x00": "NULL",
    }
