"""The draw of prompts by the signal of their pass rate."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Literal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.difficulty import MIN_WEIGHT, Candidate, draw_by_difficulty, is_retired, signal
from pipeline.groups import summarize_groups, update_prompt_stats
from pipeline.params import DifficultyParams, FilterParams, SelectParams
from pipeline.seeds import stable_hash, stable_seed
from pipeline.selection import select_prompts
from pipeline.tables import PROMPT_STATS
from stages.select import STATISTICS

DEFAULTS = DifficultyParams()

pass_rates = st.one_of(st.none(), st.sampled_from([0.0, 0.05, 0.25, 0.5, 0.95, 0.96, 1.0]))
candidates = st.lists(st.tuples(st.integers(0, 2), pass_rates, st.integers(0, 20)), max_size=12).map(
    lambda rows: [Candidate(f"p{i}", *row) if row[0] else Candidate(f"p{i}") for i, row in enumerate(rows)]
)


def seen(name: str, pass_rate: float | None, last_iteration: int = 0) -> Candidate:
    return Candidate(name, 1, pass_rate, last_iteration)


def draw(
    given: list[Candidate], n: int, iteration: int = 1, seed: int = 0, params: DifficultyParams = DEFAULTS
) -> list[tuple[str, str]]:
    return draw_by_difficulty(given, n, iteration, seed, params)


def names(drawn: list[tuple[str, str]]) -> list[str]:
    return [name for name, _ in drawn]


def rules(drawn: list[tuple[str, str]]) -> Counter[str]:
    return Counter(reason.split()[0] for _, reason in drawn)


def test_weights_are_the_variance_of_a_verdict_with_a_floor() -> None:
    assert [signal(p) for p in (0.0, 0.125, 0.5, 0.75, 1.0)] == [MIN_WEIGHT, 0.109375, 0.25, 0.1875, MIN_WEIGHT]
    assert signal(None) == 0.25


@pytest.mark.parametrize(("p", "expected"), [(0.0, True), (0.049, True), (0.05, False), (0.95, False), (0.96, True)])
def test_retired_is_who_left_the_bounds(p: float, expected: bool) -> None:
    assert is_retired(seen("p", p), DEFAULTS) is expected
    assert not is_retired(seen("p", None), DEFAULTS)


def test_the_smallest_clocks_are_drawn() -> None:
    rates = {"a": 0.5, "b": 0.25, "c": 0.0625}
    weights = {"a": 0.25, "b": 0.1875, "c": 0.05859375}  # p (1 - p)

    def clock(name: str) -> float:
        return -math.log((stable_seed("difficulty", 7, 3, name) + 0.5) / 2**63) / weights[name]

    drawn = draw([seen(name, p) for name, p in rates.items()], 3, iteration=3, seed=7)
    assert names(drawn) == sorted(rates, key=clock)
    assert dict(drawn) == {"a": "signal p=0.50", "b": "signal p=0.25", "c": "signal p=0.06"}


def test_unseen_ones_come_first_in_the_order_of_uniform() -> None:
    unseen = [Candidate(f"new{i}") for i in range(6)]
    drawn = draw([seen("old", 0.5), *unseen], 7, seed=3)
    expected = sorted((each.prompt_id for each in unseen), key=lambda name: stable_hash(3, 0, name))
    assert names(drawn) == [*expected, "old"]
    assert rules(drawn) == {"unseen": 6, "signal": 1}


def test_retired_ones_are_revisited_when_they_are_due_and_not_all_at_once() -> None:
    retired = [seen(f"solved{i}", 1.0, last_iteration=i) for i in range(6)]  # at iteration 13, ages 13 to 8
    active = [seen(f"active{i}", 0.5) for i in range(16)]
    drawn = draw(retired + active, 16, iteration=13)
    # An eighth of 16 is 2, of the four that have waited for 10 iterations: those that have waited longest.
    assert drawn[:2] == [
        ("solved0", "revisited p=1.00 after 13 iterations"),
        ("solved1", "revisited p=1.00 after 12 iterations"),
    ]
    assert rules(drawn) == {"revisited": 2, "signal": 14}
    assert rules(draw(retired + active, 16, iteration=9)) == {"signal": 16}  # none is due
    assert rules(draw(retired + active, 16, iteration=10)) == {"revisited": 1, "signal": 15}
    none = DifficultyParams(revisit_fraction=0.0)
    assert rules(draw(retired + active, 16, iteration=13, params=none)) == {"signal": 16}
    assert rules(draw(retired + active, 3, iteration=13)) == {"revisited": 1, "signal": 2}  # 3 / 8, rounded up


def test_too_few_active_ones_are_filled_up_with_retired_ones() -> None:
    given = [seen("new", 0.0, 8), seen("old", 1.0, 4), seen("older", 1.0, 2), seen("active", 0.5)]
    drawn = draw(given, 3, iteration=13)
    assert [reason for _, reason in drawn] == [
        "revisited p=1.00 after 11 iterations",
        "signal p=0.50",
        "filler p=1.00 after 9 iterations",
    ]


def test_all_retired_and_fewer_than_wanted() -> None:
    given = [seen("a", 1.0, 3), seen("b", 0.0, 1), seen("c", 1.0, 2)]
    assert names(draw(given, 2, iteration=4)) == ["b", "c"]
    assert len(draw(given, 9, iteration=4)) == 3
    assert draw([], 2) == []


def test_a_prompt_that_had_no_verdict_is_drawn_like_the_most_uncertain() -> None:
    assert draw([seen("p", None)], 1) == [("p", "signal without a pass rate")]


def test_bounds_that_retire_nobody_leave_everyone_a_weight() -> None:
    nobody = DifficultyParams(retired_below=0.0, retired_above=1.0)
    given = [seen("never", 0.0), seen("always", 1.0)]
    assert rules(draw(given, 2, params=nobody)) == {"signal": 2}
    first = Counter(names(draw(given, 1, seed=seed, params=nobody))[0] for seed in range(100))
    assert set(first) == {"never", "always"}


@given(candidates, st.integers(0, 12), st.integers(0, 20), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_row_order_changes_nothing_and_more_begin_with_fewer(
    given: list[Candidate], n: int, iteration: int, seed: int
) -> None:
    drawn = draw(given, n, iteration, seed)
    shuffled = random.Random(seed).sample(given, len(given))
    assert draw(shuffled, n, iteration, seed) == drawn
    assert len(set(names(drawn))) == len(drawn) == min(n, len(given))
    ranks = [["unseen", "revisited", "signal", "filler"].index(reason.split()[0]) for _, reason in drawn]
    assert ranks == sorted(ranks)


def test_first_draws_follow_the_weights() -> None:
    rates = {"half": 0.5, "quarter": 0.25, "tenth": 0.1}
    weights = {name: p * (1 - p) for name, p in rates.items()}  # 0.25, 0.1875, 0.09: 0.474, 0.355, 0.171 of the sum
    n = 4_000
    given = [seen(name, p) for name, p in rates.items()]
    first = Counter(names(draw(given, 1, seed=seed))[0] for seed in range(n))
    for name, weight in weights.items():
        share = weight / sum(weights.values())
        assert first[name] / n == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / n)), name


def test_second_draws_are_of_what_is_left() -> None:
    """P(c is second) = sum over the first of w_first / W x w_c / (W - w_first), as for draws one after another."""
    weights = {"a": 0.25, "b": 0.1875, "c": 0.09}
    total, n = sum(weights.values()), 4_000
    expected = sum(weights[first] / total * weights["c"] / (total - weights[first]) for first in "ab")
    given = [seen("a", 0.5), seen("b", 0.25), seen("c", 0.1)]
    second = sum(names(draw(given, 2, seed=seed))[1] == "c" for seed in range(n))
    assert second / n == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / n))


def test_everyone_comes_back() -> None:
    """64 prompts of all pass rates, 8 an iteration."""
    last = {f"p{i}": 0 for i in range(64)}
    n_shown = Counter(last.keys())
    longest = Counter(last)
    for iteration in range(1, 200):
        given = [seen(name, int(name[1:]) / 63, last[name]) for name in last]
        for name in names(draw(given, 8, iteration)):
            longest[name] = max(longest[name], iteration - last[name])
            last[name] = iteration
            n_shown[name] += 1
    # p0 to p3 and p60 to p63 are retired, and from the tenth iteration on one of these 8 is revisited in each: the last
    # one waits for 10 + 7 iterations.
    assert max(longest[f"p{i}"] for i in (*range(4), *range(60, 64))) == 17
    assert min(n_shown.values()) >= 3
    # Of p31 the weight is 0.25, of p5 and p58 0.073: 3.4 times.
    assert 1.5 < 2 * n_shown["p31"] / (n_shown["p5"] + n_shown["p58"]) < 6


def kept_share(strategy: Literal["uniform", "difficulty"]) -> float:
    """The share of groups kept in iterations 8 to 23, of 8 prompts each, of 64 of which a third can be learned from.

    Select and filter are the real ones; the policy stays what it is.
    """
    prompts = pl.DataFrame({"prompt_id": [f"{i:016x}" for i in range(64)], "split": ["train"] * 64})
    stats, n_kept = PROMPT_STATS.empty(), 0
    for iteration in range(24):
        params = SelectParams(n_prompts=8, strategy=strategy)
        shown = select_prompts(prompts, stats.select(STATISTICS), iteration, 0, 8, params)["prompt_id"]
        verdicts = [(name, i, is_right(iteration, name, i)) for name in shown for i in range(8)]
        rewards = pl.DataFrame(verdicts, schema=["prompt_id", "index", "is_correct"], orient="row").select(
            "prompt_id",
            "is_correct",
            iteration=pl.lit(iteration, pl.UInt32),
            group_id=pl.col("prompt_id"),
            completion_id=pl.format("{}/{}", "prompt_id", "index"),
            reward=pl.col("is_correct").cast(pl.Float64),
        )
        rollouts = rewards.select("completion_id", finish_reason=pl.lit("stop"))
        groups = summarize_groups(rewards.lazy(), rollouts.lazy()).collect()
        stats = update_prompt_stats(stats.lazy(), rewards.lazy(), FilterParams()).collect()
        n_kept += groups.filter("kept").height if iteration >= 8 else 0
    return n_kept / (16 * 8)


def is_right(iteration: int, prompt_id: str, index: int) -> bool:
    p = (0.0, 1.0, 0.5)[int(prompt_id, 16) % 3]
    return stable_seed(iteration, prompt_id, index) / 2**63 < p


def test_more_groups_are_kept_than_of_a_uniform_draw() -> None:
    assert kept_share("uniform") == pytest.approx(1 / 3, abs=0.05)  # after the first epoch two more, whole ones
    assert kept_share("difficulty") > 0.8  # all but the eighth that is for revisits
