"""Which rows a step uses, how they are cut into micro-batches, and what a micro-batch holds."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.table_checks import check_schema, check_table
from pipeline.tables import TRAINING_SET
from pipeline.training.batching import Step, TrainingRow, cut_padded_rows, pad_rows, plan_steps, read_rows
from pipeline.training.packing import cut_packed_rows
from tests.tiny_updates import CPU, random_rows

CASES = {case["name"]: case for case in json.loads((Path(__file__).parents[1] / "golden" / "loss.json").read_text())}

sizes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=12)


def rows_of(lengths: list[tuple[int, int, int]]) -> list[TrainingRow]:
    """Rows of so many completion tokens, prompt tokens, and the number of their group."""
    return [row(str(i), f"g{group}", [7] * n_prompt, [8] * n) for i, (n, n_prompt, group) in enumerate(lengths)]


def row(completion_id: str, group_id: str, prompt: list[int], completion: list[int]) -> TrainingRow:
    return TrainingRow(completion_id, group_id, prompt, completion, [-1.0] * len(completion), 0.5)


def plan(rows: list[TrainingRow], epochs: int = 1, minibatches: int = 1, *seed_parts: int) -> list[Step]:
    cut = partial(cut_padded_rows, rows, max_tokens=40)
    return plan_steps(rows, epochs, minibatches, cut, *seed_parts)


# --- padded rows


def test_prompts_end_and_completions_begin_at_one_place() -> None:
    padded = pad_rows([row("a", "g", [11, 12, 13], [21]), row("b", "g", [14], [22, 23])], CPU)
    assert padded.input_ids.tolist() == [[11, 12, 13, 21, 0], [0, 0, 14, 22, 23]]
    assert padded.attention_mask.tolist() == [[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert padded.position_ids.tolist() == [[0, 1, 2, 3, 3], [0, 0, 0, 1, 2]]
    assert padded.completion_ids.tolist() == [[21, 0], [22, 23]]
    assert padded.completion_mask.tolist() == [[True, False], [True, True]]


def test_case_pad_is_eos() -> None:
    """An end token counts, though it has the id that padding has."""
    case = CASES["pad_is_eos"]
    completion = case["token_ids"][: case["length"]]
    padded = pad_rows([row("a", "g", [0, 3], completion), row("b", "g", [4], [9] * len(case["token_ids"]))], CPU)
    assert padded.completion_ids[0].tolist() == case["token_ids"]
    assert padded.completion_mask[0].int().tolist() == case["mask"]
    assert padded.attention_mask[0].tolist() == [1, 1, *case["mask"]], "the prompt's own 0 is a token too"


def test_precisions() -> None:
    padded = pad_rows(random_rows(), CPU)
    assert padded.input_ids.dtype == padded.position_ids.dtype == torch.int64
    assert padded.completion_mask.dtype == torch.bool


# --- reading rows


def training_set(lengths: list[int], truncated: list[bool]) -> pl.DataFrame:
    n = len(lengths)
    frame = pl.DataFrame(
        {
            "iteration": [0] * n,
            "completion_id": [f"c{i}" for i in range(n)],
            "group_id": ["g"] * n,
            "prompt_token_ids": [[5, 6]] * n,
            "completion_token_ids": [list(range(length)) for length in lengths],
            "sampling_logprobs": [[-0.5] * length for length in lengths],
            "advantage": [i / 2 for i in range(n)],
            "is_truncated": truncated,
        },
        schema=TRAINING_SET.schema,
    )
    check_schema(frame.schema, TRAINING_SET, "training_set")
    check_table(frame, TRAINING_SET, "training_set")
    return frame


def test_rows_are_all_where_none_is_masked() -> None:
    rows = read_rows(training_set([2, 3, 1], [False, False, True]), mask_truncated=False)
    assert [(row.completion_id, row.completion_token_ids, row.advantage) for row in rows] == [
        ("c0", [0, 1], 0.0),
        ("c1", [0, 1, 2], 0.5),
        ("c2", [0], 1.0),
    ]
    assert rows[0].sampling_logprobs == [-0.5, -0.5]


def test_mask_truncated_leaves_out_what_was_cut() -> None:
    rows = read_rows(training_set([2, 3, 1], [False, True, False]), mask_truncated=True)
    assert [row.completion_id for row in rows] == ["c0", "c2"]
    assert read_rows(training_set([1], [True]), mask_truncated=True) == []


# --- steps


@given(sizes, st.integers(1, 3), st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_epoch_uses_every_row_once_in_whole_groups(
    lengths: list[tuple[int, int, int]], epochs: int, minibatches: int, seed: int
) -> None:
    rows = rows_of(lengths)
    steps = plan(rows, epochs, minibatches, seed)
    groups = {row.group_id for row in rows}
    assert len(steps) == epochs * min(minibatches, len(groups))
    for epoch in range(epochs):
        used = [step for step in steps if step.epoch == epoch]
        assert sorted(index for step in used for index in step.rows) == list(range(len(rows)))
        per_step = [{rows[index].group_id for index in step.rows} for step in used]
        assert sum(map(len, per_step)) == len(groups), "no group stands in two steps"
        assert max(map(len, per_step)) - min(map(len, per_step)) <= 1


def test_no_row_gives_no_step() -> None:
    assert plan([], 2, 3) == []


def test_steps_do_not_depend_on_the_order_of_rows() -> None:
    rows = random_rows(n_groups=7)
    there = [[[rows[i].completion_id for i in batch] for batch in step.micro_batches] for step in plan(rows, 2, 3)]
    turned = rows[::-1]
    assert [[[turned[i].completion_id for i in b] for b in step.micro_batches] for step in plan(turned, 2, 3)] == there


def test_each_epoch_iteration_and_seed_has_its_own_order() -> None:
    rows = random_rows(n_groups=12)
    first, second = (step.rows for step in plan(rows, 2, 1, 0, 0))
    assert sorted(first) == sorted(second), "one step holds them all"
    halves = {tuple(sorted(step.rows)) for seed in range(3) for step in plan(rows, 2, 2, 0, seed)[::2]}
    assert len(halves) == 6
    assert plan(rows, 2, 2, 0, 1) == plan(rows, 2, 2, 0, 1)


# --- micro-batches


@given(sizes, st.integers(2, 40))
@settings(max_examples=100, deadline=None)
def test_padded_micro_batches_keep_the_limit(lengths: list[tuple[int, int, int]], max_tokens: int) -> None:
    rows = rows_of(lengths)
    batches = cut_padded_rows(rows, range(len(rows)), max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(rows)))
    for indices in batches:
        padded = pad_rows([rows[index] for index in indices], CPU)
        assert padded.input_ids.numel() <= max_tokens or len(indices) == 1


def test_padded_micro_batches_come_longest_first() -> None:
    rows = rows_of([(1, 2, 0), (5, 2, 0), (4, 2, 0), (2, 2, 0)])
    # 5 + 2 twice is 14 of 16 tokens, a third row would make 21; then 2 + 2 twice.
    assert cut_padded_rows(rows, range(4), max_tokens=16) == [[1, 2], [3, 0]]


def test_a_row_longer_than_the_limit_stands_alone() -> None:
    rows = rows_of([(9, 9, 0), (1, 1, 0), (1, 1, 0)])
    assert cut_padded_rows(rows, range(3), max_tokens=4) == [[0], [2, 1]]


def test_a_wide_prompt_counts_for_every_row() -> None:
    rows = rows_of([(3, 1, 0), (2, 9, 0)])
    assert cut_padded_rows(rows, range(2), max_tokens=23) == [[0], [1]]  # together (3 + 9) * 2 = 24
    assert cut_padded_rows(rows, range(2), max_tokens=24) == [[0, 1]]


@given(sizes, st.integers(2, 40))
@settings(max_examples=100, deadline=None)
def test_packed_micro_batches_keep_the_limit(lengths: list[tuple[int, int, int]], max_tokens: int) -> None:
    rows = [replace(row, prompt_token_ids=[7] * (3 + int(row.group_id[1]))) for row in rows_of(lengths)]
    batches = cut_packed_rows(rows, range(len(rows)), max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(rows)))
    for batch in batches:
        groups = [rows[index].group_id for index in batch]
        assert groups == sorted(groups), "completions of a group stand side by side"
        n_prompt = sum(3 + int(group[1]) for group in set(groups))
        n_tokens = n_prompt + sum(len(rows[index].completion_token_ids) for index in batch)
        assert n_tokens <= max_tokens or len(batch) == 1


@pytest.mark.parametrize("cut", [cut_padded_rows, cut_packed_rows])
def test_micro_batches_of_nothing(cut: partial[list[list[int]]]) -> None:
    assert cut(random_rows(), [], max_tokens=10) == []
