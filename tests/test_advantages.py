"""Group-relative advantages: the handed cases, numbers worked by hand, a slow second opinion, and properties."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.advantages import EQUAL_REWARDS, compute_advantages, rewards_are_equal, sample_std
from pipeline.params import NormalizeParams
from pipeline.table_checks import check_schema, check_table
from pipeline.tables import ADVANTAGES

CASES = json.loads((Path(__file__).parent / "golden" / "normalize.json").read_text())

Group = list[float | None]
Baseline = Literal["mean", "leave_one_out"]
Scale = Literal["group", "batch", "none"]
BASELINES: tuple[Baseline, ...] = ("mean", "leave_one_out")
SCALES: tuple[Scale, ...] = ("group", "batch", "none")

rewards = st.one_of(
    st.none(),
    st.sampled_from([0.0, 1.0, 0.1, 0.2, 0.2 + 5e-7, 0.2 + 2e-6]),
    st.floats(-100, 100, allow_subnormal=False),
)
ragged_groups = st.lists(st.lists(rewards, min_size=1, max_size=6), min_size=1, max_size=5)
every_choice = st.builds(
    NormalizeParams,
    baseline=st.sampled_from(BASELINES),
    scale=st.sampled_from(SCALES),
    std_floor=st.sampled_from([1e-4, 0.3]),
)


def reward_table(groups: list[Group]) -> pl.DataFrame:
    rows = [(f"g{i}", f"g{i}/{j}", reward) for i, group in enumerate(groups) for j, reward in enumerate(group)]
    return pl.DataFrame(
        {
            "iteration": pl.Series([3] * len(rows), dtype=pl.UInt32),
            "completion_id": [completion_id for _, completion_id, _ in rows],
            "group_id": [group_id for group_id, _, _ in rows],
            "prompt_id": [f"prompt of {group_id}" for group_id, _, _ in rows],
            "reward": pl.Series([reward for _, _, reward in rows], dtype=pl.Float64),
        }
    )


def advantages_of(groups: list[Group], params: NormalizeParams) -> list[Group]:
    table = compute_advantages(reward_table(groups).lazy(), params).collect()
    column: list[float | None] = table["advantage"].to_list()
    return [[column.pop(0) for _ in group] for group in groups]


def assert_close(found: Group, expected: Group, tolerance: float) -> None:
    assert [value is None for value in found] == [value is None for value in expected]
    known = [value for value in expected if value is not None]
    assert [value for value in found if value is not None] == pytest.approx(known, rel=tolerance, abs=tolerance)


def slow_std(values: list[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def slow_advantage(groups: list[Group], i: int, j: int, params: NormalizeParams) -> float | None:
    """Section 4.1 of the paper, RLOO and Dr. GRPO, word by word, for completion `j` of group `i`."""
    reward = groups[i][j]
    if reward is None:
        return None
    others = [value for place, value in enumerate(groups[i]) if place != j and value is not None]
    group = [reward, *others]
    if max(group) - min(group) <= EQUAL_REWARDS:
        return 0.0
    centered = reward - math.fsum(group) / len(group)
    if params.baseline == "leave_one_out":
        centered = reward - math.fsum(others) / len(others)
    if params.scale == "none":
        return centered
    batch = [value for values in groups for value in values if value is not None]
    return centered / max(slow_std(group if params.scale == "group" else batch), params.std_floor)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_handed_cases(case: dict[str, Any]) -> None:
    params = NormalizeParams(baseline=case["baseline"], scale=case["scale"], std_floor=case["std_floor"])
    groups = [[None if value is None else float(value) for value in group] for group in case["rewards"]]
    for found, expected in zip(advantages_of(groups, params), case["advantages"], strict=True):
        assert_close(found, expected, 1e-6)
        assert [value == 0 for value in found] == [value == 0 for value in expected], "0 is exactly 0"


@pytest.mark.parametrize(
    ("baseline", "scale", "expected"),
    [
        # Rewards 4, 1, 1: mean 2, deviations 2, -1, -1, std sqrt(6 / 2) = 1.732051; 2 / 1.732051 = 1.154701.
        # Rewards 2, 0: mean 1, deviations 1, -1, std sqrt(2); 1 / sqrt(2) = 0.707107.
        ("mean", "group", [[1.154701, -0.57735, -0.57735], [0.707107, -0.707107]]),
        # All five: mean 8 / 5 = 1.6, squares 5.76 + 0.36 + 0.36 + 0.16 + 2.56 = 9.2, std sqrt(9.2 / 4) = 1.516575.
        ("mean", "batch", [[1.318761, -0.65938, -0.65938], [0.65938, -0.65938]]),
        ("mean", "none", [[2.0, -1.0, -1.0], [1.0, -1.0]]),
        # 4 - (1 + 1) / 2 = 3; 1 - (4 + 1) / 2 = -1.5; 2 - 0 = 2.
        ("leave_one_out", "none", [[3.0, -1.5, -1.5], [2.0, -2.0]]),
        # 3 / 1.732051 = 1.732051; -1.5 / 1.732051 = -0.866025; 2 / sqrt(2) = 1.414214.
        ("leave_one_out", "group", [[1.732051, -0.866025, -0.866025], [1.414214, -1.414214]]),
        # 3 / 1.516575 = 1.978141; -1.5 / 1.516575 = -0.989071; 2 / 1.516575 = 1.318761.
        ("leave_one_out", "batch", [[1.978141, -0.989071, -0.989071], [1.318761, -1.318761]]),
    ],
)
def test_every_baseline_with_every_scale(baseline: Baseline, scale: Scale, expected: list[list[float]]) -> None:
    found = advantages_of([[4.0, 1.0, 1.0], [2.0, 0.0]], NormalizeParams(baseline=baseline, scale=scale))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)


@given(ragged_groups, every_choice)
@settings(max_examples=200, deadline=None)
def test_a_slow_loop_agrees(groups: list[Group], params: NormalizeParams) -> None:
    for i, found in enumerate(advantages_of(groups, params)):
        assert_close(found, [slow_advantage(groups, i, j, params) for j in range(len(groups[i]))], 1e-8)


@given(ragged_groups, every_choice)
@settings(max_examples=50, deadline=None)
def test_advantages_of_a_group_sum_to_zero(groups: list[Group], params: NormalizeParams) -> None:
    for group in advantages_of(groups, params):
        known = [value for value in group if value is not None]
        assert math.fsum(known) == pytest.approx(0.0, abs=1e-9 * (1 + max(map(abs, known), default=0.0)))


@given(ragged_groups, every_choice, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_row_order_changes_nothing(groups: list[Group], params: NormalizeParams, random: Any) -> None:
    table = reward_table(groups)
    order = list(range(table.height))
    random.shuffle(order)
    there = compute_advantages(table.lazy(), params).collect()
    shuffled = compute_advantages(table[order].lazy(), params).collect()
    assert shuffled["completion_id"].to_list() == table["completion_id"][order].to_list()
    assert_close(shuffled["advantage"].to_list(), there["advantage"][order].to_list(), 1e-8)


@given(ragged_groups, every_choice)
@settings(max_examples=50, deadline=None)
def test_the_table_has_the_rows_it_was_given(groups: list[Group], params: NormalizeParams) -> None:
    given_rows = reward_table(groups)
    table = compute_advantages(given_rows.lazy(), params).collect()
    check_schema(table.schema, ADVANTAGES, "advantages")
    check_table(table, ADVANTAGES, "advantages")
    assert table.select(given_rows.columns).equals(given_rows)
    assert table["advantage"].is_null().equals(given_rows["reward"].is_null())


@given(ragged_groups, every_choice)
@settings(max_examples=50, deadline=None)
def test_a_completion_without_a_reward_changes_no_other(groups: list[Group], params: NormalizeParams) -> None:
    scorable = [[value for value in group if value is not None] for group in groups]
    with_nulls = [[value for value in group if value is not None] for group in advantages_of(groups, params)]
    without = advantages_of([list(group) for group in scorable], params)
    for ours, theirs in zip(with_nulls, without, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("baseline", BASELINES)
def test_scale_group_ignores_the_offset_and_the_unit_of_rewards(baseline: Baseline) -> None:
    params = NormalizeParams(baseline=baseline)
    there = advantages_of([[1.0, 0.0, 0.5, 0.0]], params)[0]
    elsewhere = advantages_of([[700.0, 100.0, 400.0, 100.0]], params)[0]
    assert elsewhere == pytest.approx(there, rel=1e-12)


def test_a_spread_small_beside_the_mean_keeps_its_digits() -> None:
    # Squares near 1e18 are spaced by 128: one pass would find a variance of 0 or worse.
    assert advantages_of([[1e9, 1e9 + 1]], NormalizeParams())[0] == pytest.approx([-0.707107, 0.707107], abs=1e-6)


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("scale", SCALES)
def test_a_span_of_a_millionth_is_equal_and_a_wider_one_is_not(baseline: Baseline, scale: Scale) -> None:
    params = NormalizeParams(baseline=baseline, scale=scale)
    equal, wider = advantages_of([[0.0, 1e-6, 5e-7], [0.0, 2e-6, 0.0]], params)
    assert equal == [0.0, 0.0, 0.0]
    assert all(wider)


def test_statistics_are_those_of_the_scorable_completions() -> None:
    table = compute_advantages(
        reward_table([[1.0, None, 0.0], [0.5], [None, None]]).lazy(), NormalizeParams()
    ).collect()
    assert table["reward_mean"].to_list() == [0.5, 0.5, 0.5, 0.5, None, None]
    # 1 and 0: deviations of 1/2, std sqrt((1/4 + 1/4) / 1) = 0.707107. One completion has none.
    assert_close(table["reward_std"].to_list(), [0.70710678] * 3 + [None] * 3, 1e-8)
    assert_close(table["advantage"].to_list(), [0.70710678, None, -0.70710678, 0.0, None, None], 1e-8)


def test_a_batch_of_a_single_reward_has_no_signal() -> None:
    assert advantages_of([[7.0], [None]], NormalizeParams(scale="batch")) == [[0.0], [None]]


def test_sample_std_of_fewer_than_two_values_is_null() -> None:
    frame = pl.DataFrame({"g": ["a", "b", "b", "c"], "x": [1.0, 2.0, 4.0, None]})
    assert frame.select(sample_std(pl.col("x"), "g")).to_series().to_list() == [None, *[math.sqrt(2)] * 2, None]
    assert frame.filter(g="a").select(sample_std(pl.col("x"))).item() is None


def test_rewards_are_equal_looks_at_each_group() -> None:
    frame = pl.DataFrame({"g": ["a", "b", "a", "b"], "x": [1.0, 2.0, 1.0, 3.0]})
    assert frame.select(rewards_are_equal(pl.col("x")).over("g")).to_series().to_list() == [True, False, True, False]


def test_two_hundred_thousand_completions() -> None:
    pattern = [1.0] * 3 + [0.0] * 5  # 5/8 / std 0.517549 = 1.207615, as in the case three_of_eight
    n_groups = 25_000
    table = pl.DataFrame(
        {
            "iteration": pl.zeros(n_groups * 8, dtype=pl.UInt32, eager=True),
            "completion_id": pl.int_range(n_groups * 8, eager=True).cast(pl.String),
            "group_id": (pl.int_range(n_groups * 8, eager=True) % n_groups).cast(pl.String),
            "prompt_id": (pl.int_range(n_groups * 8, eager=True) % n_groups).cast(pl.String),
            "reward": pl.Series([value for value in pattern for _ in range(n_groups)]),
        }
    )
    advantage = compute_advantages(table.lazy(), NormalizeParams()).collect()["advantage"]
    assert advantage.round(6).value_counts().sort("advantage").rows() == [
        (-0.724569, 5 * n_groups),
        (1.207615, 3 * n_groups),
    ]
