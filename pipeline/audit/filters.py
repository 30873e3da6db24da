"""Conditions in SQL on the rows of an answer."""

from __future__ import annotations

import polars as pl

from pipeline.errors import BadInput, first_line

SQL_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)


def parse_filter(condition: str) -> pl.Expr:
    """The condition of a WHERE in SQL, `reward > 0.5 and not is_correct`, as an expression.

    Raises:
        BadInput: it can't be read.
    """
    try:
        return pl.sql_expr(condition)
    except SQL_ERRORS as error:
        remedy = "Write it as after WHERE in SQL: --where 'reward > 0.5 and not is_correct'"
        raise BadInput(f"--where {condition!r}", f"it can't be read ({first_line(error)})", remedy) from error


def checked(rows: pl.LazyFrame, condition: pl.Expr) -> pl.LazyFrame:
    """The rows of which `condition` holds.

    Raises:
        BadInput: it names a column that they don't have, or is no condition.
    """
    try:  # on no rows at all: types that don't fit are noticed, and nothing is read
        dtype = pl.DataFrame(schema=rows.collect_schema()).select(condition).dtypes[0]
    except SQL_ERRORS as error:
        remedy = f"There are {', '.join(rows.collect_schema())}"
        raise BadInput("--where", first_line(error).partition("; valid columns")[0], remedy) from error
    if dtype != pl.Boolean:
        raise BadInput("--where", f"it is {dtype}, not true or false", "Compare it with something, as in reward > 0.5")
    return rows.filter(condition)
