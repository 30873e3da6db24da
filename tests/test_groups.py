"""Outcomes of groups, which are kept, the training set, and the statistics of prompts over iterations."""

from __future__ import annotations

import random

import polars as pl
import polars.testing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.advantages import EQUAL_REWARDS, compute_advantages
from pipeline.groups import (
    EQUAL_REASON,
    REASONS,
    build_training_set,
    is_surplus,
    limit_groups,
    summarize_groups,
    target_groups,
    update_prompt_stats,
)
from pipeline.params import FilterParams, NormalizeParams, RolloutParams, SelectParams
from pipeline.table_checks import check_schema, check_table
from pipeline.tables import GROUPS, PROMPT_STATS, SELECTION, TRAINING_SET, FinishReason, LogProbs, Table, Tokens

Row = tuple[float | None, bool | None]
"""The reward of a completion and its verdict."""

rows = st.tuples(st.sampled_from([None, 0.0, 0.1, 1.0, 1.0 + 5e-7]), st.sampled_from([None, True, False]))
many_groups = st.lists(st.lists(rows, min_size=1, max_size=5), min_size=1, max_size=4)


def reward_table(groups: dict[str, list[Row]], iteration: int = 0) -> pl.DataFrame:
    """The groups by prompt_id."""
    flat = [(prompt, i, *row) for prompt, group in groups.items() for i, row in enumerate(group)]
    return pl.DataFrame(
        {
            "iteration": pl.Series([iteration] * len(flat), dtype=pl.UInt32),
            "completion_id": [f"{iteration:04d}/{prompt}/{i}" for prompt, i, _, _ in flat],
            "group_id": [f"{iteration:04d}/{prompt}" for prompt, _, _, _ in flat],
            "prompt_id": [prompt for prompt, _, _, _ in flat],
            "reward": pl.Series([reward for _, _, reward, _ in flat], dtype=pl.Float64),
            "is_correct": pl.Series([verdict for _, _, _, verdict in flat], dtype=pl.Boolean),
        }
    )


def rollout_table(rewards: pl.DataFrame, truncated: tuple[str, ...] = ()) -> pl.DataFrame:
    """A completion of two tokens for each row of `rewards`; those named in `truncated` were cut by the limit."""
    n, ids = rewards.height, rewards["completion_id"].to_list()
    return rewards.select("iteration", "completion_id", "group_id", "prompt_id").with_columns(
        prompt_token_ids=pl.Series([[5]] * n, dtype=Tokens),
        completion_token_ids=pl.Series([[i, 2] for i in range(n)], dtype=Tokens),
        sampling_logprobs=pl.Series([[-1.0, -0.5]] * n, dtype=LogProbs),
        finish_reason=pl.Series(["length" if name in truncated else "stop" for name in ids], dtype=FinishReason),
    )


def summarize(groups: dict[str, list[Row]], truncated: tuple[str, ...] = ()) -> pl.DataFrame:
    rewards = reward_table(groups)
    return checked(summarize_groups(rewards.lazy(), rollout_table(rewards, truncated).lazy()), GROUPS)


def checked(lazy: pl.LazyFrame, table: Table) -> pl.DataFrame:
    frame = lazy.collect()
    check_schema(frame.schema, table, table.name)
    check_table(frame, table, table.name)
    return frame


