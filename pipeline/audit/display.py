"""Answers for a terminal: a table whose cells fit, and a life told line by line.

Models write what they like: whatever would act on a terminal, or hide, is shown by its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from pipeline.audit.answer import Answer
from pipeline.audit.question import Question
from pipeline.audit.show import Life, Row
from pipeline.summary import MISSING, decimal, signed
from pipeline.tables import SHADOW, TERM

TEXT_CHARACTERS = 60
"""How much of a text a cell of a table shows."""

WIDEST = 1_000
"""Characters: no table is wider."""

_IMPLIED = {
    "completion_id": ("group_id", "prompt_id", "iteration"),
    "group_id": ("prompt_id", "iteration"),
}
"""Ids that another one holds, and that a table on a terminal therefore leaves out."""


def open_console() -> Console:
    """Standard output, as wide as its terminal, or as tables need where it is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDEST)


def visible(text: str, keep: str = "") -> str:
    r"""`text` with characters that print nothing, or act on a terminal, by their numbers, but those of `keep`.

    >>> visible("a\x1b[31m\u202eb\n")
    'a\\x1b[31m\\u202eb\\n'
    """
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str, n_characters: int = TEXT_CHARACTERS) -> str:
    r"""`text` on one line; a longer one loses its middle, and says how many characters of it.

    >>> one_line("a\n\nb"), one_line("word " * 20, 20)
    ('a⏎⏎b', 'word word  …80… word word ')
    """
    line = visible(text.replace("\n", "⏎"), keep="⏎")
    if len(line) <= n_characters:
        return line
    half = n_characters // 2
    return f"{line[:half]} …{len(line) - 2 * half:,}… {line[-half:]}"


def without_implied(rows: pl.DataFrame, has_many_runs: bool) -> pl.DataFrame:
    """`rows` without ids that another one holds."""
    implied = next((names for name, names in _IMPLIED.items() if name in rows.columns), ())
    left_out = {*implied, *(() if has_many_runs else ("run",))}
    return rows.select(name for name in rows.columns if name not in left_out)


def print_rows(rows: pl.DataFrame, console: Console) -> None:
    """Print `rows` as a table, or one below the other where the terminal is too narrow for it."""
    table = frame_table(rows)
    if console.measure(table, options=console.options.update(max_width=WIDEST)).maximum <= console.width:
        console.print(table)
        return
    for row in rows.iter_rows(named=True):
        console.print(record(row))


def record(row: Mapping[str, Any]) -> Text:
    r"""A row as a paragraph: its first column, numbers and words in a line, and each text in one of its own.

    >>> print(record({"completion_id": "0000/ab/0", "reward": 1.0, "why": None, "completion_text": "It is\nnine."}))
    0000/ab/0
      reward 1, why –
      completion_text: It is⏎nine.
    """
    first, *others = row
    texts = [name for name in others if isinstance(row[name], str) and len(row[name].split()) > 1]
    line = ", ".join(f"{name} {_cell(row[name])}" for name in others if name not in texts)
    paragraphs = [f"  {line}"] if line else []
    paragraphs += [f"  {name}: {_cell(row[name])}" for name in texts]
    title = f"{_cell(row[first])}" if first.endswith("_id") else f"{first} {_cell(row[first])}"
    return Text("\n").join([Text(title, style="bold"), *map(Text, paragraphs)])


def frame_table(rows: pl.DataFrame) -> Table:
    """`rows` as a table: numbers to the right, texts on one line."""
    table = Table(title_justify="left")
    for name, dtype in rows.schema.items():
        is_id = name.endswith("_id") or name == "run"
        justify: JustifyMethod = "right" if dtype.is_numeric() else "left"
        table.add_column(Text(visible(name)), justify=justify, no_wrap=is_id, overflow="fold")
    for row in rows.iter_rows():
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: Any) -> Text:
    if value is None:
        return Text(MISSING, style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int | float):
        return Text(decimal(value))
    text = value if isinstance(value, str) else str(value)
    return Text(one_line(text)) if text.strip() else Text("(empty)", style="dim")


