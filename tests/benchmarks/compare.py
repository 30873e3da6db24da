"""Timing two or more functions in turn, and ratios of their medians."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table


def in_turn(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each function in each round, after one round that does not count; in a round, each runs once."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def command(folder: str, *arguments: str) -> Callable[[], object]:
    """A function that runs `python ARGUMENTS` as a process in `folder`, with this project's modules."""
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    return lambda: subprocess.run(
        [sys.executable, *arguments], check=True, capture_output=True, cwd=folder, env=environment
    )


def show(title: str, seconds: dict[str, list[float]], baseline: str) -> None:
    """Print medians, extremes, and each one's median over that of `baseline`, round by round."""
    table = Table("what", "median, s", "min", "max", f"ratio to {baseline}", title=title, title_justify="left")
    for name, values in seconds.items():
        ratios = [value / base for value, base in zip(values, seconds[baseline], strict=True)]
        cells = (statistics.median(values), min(values), max(values), statistics.median(ratios))
        table.add_row(name, *(f"{cell:.2f}" for cell in cells))
    Console().print(table)


def need(paths: Sequence[str]) -> None:
    """Leave, saying what to do, unless all `paths` exist."""
    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        sys.exit(f"{missing[0]} is missing: run `make run` first, the benchmarks use its artifacts")
