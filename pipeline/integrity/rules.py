"""What a rule is, and how two tables that should agree are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.integrity.evidence import Evidence

TOLERANCE = 1e-9
"""How far a number that is computed again may be off, beside its size: another machine adds in another order."""

LOGPROB_SLACK = 1e-4
"""A log-probability is at most zero, but for the rounding of float32."""


@dataclass(frozen=True)
class Rule:
    """Something that holds of every sound iteration.

    `find` gives the rows that break it, of the table `table`: an id in the first column, and `why`.
    """

    name: str
    table: str
    needs: tuple[str, ...]
    find: Callable[[Evidence], pl.LazyFrame]


def breaks(rows: pl.LazyFrame, key: str, is_bad: pl.Expr, why: pl.Expr) -> pl.LazyFrame:
    """The rows of which `is_bad` holds, as a rule gives them."""
    return rows.filter(is_bad).select(key, why=why)


def above_zero(rows: pl.LazyFrame, *columns: str) -> pl.LazyFrame:
    """The completions with a log-probability above 0 in one of `columns`."""
    highest = pl.max_horizontal(pl.col(name).list.max() for name in columns)
    why = pl.format("a log-probability of its {} is {}", pl.lit(" or ".join(columns)), highest)
    return breaks(rows, "completion_id", highest > LOGPROB_SLACK, why)


def same_keys(rows: pl.LazyFrame, others: pl.LazyFrame, key: str, other: str) -> pl.LazyFrame:
    """The keys that `rows` lacks and `others` has, and those that it has beyond: `other` says whose they are."""
    lacks = others.select(key).unique().join(rows.select(key), on=key, how="anti")
    extra = rows.select(key).unique().join(others.select(key), on=key, how="anti")
    return pl.concat(
        [
            lacks.select(key, why=pl.lit(f"it is missing, and {other} have it")),
            extra.select(key, why=pl.lit(f"it is there, and {other} don't have it")),
        ]
    )


def compare(
    found: pl.LazyFrame, expected: pl.LazyFrame, key: str, exact: Sequence[str] = (), close: Sequence[str] = ()
) -> pl.LazyFrame:
    """The rows in which `found` is not what is `expected`, by `key`, with the first column that differs.

    Columns `exact` are to be equal and `close` within `TOLERANCE`; null equals null alone.
    """
    columns = (*exact, *close)
    left = found.select(key, *columns, is_found=pl.lit(True))
    right = expected.select(
        key, *(pl.col(name).alias(f"expected {name}") for name in columns), is_expected=pl.lit(True)
    )
    both = left.join(right, on=key, how="full", coalesce=True)
    is_list = {name for name, dtype in found.collect_schema().items() if dtype.is_nested()}
    reasons = [
        pl.when(pl.col("is_found").is_null()).then(pl.lit("it is missing")),
        pl.when(pl.col("is_expected").is_null()).then(pl.lit("it should not be there")),
        *(pl.when(_differs(name, name in close)).then(_saying(name, name in is_list)) for name in columns),
    ]
    return both.select(key, why=pl.coalesce(reasons)).filter(pl.col("why").is_not_null())


def _differs(name: str, is_close: bool) -> pl.Expr:
    value, expected = pl.col(name), pl.col(f"expected {name}")
    if not is_close:
        return value.ne_missing(expected)
    is_far = (value - expected).abs() > TOLERANCE * (1 + expected.abs())
    return (value.is_null() != expected.is_null()) | is_far.fill_null(False)


def _saying(name: str, is_list: bool) -> pl.Expr:
    if is_list:
        return pl.lit(f"its {name} are other ones")
    value, expected = (pl.col(column).cast(pl.String).fill_null("null") for column in (name, f"expected {name}"))
    return pl.format("its {} is {}, and should be {}", pl.lit(name), value, expected)
