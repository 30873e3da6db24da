"""The commands `rollbook export`: rollouts as data for other trainers."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from pipeline.audit.filters import checked, parse_filter
from pipeline.audit.tables import HERE, damage_named
from pipeline.errors import BadInput
from pipeline.exports.best import best_completions
from pipeline.exports.card import make_card
from pipeline.exports.completions import scan_completions
from pipeline.exports.pairs import preference_pairs
from pipeline.exports.provenance import trace
from pipeline.exports.source import Source, find_source
from pipeline.table_io import atomic_path, write_json, write_text

DATA_FILE = "data/train-00000-of-00001.parquet"

export = typer.Typer(no_args_is_help=True, help="Write rollouts as data for other trainers, with their provenance.")

Name = Annotated[str, typer.Argument(help="demo, demo/0003 or demo/0003..0010; `.` is data/.")]
File = Annotated[Path, typer.Option("--output", help="A file that ends in .jsonl or .parquet.")]
Where = Annotated[str | None, typer.Option(help="Only completions of which this holds, as after WHERE in SQL.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(export, name="export")


@export.command()
def pairs(
    output: File,
    name: Name = HERE,
    min_margin: Annotated[float, typer.Option(min=0.0, help="How far the rewards are apart, at least.")] = 0.5,
    where: Where = None,
) -> None:
    """Preference pairs, for TRL: the best completion of each group against its worst."""
    source, completions = _completions(name, where)
    _write_file(source, preference_pairs(completions, min_margin), output, "pairs")


@export.command()
def sft(
    output: File,
    name: Name = HERE,
    n_best: Annotated[int, typer.Option("--best", min=1, help="How many completions of each prompt.")] = 1,
    min_reward: Annotated[float | None, typer.Option(help="The least reward.")] = None,
    where: Where = None,
) -> None:
    """The best completions of each prompt, for supervised fine-tuning; wrong ones are left out."""
    source, completions = _completions(name, where)
    _write_file(source, best_completions(completions, n_best, min_reward), output, "sft")


@export.command()
def dataset(
    output: Annotated[Path, typer.Option(help="A new folder.")],
    name: Name = HERE,
    where: Where = None,
) -> None:
    """A folder that `datasets` loads: every completion with its reward, and a card."""
    source, completions = _completions(name, where)
    if output.exists():
        raise BadInput(str(output), "it exists", "Name a new folder, or remove it")
    with damage_named(), atomic_path(output) as folder:
        file = folder / DATA_FILE
        file.parent.mkdir(parents=True)
        completions.sink_parquet(file, compression="zstd")
        n_rows = _count(file)
        provenance = trace(source, command=_command(), kind="dataset", n_rows=n_rows, files=[file], root=folder)
        write_json(provenance.as_json(), folder / "provenance.json")
        schema = pl.read_parquet_schema(file)
        card = make_card(provenance, pl.Schema(schema), f"Rollouts of {source.span}", DATA_FILE)
        write_text(card, folder / "README.md")
    typer.echo(f"{output}: {n_rows:,} completions of {source.span}, with README.md and provenance.json")


def _completions(name: str, where: str | None) -> tuple[Source, pl.LazyFrame]:
    source = find_source(name)
    completions = scan_completions(source.tables, source.commits)
    return source, checked(completions, parse_filter(where)) if where else completions


def _write_file(source: Source, rows: pl.LazyFrame, output: Path, kind: str) -> None:
    if output.suffix not in (".jsonl", ".parquet"):
        raise BadInput(str(output), "its name ends in neither .jsonl nor .parquet", "Choose one of them")
    with damage_named(), atomic_path(output) as temporary:
        if output.suffix == ".jsonl":
            rows.sink_ndjson(temporary)
        else:
            rows.sink_parquet(temporary, compression="zstd")
    n_rows = _count(output)
    provenance = trace(source, command=_command(), kind=kind, n_rows=n_rows, files=[output], root=output.parent)
    beside = output.with_name(f"{output.name}.provenance.json")
    write_json(provenance.as_json(), beside)
    typer.echo(f"{output}: {n_rows:,} {'pairs' if kind == 'pairs' else 'completions'} of {source.span}; {beside.name}")


def _count(file: Path) -> int:
    if file.suffix == ".parquet":
        return int(pl.scan_parquet(file).select(pl.len()).collect().item())
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


def _command() -> str:
    return shlex.join(["rollbook", *sys.argv[1:]])
