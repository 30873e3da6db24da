"""The commands of `rollbook` that make, move and compare runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pipeline.comparison import RunRow, compare, summarize_runs
from pipeline.history_rows import HistoryRow
from pipeline.params_edit import parse_settings
from pipeline.summary import MISSING, decimal, percent
from pipeline.versioning import disk
from pipeline.versioning.artifacts import fetch
from pipeline.versioning.branching import check_out_iteration, new_run
from pipeline.versioning.git import git
from pipeline.versioning.guards import trainer_lock
from pipeline.versioning.iterations import advance, commit_iteration, push_artifacts
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import run_of_checkout, select_iterations

IncludeChanges = Annotated[bool, typer.Option(help="Record uncommitted edits in the run instead of refusing them.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    commands: dict[str, Callable[..., None]] = {
        "new-run": begin,
        "advance": go_on,
        "commit": commit,
        "runs": show_runs,
        "compare": show_comparison,
        "checkout": check_out,
        "fetch": fetch_artifacts,
        "prune": prune,
    }
    for name, command in commands.items():
        app.command(name)(command)


def begin(
    name: Annotated[str, typer.Argument(help="The new run.")],
    start: Annotated[
        str | None, typer.Option("--from", help="A run, an iteration (demo/0003) or a revision; else this checkout.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of params.yaml, as often as you like.")
    ] = None,
    include_changes: IncludeChanges = False,
    fresh_optimizer: Annotated[bool, typer.Option(help="Go on without the optimizer state of --from.")] = False,
) -> None:
    """Begin a run: a branch runs/NAME and a worktree of its own."""
    repository = Repository.find()
    worktree = new_run(
        repository, name, start, parse_settings(settings or []), include_changes, fresh_optimizer, _checkout()
    )
    typer.echo(f"{name}: branch runs/{name}, worktree {_shown(worktree)}")
    typer.echo(f"Train it:  make train RUN={name} ITERATIONS=...")
    typer.echo(f"By hand:   cd {_shown(worktree)}, edit params.yaml, dvc repro, rollbook commit, rollbook advance")


def go_on() -> None:
    """Begin the next iteration in params.yaml; run twice, it moves once."""
    checkout = _checkout()
    run = run_of_checkout(checkout)
    with trainer_lock(Repository.find(), run):
        number = advance(checkout)
    typer.echo(f"{run}: params.yaml is at iteration {number}; `dvc repro` makes it")


def commit(include_changes: IncludeChanges = False) -> None:
    """Commit the finished iteration of this worktree, tag it, and push its artifacts if DVC has a remote."""
    checkout = _checkout()
    with trainer_lock(Repository.find(), run_of_checkout(checkout)):
        iteration = commit_iteration(checkout, include_changes)
        is_pushed = push_artifacts(checkout)
    typer.echo(f"{iteration.name}: commit {iteration.commit[:12]}{', artifacts pushed' if is_pushed else ''}")


def show_runs() -> None:
    """List the runs: iterations, pass rate, reward, KL, health, size."""
    rows = summarize_runs(Repository.find())
    if not rows:
        typer.echo("No run yet. Begin one: rollbook new-run NAME, or make train RUN=NAME ITERATIONS=40")
        return
    table = Table("run")
    for heading in ("iterations", "pass rate", "held-out pass@1", "reward", "KL", "health", "size, MB"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*_run_cells(row))
    Console(highlight=False).print(table)


def show_comparison(one: str, other: str) -> None:
    """Compare two runs or iterations: numbers side by side, and the params that differ."""
    comparison = compare(Repository.find(), one, other)
    console = Console(highlight=False)
    console.print(_pairs_table("number", comparison.names, comparison.numbers))
    if comparison.params:
        console.print(_pairs_table("params.yaml", comparison.names, comparison.params))
    else:
        console.print("No params differ.")


def check_out(name: Annotated[str, typer.Argument(help="A run or an iteration, such as demo/0003.")]) -> None:
    """Lay out the files of an iteration in this checkout: code, params and every artifact."""
    checkout = _checkout()
    commit_id, missing = check_out_iteration(Repository.find(), checkout, name)
    typer.echo(f"{name}: commit {commit_id[:12]} with its artifacts; `git switch -` goes back")
    if missing:
        typer.echo(f"Not in DVC's cache: {', '.join(missing)}. Get them: rollbook fetch {name}")


def fetch_artifacts(
    name: Annotated[str, typer.Argument(help="demo, demo/0003 or demo/0003..0010")],
) -> None:
    """Get the artifacts of a run or of some of its iterations from DVC's remote."""
    repository = Repository.find()
    iterations = select_iterations(repository, name)
    fetched = fetch(repository, [iteration.commit for iteration in iterations])
    typer.echo(f"{name}: {fetched.n_objects} objects fetched, {fetched.n_bytes / 1e6:,.1f} MB")
    names = {iteration.commit: iteration.name for iteration in iterations}
    for missing in fetched.missing:
        typer.echo(f"Neither here nor in the remote: {missing.output.path} of {names[missing.commit]}")
    if any(missing.output.path not in disk.STATE_PATHS for missing in fetched.missing):
        raise typer.Exit(1)


def prune(
    runs: Annotated[list[str] | None, typer.Argument(help="The runs to prune; all, if none is named.")] = None,
    keep_state: Annotated[int, typer.Option(min=1, help="How many iterations keep their trainer state.")] = 2,
    remote: Annotated[bool, typer.Option(help="Remove it from DVC's remote too.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be removed.")] = False,
) -> None:
    """Remove the trainer state of older iterations; every table and policy stays."""
    freed = disk.prune(Repository.find(), keep_state, runs or None, remote, dry_run)
    done = "would go" if dry_run else "gone"
    for entry in freed:
        there = f", {entry.remote_bytes / 1e6:,.1f} MB in the remote" if remote else ""
        typer.echo(f"{entry.iteration.name}: trainer state, {entry.cache_bytes / 1e6:,.1f} MB{there}")
    total = sum(entry.cache_bytes for entry in freed) / 1e6
    typer.echo(f"{len(freed)} trainer states {done}, {total:,.1f} MB of DVC's cache; every table and policy stays")


def _run_cells(row: RunRow) -> list[str]:
    history: HistoryRow = row.history or {}
    n_iterations = str(row.last.number + 1) if row.last else "0"
    n_warnings = (row.health or {}).get("n_warnings", 0)
    health = MISSING if row.health is None else f"{n_warnings} warned" if n_warnings else "ok"
    numbers = [
        percent(history.get("pass_rate")),
        percent(history.get("eval_pass_at_1")),
        decimal(history.get("reward_mean")),
        decimal(history.get("kl")),
    ]
    return [row.run, n_iterations, *numbers, health, f"{row.size / 1e6:,.0f}"]


def _pairs_table(title: str, names: tuple[str, str], pairs: dict[str, tuple[Any, Any]]) -> Table:
    table = Table(title)
    for name in names:
        table.add_column(name, justify="right")
    for key, values in pairs.items():
        table.add_row(key, *map(_cell, values))
    return table


def _cell(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return decimal(value) if value is None or is_number else str(value)


def _checkout() -> Path:
    return Path(git("rev-parse", "--show-toplevel"))


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
