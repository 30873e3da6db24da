"""The rules that the rows of a table obey.

Every table that a stage writes passes them first, and every table that a stage reads passes them again, since a
person may have edited the file in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from pipeline.errors import BadInput
from pipeline.tables import Column, Table

_RERUN: dict[str, str] = {
    "prompts": "Check `prompts` in params.yaml, then run `dvc repro prompts`",
    "selection": "Check `select` in params.yaml, then run `dvc repro select`",
    "rollouts": "Run `dvc repro rollout`",
}


def check_table(frame: pl.DataFrame, table: Table, where: str, first_row: int = 0) -> None:
    """Raise `BadInput` unless `frame` obeys `table`: nulls, NaN, keys, lengths of token lists.

    `where` names the file in the message, and `first_row` is the number in it of the frame's first row. The frame
    may hold a part of the columns of `table`, as a lazy read leaves it; rules that need an absent column are
    skipped, and so are names and types: see `check_schema`.
    """
    if frame.height == 0:
        if not table.may_be_empty:
            raise BadInput(where, f"it has no rows, and {table.name} needs at least one", _RERUN[table.name])
        return
    rows = _Rows(frame, where, first_row)
    for column in table.columns:
        if column.name in frame.columns:
            _check_nulls(rows, column)
    for name, dtype in frame.schema.items():
        if dtype.is_float():
            rows.refuse(~pl.col(name).is_finite(), [name], "is not finite")
        elif isinstance(dtype, pl.List) and dtype.inner.is_float():
            rows.refuse(_any_entry(name, ~pl.element().is_finite()), [name], "has an entry that is not finite")
    _check_lengths(rows, table)
    for name in (name for name in table.not_empty if name in frame.columns):
        rows.refuse(pl.col(name).list.len() == 0, [name], "has no entry")
    if all(name in frame.columns for name in table.key):
        rows.refuse(pl.struct(table.key).is_duplicated(), table.key, "is the same in two rows, and it is the key")


def check_order(keys: pl.DataFrame, table: Table, where: str, first_row: int = 0) -> None:
    """Raise `BadInput` unless `keys`, the key columns of `table`, rise from row to row."""
    rows = _Rows(keys, where, first_row)
    rows.refuse(pl.struct(table.key).is_duplicated(), table.key, "is the same in two rows, and it is the key")
    is_moved = keys.to_struct() != keys.sort(table.key).to_struct()
    rows.refuse(pl.lit(is_moved), table.key, "is out of place, as rows are sorted by it")


def check_schema(schema: pl.Schema, table: Table, where: str) -> None:
    """Raise `BadInput` unless `schema` has exactly the columns of `table`, with their types.

    >>> from pipeline.tables import SELECTION
    >>> check_schema(SELECTION.empty().schema, SELECTION, "data/selection.parquet")
    """
    extra = [name for name in schema if table.type_of(name) is None]
    missing = [name for name in table.schema if name not in schema]
    remedy = f"Run `dvc repro` again so that the stage that makes {table.name} writes it anew"
    if missing:
        raise BadInput(where, f"column {missing[0]!r} is missing; {table.name} has {list(table.schema)}", remedy)
    if extra:
        raise BadInput(where, f"column {extra[0]!r} is not a column of {table.name}: {list(table.schema)}", remedy)
    for name, given in schema.items():
        dtype = table.type_of(name)
        if given != dtype:
            raise BadInput(where, f"column {name!r} is {given}, not {dtype}", remedy)


@dataclass(frozen=True)
class _Rows:
    """Rows under check, the first of which is row `first_row` of the file `where`."""

    frame: pl.DataFrame
    where: str
    first_row: int

    def refuse(self, is_bad: pl.Expr, columns: Sequence[str], rule: str) -> None:
        """Raise `BadInput` where a row `is_bad`, naming the first such row and its value in `columns`."""
        bad = self.frame.select(is_bad.fill_null(False).arg_true()).to_series()
        if bad.len():
            row = int(bad[0])
            value = str(self.frame.select(columns).row(row))[:200]
            others = f" ({bad.len()} rows in all)" if bad.len() > 1 else ""
            raise BadInput(
                self.where,
                f"row {self.first_row + row}: {', '.join(columns)} {rule}: {value}{others}",
                "Restore the file with `dvc checkout`, or run the stage that makes it again",
            )


def _check_nulls(rows: _Rows, column: Column) -> None:
    name = column.name
    if not column.nullable:
        rows.refuse(pl.col(name).is_null(), [name], "is null")
    if isinstance(column.dtype, pl.List):
        rows.refuse(_any_entry(name, pl.element().is_null()), [name], "has an entry that is null")
        for part in column.dtype.inner.fields if isinstance(column.dtype.inner, pl.Struct) else ():
            is_null = pl.element().struct.field(part.name).is_null()
            rows.refuse(_any_entry(name, is_null), [name], f"has an entry whose {part.name} is null")


def _check_lengths(rows: _Rows, table: Table) -> None:
    columns = [name for name in table.same_length if name in rows.frame.columns]
    for first, second in pairwise(columns):
        differ = pl.col(first).list.len() != pl.col(second).list.len()
        rows.refuse(differ, [second], f"has another number of entries than {first}")


def _any_entry(column: str, is_bad: pl.Expr) -> pl.Expr:
    return pl.col(column).list.eval(is_bad).list.any()
