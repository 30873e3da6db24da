"""What prompt scheduling buys: `select.strategy` and `rollout.oversample`, on the default task with harder prompts.

`python -m tests.benchmarks.scheduling FOLDER [key=value ...]` clones what is committed here into FOLDER and trains
there. The first iterations are shared: they show 48 of 64 prompts. Each strategy goes on from there until it has
sampled as many completions as the others, so that the runs differ in nothing but which prompts they show and keep. All
are then evaluated on the same held-out prompts. The same command again goes on where it was stopped.

The default task has 960 prompts and is learned in a dozen iterations, before any prompt comes again. So that there is
something to schedule, there are fewer prompts here, and half of them are sums and products of numbers of two digits:
some of these are learned slowly, and some never.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table
from ruamel.yaml import YAML

from pipeline.history_rows import HistoryRow, read_history
from tests.end_to_end.checkout import person_environment
from tests.stage_runs import ROOT

N_SHARED = 3
"""Iterations that all have in common; the shared run has one more, since who leaves a run makes that one anew."""

HARDER = (
    ("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}),
    ("products", {"min_digits": 2, "max_digits": 2}),
)
HARDER_WEIGHT = 0.3
"""Of each, beside weights of 7 in all of the default tasks: these are half of the prompts, less their duplicates."""

VERDICTS = ("is_correct_other", "is_correct")
"""Of a side, and of the first one."""


@dataclass(frozen=True)
class Side:
    """A run that goes on from the shared iterations for `n_iterations`."""

    run: str
    n_iterations: int
    settings: tuple[str, ...]

    @property
    def last(self) -> int:
        return N_SHARED + self.n_iterations - 1


SIDES = (
    Side("uniform", 7, ("select.strategy=uniform",)),
    Side("difficulty", 7, ("select.strategy=difficulty",)),
    Side("oversampled", 4, ("select.strategy=difficulty", "rollout.oversample=1.75")),
)


def main(folder: Path, settings: list[str]) -> None:
    """Train in `folder` and print a table; `settings` are key=value of params.yaml."""
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        for key, value in (("user.name", "bench"), ("user.email", "bench@example.org")):
            subprocess.run(["git", "config", key, value], cwd=folder, check=True)
    train_shared(folder, settings)
    train_sides(folder)
    show(folder)


def train_shared(folder: Path, settings: list[str]) -> None:
    """Train the run that all sides go on from."""
    task = (f"prompts.source={_harder_source()}", "prompts.train_size=64", f"evaluate.every={N_SHARED}")
    _train(folder, "shared", N_SHARED + 1, *_each("--set", (*task, *settings)))


def train_sides(folder: Path) -> None:
    """Train each side, which is evaluated at its end alone."""
    for side in SIDES:
        changes = (f"evaluate.every={side.last + 1}", *side.settings)
        start = f"shared/{N_SHARED:04d}"
        _train(folder, side.run, side.last + 1, "--from", start, *_each("--set", changes))


def show(folder: Path) -> None:
    """Print what each side came to, of its iterations after the shared ones."""
    columns = ("run", "iterations", "completions", "steps", "groups kept", "surplus", "held-out pass@1", "won : lost")
    table = Table(*columns, title="prompt scheduling", title_justify="left")
    before = _history(folder, "shared", N_SHARED - 1)
    table.add_row("shared", *_cells(before), _pass_at_1(before[-1]), "")
    for side in SIDES:
        rows = _history(folder, side.run, side.last)
        beside = "" if side is SIDES[0] else _beside_first(folder, side)
        table.add_row(side.run, *_cells(rows[N_SHARED:]), _pass_at_1(rows[-1]), beside)
    Console(width=130).print(table)


def _harder_source() -> str:
    """The source of prompts of params.yaml with harder tasks beside its own, as YAML in one line."""
    source: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text())["prompts"]["source"]
    harder = [{"task": task, "weight": HARDER_WEIGHT, "config": config} for task, config in HARDER]
    return json.dumps({**source, "reasoning_gym": [*source["reasoning_gym"], *harder]})


def _train(folder: Path, run: str, n_iterations: int, *arguments: str) -> None:
    command = [sys.executable, "-m", "prefect_flows.train", run, "--iterations", str(n_iterations), *arguments]
    subprocess.run(command, cwd=folder, env=person_environment(), check=True)


def _each(option: str, values: tuple[str, ...]) -> list[str]:
    return [argument for value in values for argument in (option, value)]


def _history(folder: Path, run: str, number: int) -> list[HistoryRow]:
    command = ["git", "show", f"{run}/{number:04d}:data/history.csv"]
    return read_history(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)


def _cells(rows: list[HistoryRow]) -> list[str]:
    total = {name: sum(row[name] or 0 for row in rows) for name in ("n_groups", "n_kept", "n_surplus", "n_steps")}
    n_completions = sum(row["n_completions"] or 0 for row in rows)
    kept = f"{total['n_kept']} of {total['n_groups']} ({total['n_kept'] / total['n_groups']:.0%})"
    return [str(len(rows)), f"{n_completions:,}", str(total["n_steps"]), kept, str(total["n_surplus"])]


def _beside_first(folder: Path, side: Side) -> str:
    """How many held-out prompts only `side` answers correctly, and how many only the first of the sides."""
    first, other = (
        pl.read_parquet(folder / f".rollbook/worktrees/{run}/data/eval.parquet").filter(policy="after")
        for run in (SIDES[0].run, side.run)
    )
    both = first.join(other, on=["prompt_id", "completion_index"], suffix="_other")
    won, lost = (both.filter(pl.col(one) & ~pl.col(two)).height for one, two in (VERDICTS, VERDICTS[::-1]))
    return f"{won} : {lost}"


def _pass_at_1(row: HistoryRow) -> str:
    measured, low, high = (row[f"eval_pass_at_1{end}"] for end in ("", "_low", "_high"))
    return "not evaluated" if measured is None else f"{measured:.1%} ({low:.1%} to {high:.1%})"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
