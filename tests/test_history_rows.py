from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BadInput
from pipeline.history_rows import COLUMNS, HistoryRow, append_history, history_row, read_history, row_before
from tests.iteration_sample import no_group_kept, sample_metrics


def a_row(iteration: int, pass_rate: float | None = None) -> HistoryRow:
    return {**dict.fromkeys(COLUMNS), "iteration": iteration, "pass_rate": pass_rate}


def test_row_repeats_the_metrics() -> None:
    row = history_row(3, sample_metrics())
    assert tuple(row) == COLUMNS
    assert row == {
        "iteration": 3,
        "n_groups": 16,
        "n_kept": 6,
        "n_completions": 64,
        "n_completion_tokens": 560,
        "completion_tokens_mean": 8.75,
        "truncated_fraction": 0.0625,
        "reward_mean": 0.328125,
        "n_steps": 1,
        "loss": 0.0012,
        "kl": 0.0251,
        "entropy": 1.31,
        "clip_fraction": 0.0,
        "ratio_max": 1.0,
        "sampling_kl": 0.0003,
        "grad_norm": 0.71,
        "learning_rate": 0.0001,
        "eval_pass_at_1_before": 0.171875,
        "eval_pass_at_1": 0.234375,
        "eval_pass_at_1_low": 0.1695,
        "eval_pass_at_1_high": 0.3147,
        "n_surplus": None,
        "n_all_correct": 2,
        "n_all_wrong": 7,
        "pass_rate": 0.3125,
    }


def test_row_is_null_where_there_is_no_number() -> None:
    off_schedule = {"is_scheduled": False, "before": None, "after": None}
    row = history_row(0, sample_metrics(**no_group_kept(), evaluate=off_schedule, score={"pass_rate": float("nan")}))
    assert [name for name in COLUMNS if row[name] is None] == [
        "loss",
        "kl",
        "entropy",
        "clip_fraction",
        "ratio_max",
        "sampling_kl",
        "grad_norm",
        "learning_rate",
        "eval_pass_at_1_before",
        "eval_pass_at_1",
        "eval_pass_at_1_low",
        "eval_pass_at_1_high",
        "n_surplus",
        "pass_rate",
    ]


def test_surplus_groups_are_counted_where_the_filter_did() -> None:
    assert history_row(0, sample_metrics(filter={"n_surplus": 3}))["n_surplus"] == 3


def test_before_is_the_parents_after_where_it_was_not_measured_again() -> None:
    parent = history_row(2, sample_metrics())
    unmeasured = sample_metrics(evaluate={"before": None})
    assert history_row(3, unmeasured, parent)["eval_pass_at_1_before"] == 0.234375
    assert history_row(3, unmeasured)["eval_pass_at_1_before"] is None
    assert history_row(3, sample_metrics(), parent)["eval_pass_at_1_before"] == 0.171875
    without_verdict = sample_metrics(evaluate={"before": {"pass_at_1": None}})
    assert history_row(3, without_verdict, parent)["eval_pass_at_1_before"] is None


def test_first_iteration_makes_the_file() -> None:
    text = append_history(None, a_row(0, 0.25))
    n_empty = len(COLUMNS) - 2
    assert text == ",".join(COLUMNS) + "\n" + "0" + "," * (n_empty + 1) + "0.25\n"


def test_rows_of_the_same_and_later_iterations_are_replaced() -> None:
    text = None
    for iteration, pass_rate in ((0, 0.1), (1, 0.2), (2, 0.3)):
        text = append_history(text, a_row(iteration, pass_rate))
    rows = read_history(append_history(text, a_row(1, 0.9)))
    assert [(row["iteration"], row["pass_rate"]) for row in rows] == [(0, 0.1), (1, 0.9)]


def test_numbers_come_back_exactly() -> None:
    row = history_row(7, sample_metrics(score={"pass_rate": 1 / 3}, update={"learning_rate": 1e-05}))
    assert read_history(append_history(None, row)) == [row]


@given(st.lists(st.integers(0, 30), min_size=1))
def test_iterations_rise_and_end_with_the_newest(iterations: list[int]) -> None:
    text = None
    for iteration in iterations:
        text = append_history(text, a_row(iteration))
    found = [row["iteration"] for row in read_history(text or "")]
    # What survives are the iterations that no later entry equals or undercuts.
    survivors = [k for i, k in enumerate(iterations) if all(k < other for other in iterations[i + 1 :])]
    assert found == survivors


def test_a_column_that_an_older_file_lacks_is_null() -> None:
    assert read_history("iteration,pass_rate\n4,0.5\n") == [a_row(4, 0.5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iteration,pas_rate\n0,0.5\n", "column 'pas_rate' is not a column of the history"),
        ("iteration,pass_rate\n0,high\n", "row 0: pass_rate: 'high' is not a finite number"),
        ("iteration,pass_rate\n0,0.5\n1,nan\n", "row 1: pass_rate: 'nan' is not a finite number"),
        ("iteration,pass_rate\n,0.5\n", "needs an iteration"),
        ("iteration,pass_rate\n1.5,0.5\n", "needs an iteration"),
        ("iteration,pass_rate\n0,0.5,0.7\n", "a value per column"),
    ],
)
def test_a_damaged_file_is_named(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        append_history(text, a_row(9))


def test_row_before_is_the_latest_earlier_one() -> None:
    rows = [a_row(0, 0.1), a_row(2, 0.3), a_row(5, 0.4)]
    assert row_before(rows, 5) == rows[1]
    assert row_before(rows, 0) is None
