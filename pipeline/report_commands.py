"""The command `rollbook report`: the page of a run or of an iteration, read from DVC's cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
import typer

from pipeline.errors import BadInput
from pipeline.history import scan
from pipeline.history_rows import HistoryRow, read_history
from pipeline.table_io import write_text
from pipeline.versioning.git import read_blobs
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import Iteration, select_iterations

if TYPE_CHECKING:
    from pipeline.report.choice import Tables

TABLES = ("rollouts", "rewards", "advantages", "groups", "selection", "prompts")
TOKEN_COLUMNS = ("prompt_token_ids", "completion_token_ids", "sampling_logprobs", "seed")
GROUPS_PER_OUTCOME = 20


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("report")(report)


def report(
    name: Annotated[str, typer.Argument(help="demo, demo/0003 or demo/0003..0010")],
    against: Annotated[str | None, typer.Option(help="Another run or iteration, side by side, flips marked.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write; .rollbook/reports/ where left out.")] = None,
) -> None:
    """Write the page of a run or of some of its iterations: verdicts, curves, a group browser."""
    # Drawing charts takes most of a second to import, and `rollbook` has other commands.
    from pipeline.report.against import compare_with
    from pipeline.report.run_page import RunInput, render_run, spread

    repository = Repository.find()
    iterations = select_iterations(repository, name)
    others = select_iterations(repository, against) if against else []
    differing = differing_iterations(iterations, others)
    browsed = spread(differing or iterations)
    tables = scan_iterations(repository, name, browsed)
    compared = None
    if against:
        numbers = {iteration.number for iteration in browsed}
        beside = [iteration for iteration in others if iteration.number in numbers] if differing else spread(others)
        compared = compare_with(tables, scan_iterations(repository, against, beside), against)
    history, health = _numbers(repository, iterations)
    given = RunInput(name, iterations, history, health, browsed, tables, GROUPS_PER_OUTCOME, against or "", compared)
    names = [name, against] if against else [name]
    file = output or repository.root / ".rollbook/reports" / f"{'-'.join(names).replace('/', '-')}.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(render_run(given), file)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    typer.echo(f"{name}: {shown} ({file.stat().st_size / 1e6:.1f} MB; open it in a browser)")


def differing_iterations(iterations: list[Iteration], others: list[Iteration]) -> list[Iteration]:
    """Those of `iterations` that are another commit in `others`: a run shares commits with the one it left."""
    commits = {other.number: other.commit for other in others}
    return [one for one in iterations if commits.get(one.number, one.commit) != one.commit]


def scan_iterations(repository: Repository, name: str, iterations: list[Iteration]) -> Tables:
    """The tables of the page over `iterations`, which `name` selects; lazily, without the token lists."""
    run = name.partition("/")[0]
    runs = [f"{run}/{iteration.number:04d}" for iteration in iterations]
    found = {table: scan(table, runs, repo=repository).drop("run", "commit") for table in TABLES}
    n_tokens = pl.col("completion_token_ids").list.len()
    found["rollouts"] = found["rollouts"].with_columns(n_tokens=n_tokens).drop(TOKEN_COLUMNS)
    found["prompts"] = found["prompts"].drop("iteration").unique("prompt_id", keep="first", maintain_order=True)
    return found


def _numbers(
    repository: Repository, iterations: list[Iteration]
) -> tuple[list[HistoryRow], list[dict[str, Any] | None]]:
    """The row of history and the diagnosis of each iteration."""
    last = iterations[-1]
    contents = read_blobs(
        [f"{last.commit}:data/history.csv", *(f"{one.commit}:data/health.json" for one in iterations)], repository.root
    )
    if contents[0] is None:
        raise BadInput(last.name, "its commit has no data/history.csv", "Name a run that `rollbook runs` lists")
    rows = {row["iteration"]: row for row in read_history(contents[0].decode("utf-8"))}
    missing = [one.name for one in iterations if one.number not in rows]
    if missing:
        raise BadInput(last.name, f"its data/history.csv has no row for {missing[0]}", "Restore the file with Git")
    health = [json.loads(content) if content else None for content in contents[1:]]
    return [rows[one.number] for one in iterations], health