@pytest.mark.parametrize(
    ("group", "outcome", "is_kept", "reason"),
    [
        pytest.param([(1, True), (1, True)], "all_correct", False, REASONS["all_correct"], id="all_correct"),
        pytest.param([(0, False), (0, False)], "all_wrong", False, REASONS["all_wrong"], id="all_wrong"),
        pytest.param([(1, True), (0, False)], "mixed", True, REASONS["mixed"], id="mixed"),
        pytest.param(
            [(0.1, False), (0, False), (0, False)], "all_wrong", False, REASONS["all_wrong"], id="format_term_all_wrong"
        ),
        pytest.param(
            [(1.1, True), (1, True)], "all_correct", False, REASONS["all_correct"], id="format_term_all_correct"
        ),
        pytest.param([(0.5, True), (0.5, False)], "mixed", False, EQUAL_REASON, id="mixed_but_equal_rewards"),
        pytest.param([(0.5, True), (0.5 + 9e-7, False)], "mixed", False, EQUAL_REASON, id="equal_within_a_millionth"),
        pytest.param([(0.5, True), (0.5 + 2e-6, False)], "mixed", True, REASONS["mixed"], id="beyond_a_millionth"),
        pytest.param([(0.3, None), (-2, None)], "unverified", True, REASONS["unverified"], id="reward_model"),
        pytest.param([(0.3, None), (0.3, None)], "unverified", False, EQUAL_REASON, id="reward_model_equal_rewards"),
        pytest.param([(None, None), (None, None)], "unscorable", False, REASONS["unscorable"], id="none_scorable"),
        pytest.param([(1, True), (None, None)], "unscorable", False, REASONS["unscorable"], id="one_scorable"),
        pytest.param([(1, True)], "unscorable", False, REASONS["unscorable"], id="group_of_one"),
        pytest.param([(1, True), (None, None), (0, False)], "mixed", True, REASONS["mixed"], id="two_scorable"),
        pytest.param(
            [(1, True), (1, True), (None, False)],
            "all_correct",
            False,
            REASONS["all_correct"],
            id="verdict_of_an_unscorable_row",
        ),
        pytest.param([(1, True), (0.5, None), (0, False)], "mixed", True, REASONS["mixed"], id="one_without_verdict"),
    ],
)
def test_outcome_and_reason(group: list[Row], outcome: str, is_kept: bool, reason: str) -> None:
    found = summarize({"p": group}).row(0, named=True)
    assert (found["outcome"], found["kept"], found["reason"]) == (outcome, is_kept, reason)


def test_counts_and_statistics() -> None:
    group: list[Row] = [(1, True), (0, False), (None, None), (0.5, False)]
    found = summarize({"p": group}, truncated=("0000/p/0", "0000/p/1", "0000/p/2")).row(0, named=True)
    assert (found["group_id"], found["prompt_id"]) == ("0000/p", "p")
    assert [found[f"n_{what}"] for what in ("correct", "unscorable", "truncated")] == [1, 1, 3]
    assert found["group_size"] == 4
    assert found["reward_mean"] == 0.5
    assert found["reward_std"] == pytest.approx(0.5)  # sqrt((1/4 + 1/4 + 0) / 2)


def test_statistics_of_too_few_are_null() -> None:
    found = summarize({"one": [(1, True)], "none": [(None, None)]}).sort("prompt_id")
    assert found["reward_mean"].to_list() == [None, 1.0]
    assert found["reward_std"].to_list() == [None, None]


def slow_outcome(group: list[Row]) -> tuple[str, bool]:
    scorable = [(reward, verdict) for reward, verdict in group if reward is not None]
    if len(scorable) < 2:
        return "unscorable", False
    values = [reward for reward, _ in scorable]
    is_equal = max(values) - min(values) <= EQUAL_REWARDS
    n_correct = sum(verdict is True for _, verdict in scorable)
    n_wrong = sum(verdict is False for _, verdict in scorable)
    if n_correct + n_wrong == 0:
        return "unverified", not is_equal
    if n_correct and n_wrong:
        return "mixed", not is_equal
    return "all_correct" if n_correct else "all_wrong", False


@given(many_groups)
@settings(max_examples=100, deadline=None)
def test_a_slow_loop_agrees(groups: list[list[Row]]) -> None:
    found = summarize({f"p{i}": group for i, group in enumerate(groups)})
    assert found["group_id"].to_list() == [f"0000/p{i}" for i in range(len(groups))]
    assert list(found.select("outcome", "kept").iter_rows()) == [slow_outcome(group) for group in groups]


