"""A question put to tables: the rows that answer it, best first, with what a reader wants to see beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.audit.filters import checked
from pipeline.audit.question import PROMPT, Question, Unanswerable, prompt_text
from pipeline.audit.tables import Tables

DETAILS: dict[str, tuple[str, pl.Expr]] = {
    **{name: ("rollouts", pl.col(name)) for name in ("completion_text", "finish_reason")},
    **{name: ("rewards", pl.col(name)) for name in ("reward", "is_correct", "extracted_answer", "score_error")},
    "advantage": ("advantages", pl.col("advantage")),
    "answer": ("prompts", pl.col("answer")),
    "prompt": ("prompts", prompt_text().alias("prompt")),
}
"""Column that can be looked up -> its table, and what gives it."""


@dataclass(frozen=True)
class Answer:
    """The first rows of the answer to a question, and how many rows it has in all."""

    question: Question
    rows: pl.DataFrame
    n_rows: int


def answer(question: Question, tables: Tables, limit: int | None = None, where: pl.Expr | None = None) -> Answer:
    """The first `limit` rows, or all, that answer `question`, of those that are as `where` says.

    Rows are found part by part, so that memory holds a part and what was found so far.

    Raises:
        Unanswerable: what the question needs does not exist in any part.
        BadInput: a table is missing or damaged, or `where` is about a column that the answer doesn't have.
    """
    found: list[pl.DataFrame] = []
    n_rows = 0
    reason: Unanswerable | None = None
    for part in tables.parts() if question.is_local else [tables]:
        try:
            rows = question.find(part)
        except Unanswerable as error:
            reason = error
            continue
        best, count = _collect(question, rows if where is None else checked(rows, where), limit)
        n_rows += count
        found = [_best(question, pl.concat([*found, best], how="diagonal").lazy(), limit).collect()]
    if not found:
        assert reason is not None
        raise reason
    return Answer(question, _with_details(found[0], question.details, tables), n_rows)


def _best(question: Question, rows: pl.LazyFrame, limit: int | None) -> pl.LazyFrame:
    ordered = question.sort(rows)
    return ordered if limit is None else ordered.head(limit)


def _collect(question: Question, rows: pl.LazyFrame, limit: int | None) -> tuple[pl.DataFrame, int]:
    if limit is None:
        best = _best(question, rows, None).collect(engine="streaming")
        return best, best.height
    best, count = pl.collect_all([_best(question, rows, limit), rows.select(pl.len())], engine="streaming")
    return best, int(count.item())


def _with_details(rows: pl.DataFrame, details: Sequence[str], tables: Tables) -> pl.DataFrame:
    """`rows` with the columns `details`, read from the iterations that the rows are of alone."""
    wanted = [name for name in details if name not in rows.columns]
    if rows.height == 0 or not wanted:
        return rows
    near = tables.of_iterations(rows)
    for table, columns in _by_table(wanted):
        keys = list(PROMPT) if table == "prompts" else ["run", "completion_id"]
        asked = rows.lazy().select(keys).unique()
        looked_up = near[table].select(*keys, *columns).join(asked, on=keys, how="semi").collect(engine="streaming")
        rows = rows.join(looked_up, on=keys, how="left", maintain_order="left")
    return rows.select(*(name for name in rows.columns if name not in wanted), *wanted)


def _by_table(names: Sequence[str]) -> Iterator[tuple[str, list[pl.Expr]]]:
    for table in dict.fromkeys(DETAILS[name][0] for name in names):
        yield table, [DETAILS[name][1] for name in names if DETAILS[name][0] == table]
