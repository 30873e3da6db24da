"""Checkpoints within an update: one that was killed goes on, and ends in the same bits as one that was not.

They lie in a folder named by a fingerprint of all that determines the update, so that those of other inputs are never
used: `reference.parquet` and `old.parquet` as soon as these log-probabilities are on record, then `step-<n>/` with the
trainer's state, the metrics and the old log-probabilities after n optimizer steps. Each appears whole or not at all.
The first rank writes them, and all read them, so that another number of processes goes on as well.
Nothing in an update is random (dropout is off, and the order of groups is a hash), so there is no generator to keep.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.errors import BadInput
from pipeline.fingerprint import digest_files
from pipeline.seeds import stable_hash
from pipeline.table_io import atomic_path, read_table, write_table, write_text
from pipeline.tables import TRAIN_STEPS, Column, Table
from pipeline.training.distributed import ALONE, Ranks
from pipeline.training.recording import Logprobs
from pipeline.training.state import TrainerState, read_optimizer, save_state
from pipeline.training.trainer import Trainer

PIPELINE = Path(__file__).parents[1]
CODE = (*sorted((PIPELINE / "training").glob("*.py")), PIPELINE / "policy.py", PIPELINE / "seeds.py")
PACKAGES = ("torch", "transformers", "peft")

RECORDED = Table(
    "recorded_logprobs",
    "completion",
    ("row",),
    (
        Column("row", pl.UInt32, "its index in the training set"),
        Column("logprobs", pl.List(pl.Float64), "nats, one per completion token"),
    ),
)
STATE, METRICS, OLD, DIGEST = "trainer_state", "train_steps.parquet", "old.parquet", "sha256"


class DamagedCheckpoint(Exception):
    """A checkpoint can't be read, or is not what was written."""


@dataclass(frozen=True)
class StepsTaken:
    """The first steps of an update: metrics of each, old log-probabilities, and the state after them, as a folder."""

    metrics: list[dict[str, Any]]
    old: Logprobs
    state: Path


class Checkpoint:
    """What is done of the update whose folder is `folder`, which begins with the trainer's state in `state`.

    It is written every `minutes`; with None nothing is read or written. `taken` are the steps of an earlier try.

    Raises:
        DamagedCheckpoint: what an earlier try left can't be used.
    """

    def __init__(self, folder: Path, minutes: float | None, state: Path, ranks: Ranks = ALONE) -> None:
        self._folder = folder
        self._minutes = minutes
        self._ranks = ranks
        self._recorded: dict[str, Logprobs] = {}
        self.taken = StepsTaken([], {}, state)
        if minutes is not None:
            self._read()
        self._n_written = len(self.taken.metrics)
        self._written_at = time.monotonic()

    def recorded(self, name: str, record: Callable[[], Logprobs]) -> Logprobs:
        """The log-probabilities `name`: those of an earlier try, or what `record` gives, which is written at once."""
        if name not in self._recorded:
            self._recorded[name] = record()
            if self._minutes is not None and self._ranks.is_first:
                _write_logprobs(self._recorded[name], self._folder / f"{name}.parquet")
        return self._recorded[name]

    def write_if_due(self, trainer: Trainer) -> None:
        """Write the steps that `trainer` has taken, if by the first rank's clock the last time is long enough ago."""
        if self._minutes is None:
            return
        if self._ranks.agree(time.monotonic() - self._written_at >= 60 * self._minutes):
            self.write(trainer)

    def write(self, trainer: Trainer) -> None:
        """Write the steps that `trainer` has taken, between two of them, if any are not written."""
        n_steps = len(trainer.metrics)
        if self._minutes is None or n_steps == self._n_written:
            return
        state = read_optimizer(
            trainer.model, trainer.optimizer, trainer.first_step + n_steps, trainer.params.method, self._ranks
        )
        if self._ranks.is_first:
            _write_steps(trainer, state, self._folder / f"step-{n_steps}")
            for older in _step_folders(self._folder)[:-1]:
                shutil.rmtree(older, ignore_errors=True)  # what is left of it is older than the latest
        self._n_written = n_steps
        self._written_at = time.monotonic()

    def _read(self) -> None:
        try:
            self._recorded = {file.stem: _read_logprobs(file) for file in sorted(self._folder.glob("*.parquet"))}
            for latest in _step_folders(self._folder)[-1:]:
                self.taken = _read_steps(latest)
        except (BadInput, OSError) as error:
            raise DamagedCheckpoint(str(error)) from error


def fingerprint(inputs: Iterable[Path], *values: object) -> str:
    """16 hexadecimal digits of all that determines an update: its `inputs`, `values`, code and packages."""
    versions = [version(package) for package in PACKAGES]
    return stable_hash(digest_of(CODE), versions, digest_of(inputs), *values)[:16]


def set_aside(folder: Path) -> Path:
    """Rename the folder of a damaged checkpoint, so that the update begins anew in its place; return the new name."""
    aside = folder.with_name(f"{folder.name}.damaged")
    if aside.exists():
        shutil.rmtree(aside)
    return folder.rename(aside)


def digest_of(paths: Iterable[Path]) -> str:
    """SHA-256 of files and of all files in folders, with their names; what is not there counts as an empty folder."""
    return digest_files(
        (file.relative_to(path.parent).as_posix(), file)
        for path in paths
        for file in ([path] if path.is_file() else sorted(path.rglob("*")))
        if file.is_file()
    )


def _read_steps(folder: Path) -> StepsTaken:
    if (folder / DIGEST).read_bytes() != _digest_of_steps(folder).encode():
        raise DamagedCheckpoint(f"{folder} is not what was written")
    metrics = read_table(folder / METRICS, TRAIN_STEPS).to_dicts()
    return StepsTaken(metrics, _read_logprobs(folder / OLD), folder / STATE)


def _write_steps(trainer: Trainer, state: TrainerState, folder: Path) -> None:
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        save_state(state, temporary / STATE)
        write_table(pl.DataFrame(trainer.metrics, schema=TRAIN_STEPS.schema), temporary / METRICS, TRAIN_STEPS)
        _write_logprobs(trainer.old, temporary / OLD)
        write_text(_digest_of_steps(temporary), temporary / DIGEST)


def _digest_of_steps(folder: Path) -> str:
    """Safetensors have no checksums of their own."""
    return digest_of(folder / name for name in (STATE, METRICS, OLD))


def _step_folders(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def _read_logprobs(file: Path) -> Logprobs:
    return dict(read_table(file, RECORDED).iter_rows())


def _write_logprobs(logprobs: Logprobs, file: Path) -> None:
    rows = {"row": list(logprobs), "logprobs": list(logprobs.values())}
    write_table(pl.DataFrame(rows, schema=RECORDED.schema), file, RECORDED)
