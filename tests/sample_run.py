"""A repository with a run of the made-up iterations, and one that leaves it with another reward."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from pipeline.health import Evidence, as_json, diagnose
from pipeline.history_rows import append_history, history_row, read_history
from pipeline.params import ReportParams
from pipeline.table_io import write_table, write_text
from pipeline.versioning.lockfile import Output
from pipeline.versioning.repository import Repository
from tests.iteration_sample import TABLES_OF_REPORT, lazy_tables, sample_frames, sample_metrics
from tests.versioning.fabricated import add_table, import_run, init, lock_text

KL = (0.1, 0.2, 0.5)
"""Of each iteration; the last is above its limit of 0.3."""


class SampleRun:
    """`demo` has three iterations in the folder `root`; `strict` leaves it after the second.

    The first completion of each group is wrong in iteration 2 of `strict`, whose rollouts are the same.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        init(root)
        self._frames = frames = [sample_frames(number) for number in range(3)]
        locks = [lock_text(self._add(one)) for one in frames]
        texts = self._texts()
        self.commits = import_run(root, "demo", locks, texts=texts)
        strict = {**frames[2], "rewards": wrong_at_first(frames[2]["rewards"])}
        import_run(root, "strict", [lock_text(self._add(strict))], start="demo/0001", first=2, texts=texts[2:])

    @property
    def repository(self) -> Repository:
        return Repository(self.root)

    def lay_out(self, number: int) -> None:
        """Put iteration `number` of `demo` into `data/`."""
        for table in TABLES_OF_REPORT:
            write_table(self._frames[number][table.name], self.root / f"data/{table.name}.parquet", table)
        for path, text in self._texts()[number].items():
            write_text(text, self.root / path)

    def _add(self, frames: Mapping[str, pl.DataFrame]) -> list[Output]:
        cache = self.repository.cache_dir
        return [
            add_table(cache, f"data/{table.name}.parquet", frames[table.name], table, self.root)
            for table in TABLES_OF_REPORT
        ]

    def _texts(self) -> list[dict[str, str]]:
        """What Git has of each iteration: the history and the diagnosis."""
        texts: list[dict[str, str]] = []
        csv: str | None = None
        for number in range(3):
            metrics = sample_metrics(update={"kl": KL[number]})
            csv = append_history(csv, history_row(number, metrics))
            evidence = Evidence(number, metrics, read_history(csv)[:-1], lazy_tables(sample_frames(number)))
            health = as_json(number, diagnose(evidence, ReportParams()))
            texts.append({"data/history.csv": csv, "data/health.json": json.dumps(health)})
        return texts


def wrong_at_first(rewards: pl.DataFrame) -> pl.DataFrame:
    is_first = pl.col("completion_id").str.ends_with("/0") & pl.col("reward").is_not_null()
    return rewards.with_columns(
        reward=pl.when(is_first).then(0.0).otherwise("reward"),
        is_correct=pl.when(is_first).then(False).otherwise("is_correct"),
    )
