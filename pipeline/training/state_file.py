"""`state.json` of a trainer state: which method, how many steps. Read and written without torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.errors import BadInput
from pipeline.table_io import write_json

STATE_FILE = "state.json"


@dataclass(frozen=True)
class StateCounts:
    """Optimizer steps taken in the run, and how many of them the moments have seen: fewer where they began afresh."""

    method: str
    step: int = 0
    optimizer_step: int = 0


def write_counts(counts: StateCounts, folder: Path) -> None:
    """Write `state.json` into the state folder `folder`."""
    write_json(asdict(counts), folder / STATE_FILE)


def read_counts(folder: Path) -> StateCounts:
    """What `write_counts` wrote; a `BadInput` where that is missing or damaged."""
    file = folder / STATE_FILE
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        return StateCounts(str(value["method"]), int(value["step"]), int(value["optimizer_step"]))
    except FileNotFoundError:
        raise BadInput(str(file), "there is no such file", "Run `dvc repro start`") from None
    except (ValueError, KeyError, TypeError) as error:
        problem = f"it holds no step, method and optimizer_step ({error})"
        raise BadInput(str(file), problem, "Run `dvc repro start`") from error
