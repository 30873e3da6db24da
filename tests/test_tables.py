"""The rules of every table, each broken alone, and what the message names."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BadInput
from pipeline.table_checks import check_order, check_schema, check_table
from pipeline.tables import (
    EVAL,
    PROMPTS,
    REWARDS,
    ROLLOUTS,
    SELECTION,
    TABLES,
    TOKEN_LOGPROBS,
    TRAINING_SET,
    Column,
    Table,
)
from tests.example_tables import example, with_value

FILE = "data/x.parquet"
EVERY_TABLE = [pytest.param(table, id=name) for name, table in TABLES.items()]


def columns_where(chosen: Any) -> list[Any]:
    """Parameters (table, column) for the columns of every table that are `chosen`."""
    return [
        pytest.param(table, column, id=f"{name}.{column.name}")
        for name, table in TABLES.items()
        for column in table.columns
        if chosen(column)
    ]


def is_float_list(column: Column) -> bool:
    return isinstance(column.dtype, pl.List) and column.dtype.inner == pl.Float32


def refusal(frame: pl.DataFrame, table: Table, first_row: int = 0) -> str:
    with pytest.raises(BadInput) as caught:
        check_table(frame, table, FILE, first_row)
    return str(caught.value)


def schema_refusal(frame: pl.DataFrame, table: Table) -> str:
    with pytest.raises(BadInput) as caught:
        check_schema(frame.schema, table, FILE)
    return str(caught.value)


@pytest.mark.parametrize("table", EVERY_TABLE)
def test_a_good_table_passes(table: Table) -> None:
    for n_rows in (1, 3):
        frame = example(table, n_rows)
        check_schema(frame.schema, table, FILE)
        check_table(frame, table, FILE)
        check_order(frame.select(table.key), table, FILE)


@pytest.mark.parametrize("table", EVERY_TABLE)
def test_only_some_tables_may_be_empty(table: Table) -> None:
    if table.name not in ("prompts", "selection", "rollouts"):
        check_table(table.empty(), table, FILE)
        return
    message = refusal(table.empty(), table)
    assert message.startswith(f"{FILE}: it has no rows, and {table.name} needs at least one. ")
    assert "dvc repro" in message


@pytest.mark.parametrize(("table", "column"), columns_where(lambda column: True))
def test_every_column_must_be_there_with_its_type(table: Table, column: Column) -> None:
    frame = example(table)
    message = schema_refusal(frame.drop(column.name), table)
    assert message.startswith(f"{FILE}: column '{column.name}' is missing; {table.name} has [")
    other = pl.Int64 if column.dtype != pl.Int64 else pl.Int32
    message = schema_refusal(frame.with_columns(pl.lit(0, dtype=other).alias(column.name)), table)
    assert message.startswith(f"{FILE}: column '{column.name}' is {other}, not {column.dtype}. ")


@pytest.mark.parametrize("table", EVERY_TABLE)
def test_a_column_too_many_is_refused(table: Table) -> None:
    message = schema_refusal(example(table).with_columns(notes=pl.lit("x")), table)
    assert message.startswith(f"{FILE}: column 'notes' is not a column of {table.name}: [")


def test_types_that_only_look_alike_are_refused() -> None:
    frame = example(ROLLOUTS)
    other_enum = pl.Enum(["stop", "length", "error"])
    for name, dtype in (
        ("finish_reason", pl.String),
        ("finish_reason", pl.Categorical),
        ("finish_reason", other_enum),
        ("sampling_logprobs", pl.List(pl.Float64)),
        ("completion_token_ids", pl.List(pl.Int64)),
        ("completion_index", pl.UInt32),
    ):
        message = schema_refusal(frame.with_columns(pl.col(name).cast(dtype)), ROLLOUTS)
        assert message.startswith(f"{FILE}: column '{name}' is ")
    chats = [[{"role": "user", "content": "x", "name": "y"}]] * 3
    assert "column 'messages' is " in schema_refusal(example(PROMPTS).with_columns(messages=pl.Series(chats)), PROMPTS)


def test_rewards_have_a_column_of_floats_per_term() -> None:
    frame = example(REWARDS)
    check_schema(
        frame.with_columns(reward_format=pl.lit(0.5), reward_math=pl.lit(None, pl.Float64)).schema, REWARDS, FILE
    )
    message = schema_refusal(frame.with_columns(reward_format=pl.lit("high")), REWARDS)
    assert message.startswith(f"{FILE}: column 'reward_format' is String, not Float64. ")
    assert "'rewards_x' is not a column" in schema_refusal(frame.with_columns(rewards_x=pl.lit(0.5)), REWARDS)
    check_table(frame.with_columns(reward_format=pl.lit(None, pl.Float64)), REWARDS, FILE)
    message = refusal(frame.with_columns(reward_format=pl.Series([0.0, float("nan"), 1.0])), REWARDS)
    assert message.startswith(f"{FILE}: row 1: reward_format is not finite: (nan,). ")


@pytest.mark.parametrize(("table", "column"), columns_where(lambda column: not column.nullable))
def test_a_null_is_named_with_its_row(table: Table, column: Column) -> None:
    message = refusal(with_value(example(table), 2, column.name, None), table)
    assert message.startswith(f"{FILE}: row 2: {column.name} is null: (None,). ")
    assert "dvc checkout" in message


@pytest.mark.parametrize(("table", "column"), columns_where(lambda column: column.nullable))
def test_a_null_passes_where_it_is_allowed(table: Table, column: Column) -> None:
    check_table(with_value(example(table), 1, column.name, None), table, FILE)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("table", "column"), columns_where(lambda column: column.dtype == pl.Float64))
def test_a_number_that_is_not_finite_is_named_with_its_row(table: Table, column: Column, value: float) -> None:
    message = refusal(with_value(example(table), 1, column.name, value), table)
    assert message.startswith(f"{FILE}: row 1: {column.name} is not finite: ({value},). ")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("table", "column"), columns_where(is_float_list))
def test_an_entry_that_is_not_finite_is_named_with_its_row(table: Table, column: Column, value: float) -> None:
    message = refusal(with_value(example(table), 1, column.name, [-0.5, value]), table)
    assert message.startswith(f"{FILE}: row 1: {column.name} has an entry that is not finite: ([-0.5, {value}],). ")


@pytest.mark.parametrize(("table", "column"), columns_where(lambda column: isinstance(column.dtype, pl.List)))
def test_a_null_within_a_list_is_named_with_its_row(table: Table, column: Column) -> None:
    frame = example(table)
    entries = [*frame[column.name].to_list()[1][:1], None]
    message = refusal(with_value(frame, 1, column.name, entries), table)
    assert message.startswith(f"{FILE}: row 1: {column.name} has an entry that is null: ([")


@pytest.mark.parametrize("part", ["role", "content"])
def test_a_null_within_a_message_is_named_with_its_row(part: str) -> None:
    chat = [{"role": "user", "content": "x"}, {"role": "user", "content": "y", part: None}]
    message = refusal(with_value(example(PROMPTS), 1, "messages", chat), PROMPTS)
    assert message.startswith(f"{FILE}: row 1: messages has an entry whose {part} is null: (")


@pytest.mark.parametrize("entries", [[-0.5], [-0.5] * 3, []])
@pytest.mark.parametrize(
    ("table", "first", "second"),
    [
        (ROLLOUTS, "completion_token_ids", "sampling_logprobs"),
        (TRAINING_SET, "completion_token_ids", "sampling_logprobs"),
        (TOKEN_LOGPROBS, "old_logprobs", "ref_logprobs"),
    ],
)
def test_lists_of_the_same_tokens_are_as_long(table: Table, first: str, second: str, entries: list[float]) -> None:
    message = refusal(with_value(example(table), 2, second, entries), table)
    assert message.startswith(f"{FILE}: row 2: {second} has another number of entries than {first}: ([")


@pytest.mark.parametrize("table", EVERY_TABLE)
def test_two_rows_of_one_key_are_named(table: Table) -> None:
    frame = example(table, 4)
    twins = pl.concat([frame, frame[2]])
    message = refusal(twins, table)
    key = ", ".join(table.key)
    assert message.startswith(f"{FILE}: row 2: {key} is the same in two rows, and it is the key: ")
    assert repr(frame[table.key[-1]].to_list()[2]) in message
    assert " (2 rows in all). " in message


def test_a_key_of_several_columns_is_the_same_only_where_all_are() -> None:
    rows = [("before", "a", 0), ("before", "a", 1), ("before", "b", 0), ("after", "a", 0)]
    keys = pl.DataFrame(rows, schema={name: EVAL.schema[name] for name in EVAL.key}, orient="row")
    check_table(keys, EVAL, FILE)
    check_order(keys, EVAL, FILE)  # an Enum sorts by its place, not by its letters


@pytest.mark.parametrize("table", EVERY_TABLE)
def test_a_row_out_of_place_is_named(table: Table) -> None:
    keys = example(table, 4).select(table.key)
    with pytest.raises(BadInput) as caught:
        check_order(keys[[0, 2, 1, 3]], table, FILE, first_row=100)
    message = str(caught.value)
    assert message.startswith(f"{FILE}: row 101: {', '.join(table.key)} is out of place, as rows are sorted by it: ")
    assert " (2 rows in all). " in message


def test_rows_are_counted_from_the_first_row_of_the_frame() -> None:
    message = refusal(with_value(example(ROLLOUTS), 1, "seed", None), ROLLOUTS, first_row=50_000)
    assert message.startswith(f"{FILE}: row 50001: seed is null: ")


def test_a_part_of_the_columns_can_be_checked() -> None:
    frame = example(ROLLOUTS)
    check_table(frame.select("seed"), ROLLOUTS, FILE)
    check_table(frame.select("sampling_logprobs").with_columns(pl.lit("a").alias("x")), ROLLOUTS, FILE)
    assert "seed is null" in refusal(with_value(frame, 0, "seed", None).select("seed"), ROLLOUTS)


def test_a_long_value_is_cut() -> None:
    frame = with_value(example(ROLLOUTS), 0, "sampling_logprobs", [-0.5] * 5000)
    assert len(refusal(frame, ROLLOUTS)) < 500


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=8),
)
def test_order_and_uniqueness_agree_with_plain_python(rows: list[tuple[int, int]]) -> None:
    keys = pl.DataFrame(rows, schema={name: SELECTION.schema[name] for name in SELECTION.key}, orient="row")
    is_good = rows == sorted(set(rows))
    try:
        check_order(keys, SELECTION, FILE)
    except BadInput:
        assert not is_good
    else:
        assert is_good
