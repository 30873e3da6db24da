from __future__ import annotations

import polars as pl
import pytest

from pipeline.errors import BadInput
from pipeline.report.against import compare_with
from tests.iteration_sample import lazy_tables, sample_frames


def place(number: int) -> str:
    return f"0000/0000000000000000/{number}"


def test_an_edited_reward_flips_completions_by_their_id() -> None:
    frames = sample_frames(outcomes=["mixed", "all_correct"])
    edited = frames["rewards"].with_columns(
        is_correct=pl.Series([False, True, False, True, True, True, True, None]),
        reward=pl.Series([1.0, 0.0, 0.25, 1.0, 1.0, 1.0, 1.0, None]),
    )
    against = compare_with(lazy_tables(frames), lazy_tables({**frames, "rewards": edited}), "strict")
    rows = against.table.sort("completion_id").collect()
    # Here 1, 0, 0, 1 and four times 1; a completion that can't be judged there is gained as well.
    assert rows["flip"].to_list() == ["gained", "lost", "reward", "same", "same", "same", "same", "gained"]
    assert rows["against_text"].to_list() == [None] * 8  # the same texts
    assert against.groups_by_flips == ["0000/0000000000000000", "0000/0000000000000001"]
    assert against.note == (
        "Beside strict: 8 completions are in both, matched by id; 2 gained (correct here, not there), 1 lost, "
        "1 with another reward alone"
    )


def test_other_iterations_are_matched_by_prompt_and_place() -> None:
    mine = sample_frames(1, outcomes=["mixed"])
    theirs = sample_frames(0, outcomes=["all_wrong"], texts=["x", "y", "z", "w"])
    against = compare_with(lazy_tables(mine), lazy_tables(theirs), "demo/0000")
    rows = against.table.sort("completion_id").collect()
    assert rows["completion_id"][0] == "0001/0000000000000000/0"
    assert rows["flip"].to_list() == ["gained", "same", "same", "gained"]
    assert rows["against_text"].to_list() == ["x", "y", "z", "w"]
    assert "matched by prompt and place in the group" in against.note


def test_runs_without_a_common_prompt_are_refused() -> None:
    mine = lazy_tables(sample_frames(1, outcomes=["mixed"]))
    theirs = sample_frames(0, outcomes=["mixed"])
    theirs["rewards"] = theirs["rewards"].with_columns(prompt_id=pl.lit("other"))
    with pytest.raises(BadInput, match="--against other/0001: the two have no prompt in common"):
        compare_with(mine, lazy_tables(theirs), "other/0001")
