"""A few rows of any table, true to its schema, for tests that break one rule at a time."""

from __future__ import annotations

from typing import Any

import polars as pl

from pipeline.tables import PolarsType, Table


def example(table: Table, n_rows: int = 3) -> pl.DataFrame:
    """`n_rows` rows of `table`, sorted by key, without a null."""
    columns = {
        column.name: pl.Series([_value(column.name, column.dtype, i) for i in range(n_rows)], dtype=column.dtype)
        for column in table.columns
    }
    return pl.DataFrame(columns, schema=table.schema).sort(table.key)


def with_value(frame: pl.DataFrame, row: int, column: str, value: Any) -> pl.DataFrame:
    """`frame` with `value` in one cell."""
    values = frame[column].to_list()
    values[row] = value
    return frame.with_columns(pl.Series(column, values, dtype=frame.schema[column]))


def _value(name: str, dtype: PolarsType, i: int) -> Any:
    if isinstance(dtype, pl.Enum):
        return dtype.categories[i % len(dtype.categories)]
    if isinstance(dtype, pl.List):
        if isinstance(dtype.inner, pl.Struct):
            return [{field.name: f"{field.name} {i}" for field in dtype.inner.fields}]
        return [-0.25 * i, -0.5] if dtype.inner == pl.Float32 else [i, i + 1]
    if dtype == pl.String:
        return f"{name}-{i:06d}"
    if dtype == pl.Boolean:
        return i % 2 == 0
    return i / 2 if dtype == pl.Float64 else i
