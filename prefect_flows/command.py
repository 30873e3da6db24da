"""`python -m prefect_flows.train`: training from a terminal, with a Prefect server of its own where none is set up."""

from __future__ import annotations

import atexit
import signal
import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from pipeline.errors import RollbookError
from pipeline.params_edit import parse_settings
from pipeline.versioning.repository import LOCAL, Repository
from pipeline.versioning.runs import check_run_name
from prefect_flows.leaving import CODES, leave_in_time
from prefect_flows.run_lock import run_lock
from prefect_flows.server import is_configured, serving
from prefect_flows.terminal import show_own_lines_only
from prefect_flows.train import train

app: typer.Typer = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    run: Annotated[str, typer.Argument(help="The run; it is made where there is none of that name.")],
    iterations: Annotated[int, typer.Option(min=1, help="How many iterations the run is to have in all.")],
    start: Annotated[
        str | None, typer.Option("--from", help="Where a new run begins: a run, an iteration (demo/0003), a revision.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of params.yaml that a new run begins with; repeatable.")
    ] = None,
    include_changes: Annotated[
        bool, typer.Option("--include-changes", help="Record uncommitted edits in the run instead of refusing them.")
    ] = False,
    fresh_optimizer: Annotated[
        bool, typer.Option("--fresh-optimizer", help="Leave the iteration of --from without its optimizer state.")
    ] = False,
    past_health_stop: Annotated[
        bool, typer.Option("--past-health-stop", help="Go on where a rule of the diagnosis says stop.")
    ] = False,
    keep_state: Annotated[int, typer.Option(min=1, help="How many iterations keep their trainer state.")] = 2,
) -> None:
    """Train a run. The same command again goes on where it was stopped, and does nothing where all is done."""
    signal.signal(signal.SIGTERM, _leave)
    leave_in_time()
    show_own_lines_only()
    until_exit = ExitStack()
    atexit.register(until_exit.close)  # after the server's end, which is registered later
    try:
        check_run_name(run)
        repository = Repository.find()
        until_exit.enter_context(run_lock(repository, run))
        changes = parse_settings(settings or [])
        if not is_configured():
            typer.echo("Prefect starts a server for this training, about 10 s")
        with serving(repository.root / LOCAL / "prefect" / run):
            train(
                run,
                iterations,
                start,
                changes,
                include_changes=include_changes,
                fresh_optimizer=fresh_optimizer,
                past_health_stop=past_health_stop,
                keep_state=keep_state,
            )
    except RollbookError as error:
        typer.echo(f"train: error: {error}", err=True)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt:
        typer.echo("train: interrupted; the same command goes on", err=True)
        raise typer.Exit(CODES[signal.SIGINT]) from None


def _leave(_number: int, _frame: object) -> None:
    """End as after an error, so that the server is stopped; what a signal does by default leaves it behind."""
    typer.echo("train: terminated; the same command goes on", err=True)
    sys.exit(CODES[signal.SIGTERM])
