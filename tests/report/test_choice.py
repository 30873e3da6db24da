from __future__ import annotations

import polars as pl
import pytest

from pipeline.report import choice
from pipeline.report.choice import choose_groups
from tests.iteration_sample import DEFAULT_OUTCOMES, lazy_tables, sample_frames


def group(number: int) -> str:
    return f"0000/{number:016x}"


def test_all_groups_come_where_they_fit_mixed_ones_first_and_the_latest_first() -> None:
    chosen = choose_groups(lazy_tables(sample_frames()), 1)
    assert chosen.is_everything
    assert chosen.note == "All 16 groups, 64 completions"
    # 0 to 5 are mixed, 6 to 12 all wrong, 13 and 14 all correct, 15 is unscorable.
    order = [*range(5, -1, -1), 14, 13, *range(12, 5, -1), 15]
    assert chosen.group_ids == [group(number) for number in order]


def test_those_that_come_first_do_so_where_all_fit() -> None:
    chosen = choose_groups(lazy_tables(sample_frames()), 1, {"flipped": [group(12)]})
    assert chosen.group_ids[:2] == [group(12), group(5)]
    assert len(chosen.group_ids) == 16


def test_too_many_are_sampled_by_kind_and_the_note_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MAX_COMPLETIONS", 63)
    frames = sample_frames()
    frames["rewards"] = frames["rewards"].with_columns(
        reward=pl.when(pl.col("completion_id") == f"{group(3)}/0").then(9.0).otherwise("reward")
    )
    frames["groups"] = frames["groups"].with_columns(
        n_truncated=pl.when(pl.col("group_id") == group(7)).then(2).otherwise(0).cast(pl.UInt16)
    )
    rollouts = lazy_tables(frames)["rollouts"].with_columns(
        n_tokens=pl.when(pl.col("completion_id") == f"{group(8)}/2").then(99).otherwise("n_tokens")
    )
    tables = {**lazy_tables(frames), "rollouts": rollouts}
    chosen = choose_groups(tables, 1, {"flipped": [group(4), group(9)]}, {"named": [group(4), group(10)]})
    # Flipped 4; mixed 5, all correct 14, all wrong 12, unscorable 15; highest reward 3; lowest reward 0 (whose wrong
    # ones have 0, as those of many); longest 8; cut off 7; named 4, which is there, and 10.
    assert chosen.group_ids == [group(number) for number in (4, 5, 14, 12, 15, 3, 0, 8, 7, 10)]
    assert not chosen.is_everything
    assert chosen.note == (
        "10 of 16 groups, 40 of 64 completions: 1 flipped, 1 mixed, 1 all_correct, 1 all_wrong, 1 unscorable, "
        "1 with the highest reward, 1 with the lowest reward, 1 with the longest completion, "
        "1 with the most completions cut off, 1 named"
    )


@pytest.mark.parametrize("n_per_kind", [1, 3, 100])
def test_no_group_comes_twice(monkeypatch: pytest.MonkeyPatch, n_per_kind: int) -> None:
    monkeypatch.setattr(choice, "MAX_COMPLETIONS", 1)
    chosen = choose_groups(lazy_tables(sample_frames()), n_per_kind)
    assert len(set(chosen.group_ids)) == len(chosen.group_ids)
    assert len(chosen.group_ids) <= len(DEFAULT_OUTCOMES)