def count_line(answer: Answer) -> str:
    """How many rows are shown, and how to see the rest."""
    shown, n_rows = answer.rows.height, answer.n_rows
    if n_rows == 0:
        return "No row answers this."
    if shown == n_rows:
        return f"{n_rows:,} row{'s' if n_rows > 1 else ''}."
    return f"{shown:,} of {n_rows:,} rows, sorted by {_order(answer.question)}; --limit 0 shows all."


def _order(question: Question) -> str:
    """What the first rows have most or least of, ids left out."""
    columns = [name for name in question.order if name != "run" and not name.endswith("_id")]
    return ", ".join(f"{name.removeprefix('-')} {'↓' if name.startswith('-') else '↑'}" for name in columns) or "id"


def life_lines(life: Life) -> list[Text]:
    """A life line by line, its texts whole."""
    lines = [Text(f"Prompt {life.prompt['prompt_id']}, {life.prompt['source']}", style="bold")]
    for message in life.prompt["messages"]:
        lines += _block(f"{message['role']}: {message['content']}")
    lines.append(
        Text(f"  answer: {visible(str(life.prompt['answer'] or MISSING))}, judged by {life.prompt['verifier']}")
    )
    if not life.completions:
        lines.append(Text("It was not rolled out in these iterations."))
    groups = {row["group_id"]: row for row in life.groups}
    for group_id in dict.fromkeys(row["group_id"] for row in life.completions):
        lines += [Text(), *_group_lines(group_id, groups.get(group_id))]
        for row in (row for row in life.completions if row["group_id"] == group_id):
            lines += [Text(), *_completion_lines(row)]
    return lines


def _group_lines(group_id: str, group: Row | None) -> list[Text]:
    title = Text(f"Group {group_id}", style="bold")
    if group is None:
        return [title, Text("  not filtered yet")]
    fate = "kept" if group["kept"] else "dropped"
    counts = f"{group['n_correct']} of {group['group_size']} correct, {group['n_truncated']} cut off"
    spread = f"reward {decimal(group['reward_mean'])} on average, standard deviation {decimal(group['reward_std'])}"
    return [title, Text(f"  {fate}: {group['reason']}; {counts}; {spread}")]


def _completion_lines(row: Row) -> list[Text]:
    end = "cut off by the limit" if row["finish_reason"] == "length" else "ended by itself"
    title = Text(f"Completion {row['completion_id']}", style="bold")
    return [
        title,
        *_block(row["completion_text"]),
        Text(f"  {row['n_tokens']} tokens, {len(row['completion_text'])} characters, {end}"),
        Text(f"  reward {_reward(row)}" if row["is_scored"] else "  not scored yet"),
        Text(f"  advantage {signed(row['advantage'])}; {_training(row)}"),
    ]


def _reward(row: Row) -> str:
    terms = [f"{name.removeprefix(TERM)} {decimal(row[name])}" for name in row if name.startswith(TERM)]
    shadows = [f"{name.removeprefix(SHADOW)} says {_verdict(row[name])}" for name in row if name.startswith(SHADOW)]
    extracted = row["extracted_answer"]
    parts = [
        f"{decimal(row['reward'])} ({', '.join(terms)})",
        _verdict(row["is_correct"]),
        *shadows,
        "nothing extracted" if extracted is None else f"extracted {visible(extracted)}",
        *([visible(row["score_error"])] if row["score_error"] else []),
    ]
    return "; ".join(parts)


def _verdict(is_correct: bool | None) -> str:
    return {True: "correct", False: "wrong", None: "no verdict"}[is_correct]


def _training(row: Row) -> str:
    if not row["is_trained"]:
        return "not trained on" if row["is_filtered"] else "not filtered yet"
    steps: Sequence[int] | None = row["steps"]
    return (
        f"trained on in step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
        if steps
        else "in the training set, and in no step so far"
    )


def _block(text: str) -> list[Text]:
    lines = visible(text, keep="\n").split("\n")
    return [Text(f"  │ {line}" if line else "  │") for line in lines]