@given(many_groups, st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_row_order_changes_nothing(groups: list[list[Row]], seed: int) -> None:
    rewards = reward_table({f"p{i}": group for i, group in enumerate(groups)})
    rollouts = rollout_table(rewards, truncated=("0000/p0/0",))
    order = list(range(rewards.height))
    random.Random(seed).shuffle(order)
    there = summarize_groups(rewards.lazy(), rollouts.lazy()).collect()
    shuffled = summarize_groups(rewards[order].lazy(), rollouts[order[::-1]].lazy()).collect()
    is_float = pl.selectors.float()
    assert shuffled.select(~is_float).equals(there.select(~is_float))
    pl.testing.assert_frame_equal(shuffled.select(is_float), there.select(is_float), abs_tol=1e-12)


@given(many_groups)
@settings(max_examples=50, deadline=None)
def test_the_training_set_is_the_kept_groups_whole(groups: list[list[Row]]) -> None:
    rewards = reward_table({f"p{i}": group for i, group in enumerate(groups)})
    rollouts = rollout_table(rewards)
    advantages = compute_advantages(rewards.lazy(), NormalizeParams())
    summary = summarize_groups(rewards.lazy(), rollouts.lazy())
    training_set = checked(build_training_set(advantages, summary, rollouts.lazy()), TRAINING_SET)
    expected = [
        f"0000/p{i}/{j}"
        for i, group in enumerate(groups)
        for j, (reward, _) in enumerate(group)
        if slow_outcome(group)[1] and reward is not None
    ]
    assert training_set["completion_id"].to_list() == expected


def test_the_training_set_follows_the_rollouts() -> None:
    rewards = reward_table({"a": [(1, True), (None, None), (0, False)], "b": [(1, True), (1, True)]})
    rollouts = rollout_table(rewards, truncated=("0000/a/2",))[::-1]
    advantages = compute_advantages(rewards.lazy(), NormalizeParams(scale="none"))
    summary = summarize_groups(rewards.lazy(), rollouts.lazy())
    found = build_training_set(advantages, summary, rollouts.lazy()).collect()
    assert found["completion_id"].to_list() == ["0000/a/2", "0000/a/0"]
    assert found["advantage"].to_list() == [-0.5, 0.5]
    assert found["is_truncated"].to_list() == [True, False]
    assert found["completion_token_ids"].to_list() == [[2, 2], [0, 2]]


MIXED: list[Row] = [(1, True), (0, False)]
WRONG: list[Row] = [(0, False), (0, False)]


def selection_of(order: str) -> pl.LazyFrame:
    """The prompts named by the letters of `order`, in that order."""
    rows = [(0, position, prompt_id, "epoch 0") for position, prompt_id in enumerate(order)]
    return pl.DataFrame(rows, schema=SELECTION.schema, orient="row").lazy()


def limited(groups: dict[str, list[Row]], order: str, target: int | None) -> pl.DataFrame:
    rewards = reward_table(groups)
    summary = summarize_groups(rewards.lazy(), rollout_table(rewards).lazy())
    return checked(limit_groups(summary, selection_of(order), target), GROUPS)


def test_the_first_groups_that_teach_are_kept_and_the_others_are_surplus() -> None:
    groups = {"a": MIXED, "b": WRONG, "c": MIXED, "d": MIXED, "e": MIXED}
    found = limited(groups, "dbeac", 2)
    assert list(found.select("prompt_id", "kept", "reason").iter_rows()) == [
        ("a", False, "surplus: 2 kept before it"),
        ("b", False, REASONS["all_wrong"]),
        ("c", False, "surplus: 2 kept before it"),
        ("d", True, REASONS["mixed"]),
        ("e", True, REASONS["mixed"]),
    ]
    assert found.filter(is_surplus())["prompt_id"].to_list() == ["a", "c"]
    assert found.drop("kept", "reason").equals(summarize(groups).drop("kept", "reason"))


@pytest.mark.parametrize("target", [None, 2, 3])
def test_where_there_are_no_more_than_wanted_nothing_changes(target: int | None) -> None:
    groups = {"a": MIXED, "b": WRONG, "c": MIXED}
    assert limited(groups, "cba", target).equals(summarize(groups))


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_a_limit_keeps_a_beginning_of_the_selection(teaches: list[bool], target: int, seed: int) -> None:
    letters = "abcdefgh"[: len(teaches)]
    groups = {name: MIXED if is_mixed else WRONG for name, is_mixed in zip(letters, teaches, strict=True)}
    order = "".join(random.Random(seed).sample(letters, len(letters)))
    found = limited(groups, order, target)
    expected = [name for name in order if groups[name] is MIXED][:target]
    assert set(found.filter("kept")["prompt_id"]) == set(expected)
    assert found.filter(pl.col("kept") | is_surplus()).height == sum(teaches)


@pytest.mark.parametrize(
    ("oversample", "given_target", "expected"), [(1.0, None, None), (1.5, None, 16), (1.5, 20, 20), (1.0, 8, 8)]
)
def test_the_target_is_what_is_wanted_where_more_are_rolled_out(
    oversample: float, given_target: int | None, expected: int | None
) -> None:
    rollout = RolloutParams(group_size=8, oversample=oversample)
    assert target_groups(SelectParams(n_prompts=16), rollout, FilterParams(target_groups=given_target)) == expected


def test_prompt_statistics_over_two_iterations() -> None:
    params = FilterParams(pass_rate_decay=0.25)
    first = reward_table(
        {
            "again": [(1, True), (1, True), (0, False), (0, False)],
            "once": [(0, False), (None, None)],
            "model": [(0.3, None), (0.7, None)],
        }
    )
    stats = checked(update_prompt_stats(PROMPT_STATS.empty().lazy(), first.lazy(), params), PROMPT_STATS)
    assert stats.rows() == [
        ("again", 1, 4, 2, 0.5, 0.5, 0),
        ("model", 1, 0, 0, None, None, 0),  # no verdict, so no pass rate
        ("once", 1, 1, 0, 0.0, 0.0, 0),
    ]
    second = reward_table({"again": [(1, True)] * 4, "model": [(0.1, True), (0.2, None)], "new": [(1, True)]}, 1)
    stats = checked(update_prompt_stats(stats.lazy(), second.lazy(), params), PROMPT_STATS)
    assert stats.rows() == [
        ("again", 2, 8, 6, 0.75, 0.875, 1),  # (2 + 4) / (4 + 4); 0.25 * 0.5 + 0.75 * 1
        ("model", 2, 1, 1, 1.0, 1.0, 1),
        ("new", 1, 1, 1, 1.0, 1.0, 1),
        ("once", 1, 1, 0, 0.0, 0.0, 0),  # not shown: as it was
    ]


def test_an_iteration_without_verdicts_leaves_the_pass_rates() -> None:
    params = FilterParams(pass_rate_decay=0.5)
    stats = update_prompt_stats(PROMPT_STATS.empty().lazy(), reward_table({"p": [(1, True)]}).lazy(), params)
    stats = update_prompt_stats(stats, reward_table({"p": [(None, None)] * 2}, 5).lazy(), params)
    assert checked(stats, PROMPT_STATS).rows() == [("p", 2, 1, 1, 1.0, 1.0, 5)]


@pytest.mark.parametrize(("decay", "recent"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_decay_goes_from_the_last_group_alone_to_the_first(decay: float, recent: float) -> None:
    params = FilterParams(pass_rate_decay=decay)
    stats = update_prompt_stats(PROMPT_STATS.empty().lazy(), reward_table({"p": [(1, True)]}).lazy(), params)
    stats = update_prompt_stats(stats, reward_table({"p": [(0, False)]}, 1).lazy(), params)
    assert stats.collect()["recent_pass_rate"].item() == recent


def test_two_hundred_thousand_completions() -> None:
    n_groups = 25_000
    number = pl.int_range(n_groups * 8, eager=True)
    group, index = number // 8, number % 8
    is_correct = index < group % 9  # the group's number of correct completions goes from 0 to 8
    rewards = pl.DataFrame(
        {
            "iteration": pl.zeros(n_groups * 8, dtype=pl.UInt32, eager=True),
            "completion_id": number.cast(pl.String),
            "group_id": group.cast(pl.String),
            "prompt_id": group.cast(pl.String),
            "reward": is_correct.cast(pl.Float64),
            "is_correct": is_correct,
        }
    )
    rollouts = rewards.select("completion_id", finish_reason=pl.lit("stop", dtype=FinishReason))
    outcomes = summarize_groups(rewards.lazy(), rollouts.lazy()).collect()["outcome"].value_counts().rows()
    # 25,000 = 2,777 * 9 + 7: the remainders 0 to 6 come once more than 7 and 8.
    assert dict(outcomes) == {"all_wrong": 2_778, "mixed": 5 * 2_778 + 2_778 + 2_777, "all_correct": 2_777}
