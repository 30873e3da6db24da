"""Rows on terminals of any width."""

from __future__ import annotations

import io

import polars as pl
from rich.console import Console

from pipeline.audit.display import one_line, print_rows, visible

ROWS = pl.DataFrame(
    {"iteration": [3], "completion_id": ["0003/ab/0"], "reward": [0.5], "completion_text": ["It is\nnine."]}
)


def printed(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_rows(ROWS, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_rows_are_a_table_where_it_fits_and_paragraphs_elsewhere() -> None:
    assert printed(60)[3] == "│         3 │ 0003/ab/0     │    0.5 │ It is⏎nine.     │"
    assert printed(50) == [
        "iteration 3",
        "  completion_id 0003/ab/0, reward 0.5",
        "  completion_text: It is⏎nine.",
    ]


def test_nothing_acts_on_the_terminal_or_hides() -> None:
    hidden = "\x1b]8;;\x07\u202e\u200b\ufeff\x00\r"
    assert visible(hidden).isprintable()
    assert one_line(hidden + "x" * 100, 20).isprintable()
