"""The command `rollbook report`: the page of a run, or of iterations of it, or of the one in `data/`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.audit.tables import HERE, damage_named
from pipeline.table_io import write_text
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import Iteration

GROUPS_PER_OUTCOME = 20


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("report")(report)


def report(
    name: Annotated[str, typer.Argument(help="demo, demo/0003 or demo/0003..0010; `.` is data/.")] = HERE,
    against: Annotated[str | None, typer.Option(help="Another run or iteration, side by side, flips marked.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write; .rollbook/reports/ where left out.")] = None,
) -> None:
    """Write the page of a run or of some of its iterations: verdicts, curves, a group browser."""
    # Drawing charts takes most of a second to import, and `rollbook` has other commands.
    from pipeline.report.against import compare_with
    from pipeline.report.run_page import RunInput, render_run, spread
    from pipeline.report.source import find_source

    own = find_source(name)
    other = find_source(against) if against else None
    differing = differing_iterations(own.iterations, other.iterations) if other else []
    browsed = spread(differing or own.iterations)
    tables = own.tables_of(browsed)
    compared = None
    if other:
        numbers = {iteration.number for iteration in browsed}
        beside = [one for one in other.iterations if one.number in numbers] if differing else spread(other.iterations)
        compared = compare_with(tables, other.tables_of(beside), other.name)
    beside_name = other.name if other else ""
    history, health = own.numbers()
    given = RunInput(
        own.name, own.iterations, history, health, browsed, tables, GROUPS_PER_OUTCOME, beside_name, compared
    )
    called = "-".join(filter(None, [own.name, beside_name])).replace("/", "-")
    with damage_named():
        page = render_run(given)
    file = output or Repository.find().root / f".rollbook/reports/{called}.html"
    write_text(page, file)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    typer.echo(f"{own.name}: {shown} ({file.stat().st_size / 1e6:.1f} MB; open it in a browser)")


def differing_iterations(iterations: list[Iteration], others: list[Iteration]) -> list[Iteration]:
    """Those of `iterations` that are another commit in `others`: a run shares commits with the one it left."""
    commits = {other.number: other.commit for other in others}
    return [one for one in iterations if commits.get(one.number, one.commit) != one.commit]
