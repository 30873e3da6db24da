"""What a question is, and what the questions have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from pipeline.audit.tables import INDEX, Tables
from pipeline.errors import BadInput
from pipeline.tables import SHADOW, TERM

COMPLETION = (*INDEX, "prompt_id", "group_id", "completion_id")
GROUP = (*INDEX, "prompt_id", "group_id")
PROMPT = (*INDEX, "prompt_id")
"""The ids that a row of an answer begins with, whatever it is about."""


class Unanswerable(BadInput):
    """What a question needs does not exist in these iterations, and the message says what that is."""


@dataclass(frozen=True)
class Question:
    """A question about runs, as a function from tables to the rows that answer it.

    `find` gives few columns, ids first. `order` is what the answer is sorted by, the first column before the second,
    a minus in front for the largest first; nulls come last. `details` are columns that are looked up for the rows
    that are shown: texts, say, which `find` then need not read. Where `is_local`, the rows of an iteration depend on
    that iteration alone.
    """

    name: str
    asks: str
    find: Callable[[Tables], pl.LazyFrame]
    order: tuple[str, ...]
    details: tuple[str, ...] = ()
    is_local: bool = True

    def sort(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """`rows` in the order of the answer."""
        names = [name.removeprefix("-") for name in self.order]
        return rows.sort(names, descending=[name.startswith("-") for name in self.order], nulls_last=True)


def terms_of(rewards: pl.LazyFrame) -> list[str]:
    """The columns of `rewards` with the terms of the reward."""
    return [name for name in rewards.collect_schema() if name.startswith(TERM)]


def shadows_of(rewards: pl.LazyFrame) -> list[str]:
    """The columns of `rewards` with the verdicts of shadow verifiers."""
    return [name for name in rewards.collect_schema() if name.startswith(SHADOW)]


def join_completions(left: pl.LazyFrame, right: pl.LazyFrame, *columns: str | pl.Expr) -> pl.LazyFrame:
    """The rows of `left` that `right` has as well, by completion, with `columns` of `right`."""
    return left.join(right.select("run", "completion_id", *columns), on=["run", "completion_id"], how="inner")


def with_prompt(rows: pl.LazyFrame, tables: Tables, *columns: str | pl.Expr) -> pl.LazyFrame:
    """`rows` with `columns` of their prompts, as the iteration of the row has these."""
    return rows.join(tables["prompts"].select(*PROMPT, *columns), on=PROMPT, how="left")


def prompt_text(messages: str = "messages") -> pl.Expr:
    """The contents of the messages of a chat, a line break between them."""
    return pl.col(messages).list.eval(pl.element().struct.field("content")).list.join("\n")


def need(is_there: bool, question: str, problem: str, remedy: str) -> None:
    """Raise `Unanswerable` unless `is_there`."""
    if not is_there:
        raise Unanswerable(f"audit {question}", problem, remedy)


def has_rows(rows: pl.LazyFrame) -> bool:
    """Whether there is any row."""
    return bool(rows.select(pl.len()).collect().item())
