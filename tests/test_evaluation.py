"""pass@k, the intervals of pass@1, and the metrics of an evaluation."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.evaluation import (
    Z_95,
    choose_eval_prompts,
    evaluation_metrics,
    mean_interval,
    pass_at_k,
    wilson_interval,
)
from pipeline.table_checks import check_schema, check_table
from pipeline.tables import EVAL, EvalPolicy, FinishReason, Split

CASES = json.loads((Path(__file__).parent / "golden" / "metrics.json").read_text())

counts = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def eval_rows(verdicts: dict[str, list[bool | None]], lengths: int = 0) -> pl.DataFrame:
    """A row for each verdict, the first `lengths` of them cut by the limit; the reward is 1, 0 or null as they say."""
    rows = [(prompt, i, verdict) for prompt, group in verdicts.items() for i, verdict in enumerate(group)]
    n = len(rows)
    frame = pl.DataFrame(
        {
            "iteration": pl.Series([0] * n, dtype=pl.UInt32),
            "policy": pl.Series(["after"] * n, dtype=EvalPolicy),
            "prompt_id": pl.Series([prompt for prompt, _, _ in rows], dtype=pl.String),
            "completion_index": pl.Series([index for _, index, _ in rows], dtype=pl.UInt16),
            "completion_text": pl.Series(["4"] * n, dtype=pl.String),
            "finish_reason": pl.Series(["length"] * lengths + ["stop"] * (n - lengths), dtype=FinishReason),
            "is_correct": pl.Series([verdict for _, _, verdict in rows], dtype=pl.Boolean),
            "reward": pl.Series([verdict for _, _, verdict in rows], dtype=pl.Boolean).cast(pl.Float64),
        }
    )
    check_schema(frame.schema, EVAL, "eval")
    check_table(frame, EVAL, "eval")
    return frame


@pytest.mark.parametrize("case", [case for case in CASES if "k" in case], ids=lambda case: str(case["name"]))
def test_handed_cases_of_pass_at_k(case: dict[str, Any]) -> None:
    assert pass_at_k(case["n"], case["c"], case["k"]) == pytest.approx(case["value"], abs=1e-6)


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4)  # the plain rate
    # Both of 2 drawn from 3 wrong ones of 5: (3 choose 2) / (5 choose 2) = 3 / 10.
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7)
    assert pass_at_k(5, 0, 5) == 0.0
    assert pass_at_k(5, 5, 1) == 1.0
    assert pass_at_k(5, 3, 3) == 1.0 - 0 / 10  # only 2 are wrong: 3 draws always meet a correct one


@pytest.mark.parametrize("n", range(1, 7))
def test_pass_at_k_is_the_share_of_all_draws_with_a_correct_one(n: int) -> None:
    for n_correct, k in itertools.product(range(n + 1), range(1, n + 1)):
        draws = list(itertools.combinations([True] * n_correct + [False] * (n - n_correct), k))
        assert pass_at_k(n, n_correct, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


@pytest.mark.parametrize(("n", "n_correct", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0), (0, 0, 1)])
def test_pass_at_k_refuses_what_has_no_value(n: int, n_correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="is not defined"):
        pass_at_k(n, n_correct, k)


def test_pass_at_k_of_many_completions_is_exact() -> None:
    # 1 - 0.999^... in floats would round; integers don't: 1 correct of 10,000, 100 drawn, is 100 / 10,000.
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01, rel=1e-12)


def test_z_is_the_quantile_of_the_standard_normal() -> None:
    assert math.erf(Z_95 / math.sqrt(2)) == pytest.approx(0.95, abs=1e-7)


def test_wilson_interval_at_the_ends() -> None:
    # None of 10: (z^2/20 + z^2/20) / (1 + z^2/10) = z^2 / (10 + z^2) = 3.841459 / 13.841459 = 0.277533.
    assert wilson_interval(0, 10) == (0.0, pytest.approx(0.277533, abs=1e-6))
    assert wilson_interval(10, 10) == (pytest.approx(1 - 0.277533, abs=1e-6), 1.0)


@given(counts)
def test_wilson_bounds_solve_the_score_equation(count: tuple[int, int]) -> None:
    n_correct, n = count
    rate = n_correct / n
    for bound in wilson_interval(n_correct, n):
        assert (rate - bound) ** 2 == pytest.approx(Z_95**2 * bound * (1 - bound) / n, abs=1e-12)


@given(counts)
def test_wilson_interval_holds_the_rate_and_mirrors(count: tuple[int, int]) -> None:
    n_correct, n = count
    low, high = wilson_interval(n_correct, n)
    assert 0 <= low <= n_correct / n <= high <= 1
    assert wilson_interval(n - n_correct, n) == (pytest.approx(1 - high, abs=1e-12), pytest.approx(1 - low, abs=1e-12))


def test_mean_interval_by_hand() -> None:
    # Mean 0.5, std (ddof=1) sqrt(0.5 / 3) = 0.408248, half width 1.959964 * 0.408248 / 2 = 0.400076.
    assert mean_interval([0.5, 1.0, 0.0, 0.5]) == (pytest.approx(0.099924, abs=1e-6), pytest.approx(0.900076, abs=1e-6))
    assert mean_interval([0.0, 1.0]) == (0.0, 1.0)  # half width 1.96 * 0.7071 / 1.4142 = 0.98: cut on both sides
    assert mean_interval([0.3]) == (0.0, 1.0)


def test_metrics_with_one_completion_per_prompt() -> None:
    metrics = evaluation_metrics(eval_rows({"a": [True], "b": [False], "c": [True], "d": [None]}, lengths=1), [1])
    low, high = wilson_interval(2, 3)  # d has no verdict
    assert metrics == {
        "pass_at_1": pytest.approx(2 / 3),
        "pass_at_1_low": low,
        "pass_at_1_high": high,
        "pass_at_k": {"1": pytest.approx(2 / 3)},
        "reward_mean": pytest.approx(2 / 3),
        "truncated_fraction": 0.25,
    }


def test_metrics_with_several_completions_per_prompt() -> None:
    verdicts: dict[str, list[bool | None]] = {
        "a": [True, False, False, True],  # rate 1/2, pass@2 1 - 1/6 = 5/6
        "b": [False, False, False, False],  # 0, 0
        "c": [True, None, None, None],  # rate 1, too few verdicts for pass@2
    }
    metrics = evaluation_metrics(eval_rows(verdicts), [1, 2])
    assert metrics["pass_at_1"] == pytest.approx(0.5)  # (1/2 + 0 + 1) / 3, each prompt counts once
    assert metrics["pass_at_k"] == {"1": pytest.approx(0.5), "2": pytest.approx(5 / 12)}
    assert (metrics["pass_at_1_low"], metrics["pass_at_1_high"]) == mean_interval([0.5, 0.0, 1.0])
    assert metrics["reward_mean"] == pytest.approx(3 / 9)
    assert metrics["truncated_fraction"] == 0.0


def test_order_of_rows_changes_no_metric() -> None:
    rows = eval_rows({f"{i}": [i % 3 == 0, i % 2 == 0, i == 5] for i in range(9)}, lengths=4)
    assert evaluation_metrics(rows.sample(fraction=1, shuffle=True, seed=1), [1, 2]) == evaluation_metrics(rows, [1, 2])


@pytest.mark.parametrize("verdicts", [{}, {"a": [None, None], "b": [None]}])
def test_no_verdict_is_null_and_not_zero(verdicts: dict[str, list[bool | None]]) -> None:
    metrics = evaluation_metrics(eval_rows(verdicts), [1, 4])
    assert metrics["pass_at_k"] == {"1": None, "4": None}
    assert [metrics[f"pass_at_1{end}"] for end in ("", "_low", "_high")] == [None] * 3
    assert metrics["reward_mean"] is None


def test_eval_prompts_are_a_fixed_subset_of_the_eval_split() -> None:
    ids = [f"{i * 7919 % 97:04d}" for i in range(40)]
    prompts = pl.DataFrame({"prompt_id": ids, "split": pl.Series(["eval", "train"] * 20, dtype=Split)})
    chosen = {n: choose_eval_prompts(prompts, n)["prompt_id"].to_list() for n in (5, 12, 100)}
    assert chosen[100] == sorted(ids[::2]), "all there are, where fewer than were asked for"
    assert (chosen[5], chosen[12]) == (chosen[100][:5], chosen[100][:12])
    assert choose_eval_prompts(prompts[::-1], 5)["prompt_id"].to_list() == chosen[5]
