"""Progress bars, on a terminal or where `ROLLBOOK_PROGRESS=1` asks for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from stages.runner import is_first_rank


class Advance(Protocol):
    """Moves a bar on."""

    def __call__(self, n_items: int, n_units: int = 0, note: str = "", /) -> None:
        """By `n_items`, with `n_units` more."""


class _Count(ProgressColumn):
    """Units so far: `3 errors`."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.fields['n_units']:,} {task.fields['unit']}" if task.fields["n_units"] else "")


class _Rate(ProgressColumn):
    """Units per second since the bar appeared: `412 tokens/s`."""

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        rate = task.fields["n_units"] / elapsed if elapsed > 0 else 0.0
        return Text(f"{rate:,.0f} {task.fields['unit']}/s" if task.fields["unit"] else "")


@contextmanager
def progress(title: str, total: int, unit: str = "", is_rate: bool = True) -> Iterator[Advance]:
    """A bar over `total` items; the block gets `advance(n_items, n_units, note)`, to be called from any thread.

    The note, where there is one, stands behind the bar until the next.

    The bar shows units per second or, where that `is_rate` is False, how many there have been.
    """
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate() if is_rate else _Count(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    is_shown = is_first_rank() and (sys.stderr.isatty() or os.environ.get("ROLLBOOK_PROGRESS") == "1")
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as bar:
        task = bar.add_task(title, total=total, n_units=0, unit=unit, note="")
        lock = Lock()

        def advance(n_items: int, n_units: int = 0, note: str = "") -> None:
            with lock:
                bar.update(task, advance=n_items, n_units=bar.tasks[0].fields["n_units"] + n_units, note=note)

        yield advance
