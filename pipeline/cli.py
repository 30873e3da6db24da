"""The command `rollbook`: the iteration in the current directory, and runs of many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from pipeline import audit_commands, export_commands, report_commands, run_commands, serve_command
from pipeline.errors import DISK_ERRORS, RollbookError
from pipeline.logprob_check_command import check_logprob_agreement
from pipeline.metrics import Metrics, read_metrics
from pipeline.openmp import let_threads_sleep
from pipeline.params import load_params
from pipeline.presets import describe_method
from pipeline.replay_command import replay_completions
from pipeline.rescore_command import rescore_iterations
from pipeline.rewards.registry import load_terms
from pipeline.summary import decimal, facts

DATA = Path("data")


class Commands(TyperGroup):
    """Commands whose `RollbookError`, or a file that can't be used, becomes one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RollbookError as error:
            typer.echo(f"rollbook: error: {error}", err=True)
            raise typer.Exit(error.exit_code) from error
        except OSError as error:
            if error.errno not in (*DISK_ERRORS, None):  # Polars gives no number
                raise
            typer.echo(f"rollbook: error: {error}. Free some space, or write somewhere else.", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
run_commands.register(app)
app.command("rescore")(rescore_iterations)
app.command("replay")(replay_completions)
app.command("logprob-check")(check_logprob_agreement)
audit_commands.register(app)
report_commands.register(app)
export_commands.register(app)
serve_command.register(app)


@app.callback()
def rollbook() -> None:
    """GRPO post-training that you can audit and re-run."""
    let_threads_sleep()


@app.command()
def check() -> None:
    """Check params.yaml, all of it: DVC starts only stages whose own section changed."""
    params = load_params()
    terms = load_terms(params.score.terms)
    typer.echo(f"params.yaml is in order; reward: {', '.join(term.name for term in terms)}")
    typer.echo(f"Method: {describe_method(params.preset, params.normalize, params.training)}")


@app.command()
def summary() -> None:
    """Print the numbers of the iteration in this folder, and where its report and tables are."""
    metrics = read_metrics(DATA / "metrics")
    console = Console(highlight=False)
    console.print(f"\n[bold]Iteration {metrics['report']['iteration']}[/bold]")
    console.print(_facts_table(metrics))
    console.print(_stages_table(metrics))
    n_warnings = metrics["report"]["n_warnings"]
    console.print(f"[yellow]Health: {n_warnings} warned, see the report[/yellow]" if n_warnings else "Health: ok")
    console.print(f"Report: {DATA / 'report.html'} (open it in a browser)\nTables: {DATA}/*.parquet")


def _facts_table(metrics: Metrics) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for fact in facts(metrics):
        table.add_row(fact.label, fact.value, Text(fact.note))  # as text, a reason in brackets is no markup
    return table


def _stages_table(metrics: Metrics) -> Table:
    table = Table("stage", title_justify="left")
    table.add_column("seconds", justify="right")
    table.add_column("peak memory, MB", justify="right")
    for stage, values in metrics.items():
        table.add_row(stage, f"{values['seconds']:.1f}", decimal(values["peak_memory_mb"]))
    table.add_section()
    total = sum(values["seconds"] for values in metrics.values())
    table.add_row("all", f"{total:.1f}", decimal(max(values["peak_memory_mb"] for values in metrics.values())))
    return table


if __name__ == "__main__":
    app()
