"""The commands of `rollbook` that ask what happened: named questions, SQL, a search, one id, the integrity gate."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.table import Table
from rich.text import Text

from pipeline.audit import search
from pipeline.audit.answer import answer
from pipeline.audit.display import count_line, life_lines, open_console, print_rows, visible, without_implied
from pipeline.audit.filters import parse_filter
from pipeline.audit.question import Question
from pipeline.audit.registry import QUESTIONS, question_named
from pipeline.audit.run_tables import run_tables
from pipeline.audit.show import look_up, token_table
from pipeline.audit.tables import HERE, JoinedTables, Tables, damage_named, tables_here
from pipeline.errors import BadInput
from pipeline.integrity.verify import Problem, verify_checkout, verify_run
from pipeline.versioning.git import git
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import run_of_checkout

ROWS_SHOWN = 20

Runs = Annotated[
    list[str] | None,
    typer.Option(
        "--run", help="A run, or an iteration such as demo/0003; again for several. Else data/, which is `.`."
    ),
]
Iterations = Annotated[str | None, typer.Option(help="Those from A to B, both included: A..B, or just A.")]
Where = Annotated[str | None, typer.Option(help="Only rows of which this holds, as after WHERE in SQL.")]
Limit = Annotated[int | None, typer.Option(min=0, help=f"How many rows; 0 for all. Tables have {ROWS_SHOWN}.")]
Json = Annotated[bool, typer.Option("--json", help="All rows as JSON, with every id.")]
Csv = Annotated[bool, typer.Option("--csv", help="All rows as CSV.")]
Parquet = Annotated[bool, typer.Option("--parquet", help="All rows as Parquet, to be sent into a file.")]


class Format(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    commands: dict[str, Callable[..., None]] = {
        "audit": ask,
        "sql": ask_sql,
        "grep": search_texts,
        "show": show,
        "verify": verify,
    }
    for name, command in commands.items():
        app.command(name)(command)


def ask(
    name: Annotated[str | None, typer.Argument(help="The question; without one, they are listed.")] = None,
    run: Runs = None,
    iterations: Iterations = None,
    where: Where = None,
    limit: Limit = None,
    as_json: Json = False,
    as_csv: Csv = False,
    as_parquet: Parquet = False,
) -> None:
    """Ask a named question about the iteration in data/, or about runs."""
    if name is None:
        _list_questions()
        return
    question = question_named(name)
    _print_answer(question, _tables(run, iterations), where, limit, _format(as_json, as_csv, as_parquet))


def search_texts(
    pattern: Annotated[str, typer.Argument(metavar="REGEX", help="A regular expression, as Rust's regex has them.")],
    run: Runs = None,
    iterations: Iterations = None,
    where: Where = None,
    limit: Limit = None,
    as_json: Json = False,
    as_csv: Csv = False,
    as_parquet: Parquet = False,
) -> None:
    """Find completions by what they say; --where filters on any column of theirs."""
    question = search.grep(pattern, parse_filter(where) if where else None)
    _print_answer(question, _tables(run, iterations), None, limit, _format(as_json, as_csv, as_parquet))


def ask_sql(
    query: Annotated[str, typer.Argument(help="select ... from rewards join rollouts using (run, completion_id) ...")],
    run: Runs = None,
    iterations: Iterations = None,
    as_json: Json = False,
    as_csv: Csv = False,
    as_parquet: Parquet = False,
) -> None:
    """Ask in SQL over all tables, each with the columns run and iteration."""
    rows = search.run_sql(query, _tables(run, iterations))
    kind = _format(as_json, as_csv, as_parquet)
    if kind is not Format.TABLE:
        _write(rows, kind)
        return
    console = open_console()
    if rows.width:
        print_rows(rows.head(ROWS_SHOWN), console)
    cut = f"{ROWS_SHOWN} of {rows.height:,} rows; --csv or --json gives all." if rows.height > ROWS_SHOWN else ""
    console.print(cut or f"{rows.height:,} row{'' if rows.height == 1 else 's'}.")


def show(
    wanted: Annotated[str, typer.Argument(metavar="ID", help="0003/<prompt_id>/2, 0003/<prompt_id> or <prompt_id>")],
    run: Annotated[str | None, typer.Option(help="The run; else data/ is asked.")] = None,
    tokens: Annotated[bool, typer.Option(help="The log-probabilities of each token of a completion, too.")] = False,
) -> None:
    """Show a completion, group or prompt through its whole life."""
    tables = _tables([run] if run else None, None)
    with damage_named():
        life = look_up(tables, wanted)
        shown = [row["completion_id"] for row in life.completions if tokens]
        tables_of_tokens = {completion_id: token_table(tables, completion_id) for completion_id in shown}
    console = open_console()
    for line in life_lines(life):
        console.print(line, soft_wrap=True)
    for completion_id, rows in tables_of_tokens.items():
        console.print(f"\nTokens of {completion_id}, log-probabilities in nats")
        print_rows(rows, console)


def verify(
    name: Annotated[str, typer.Argument(help="demo, demo/0003 or demo/0003..0010; `.` is what lies here.")] = HERE,
) -> None:
    """Hold iterations against dvc.lock, their parents and their own tables; name what is wrong, with exit code 1."""
    found: list[Problem] = []
    n_iterations = 0
    if name == HERE:
        found, n_iterations = verify_checkout(Path(git("rev-parse", "--show-toplevel"))), 1
        _print_problems(found)
    else:
        for _, problems in verify_run(Repository.find(), name):
            _print_problems(problems)
            found += problems
            n_iterations += 1
    held = f"{n_iterations} iteration{'s' * (n_iterations > 1)}"
    if found:
        n_bad = len({problem.iteration for problem in found})
        typer.echo(f"{len(found)} problem{'s' * (len(found) > 1)} in {n_bad} of {held}.", err=True)
        raise typer.Exit(1)
    typer.echo(f"{'data' if name == HERE else name}: {held}, no problem.")


def _print_problems(problems: list[Problem]) -> None:
    for problem in problems:
        typer.echo(visible(str(problem)))


def _list_questions() -> None:
    table = Table("question", "what it asks")
    for question in QUESTIONS.values():
        table.add_row(question.name, question.asks)
    console = open_console()
    console.print(table)
    console.print("rollbook audit NAME asks the iteration in data/; with --run demo --iterations 3..10, a run.")


def _print_answer(question: Question, tables: Tables, where: str | None, limit: int | None, kind: Format) -> None:
    shown = ROWS_SHOWN if limit is None and kind is Format.TABLE else limit or None
    with damage_named():
        found = answer(question, tables, shown, parse_filter(where) if where else None)
    has_many_runs = len(tables.names) > 1
    if kind is not Format.TABLE:
        _write(found.rows if has_many_runs else found.rows.drop("run"), kind)
        return
    console = open_console()
    # As text: in markup, brackets of a regular expression would be tags.
    console.print(Text.assemble(question.asks, " ", (", ".join(tables.names), "dim")))
    if found.n_rows:
        print_rows(without_implied(found.rows, has_many_runs), console)
    console.print(count_line(found))


def _tables(runs: list[str] | None, iterations: str | None) -> Tables:
    if not runs and iterations is None:
        return tables_here()
    named = [run for run in runs or [_run_here()] if run != HERE]
    of_runs = [run_tables(named, _span(iterations))] if named else []
    here = [tables_here()] if HERE in (runs or []) else []
    return JoinedTables([*of_runs, *here]) if here else of_runs[0]


def _run_here() -> str:
    try:
        return run_of_checkout(Path.cwd())
    except BadInput as error:
        problem = "it chooses among the iterations of a run, and this checkout is on the branch of none"
        raise BadInput("--iterations", problem, "Name a run with --run") from error


def _span(iterations: str | None) -> tuple[int, int] | None:
    if iterations is None:
        return None
    first, dots, last = iterations.partition("..")
    if not first.isdecimal() or (dots and not last.isdecimal()):
        raise typer.BadParameter(f"{iterations!r} is not A..B, such as 3..10", param_hint="--iterations")
    return int(first), int(last if dots else first)


def _format(as_json: bool, as_csv: bool, as_parquet: bool) -> Format:
    chosen = [
        kind
        for kind, is_chosen in ((Format.JSON, as_json), (Format.CSV, as_csv), (Format.PARQUET, as_parquet))
        if is_chosen
    ]
    if len(chosen) > 1:
        raise typer.BadParameter(f"choose one of {', '.join(f'--{kind}' for kind in chosen)}")
    return chosen[0] if chosen else Format.TABLE


def _write(rows: pl.DataFrame, kind: Format) -> None:
    if kind is Format.PARQUET and sys.stdout.isatty():
        raise typer.BadParameter("Parquet is no text: send it into a file, --parquet > rows.parquet")
    buffer = io.BytesIO()
    if kind is Format.JSON:
        rows.write_json(buffer)
        buffer.write(b"\n")
    elif kind is Format.CSV:
        _without_lists(rows).write_csv(buffer)
    else:
        rows.write_parquet(buffer)
    typer.echo(buffer.getvalue(), nl=False)


def _without_lists(rows: pl.DataFrame) -> pl.DataFrame:
    """`rows` with nested values as JSON, since CSV has none."""
    nested = [name for name, dtype in rows.schema.items() if dtype.is_nested()]
    as_text = [
        pl.struct(name).struct.json_encode().str.strip_prefix(f'{{"{name}":').str.strip_suffix("}").alias(name)
        for name in nested
    ]
    return rows.with_columns(as_text)
