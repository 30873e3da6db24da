"""What the rules look at: the metrics, history and tables of one iteration, and the rows they point at."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from pipeline.health.finding import Finding, Rows
from pipeline.history_rows import HistoryRow, history_row
from pipeline.metrics import Metrics

N_IDS = 5
"""How many rows a finding names."""

Tables = Mapping[str, pl.LazyFrame]


@dataclass(frozen=True)
class Evidence:
    """All of one iteration that a rule may look at.

    `history` has a row per iteration before this one, oldest first. `tables` maps names to the rows of this iteration:
    rollouts (with `n_tokens` in place of the token lists), rewards, groups, train_steps, training_set and
    token_logprobs.
    """

    iteration: int
    metrics: Metrics
    history: list[HistoryRow]
    tables: Tables

    @property
    def rows(self) -> list[HistoryRow]:
        """The history with the row of this iteration at its end."""
        return [*self.history, history_row(self.iteration, self.metrics)]

    @cached_property
    def mismatch(self) -> pl.DataFrame:
        """Per trained completion: `n` tokens, and sums over these of what sampler and trainer differ by.

        With d = old - sampling, `ratio` is the sum of exp(|d|), `weight` that of exp(d) and `square` of exp(2 d).
        """
        sampled = self.tables["training_set"].select("completion_id", "sampling_logprobs")
        trained = self.tables["token_logprobs"].select("completion_id", "old_logprobs")
        old, sampling = (pl.col(name).cast(pl.List(pl.Float64)) for name in ("old_logprobs", "sampling_logprobs"))
        difference, token = pl.col("difference"), pl.element()
        sums = {"ratio": token.abs().exp(), "weight": token.exp(), "square": (2 * token).exp()}
        return (
            trained.join(sampled, "completion_id")
            .select("completion_id", difference=old - sampling)
            .select(
                "completion_id",
                n=difference.list.len().cast(pl.Int64),
                **{name: difference.list.eval(value).list.sum() for name, value in sums.items()},
            )
            .collect(engine="streaming")
        )


def sql_command(query: str, iterations: tuple[int, int] | None = None) -> str:
    """The command that runs `query` over the tables of the iteration at hand, or over those from one to another.

    >>> sql_command("select step from train_steps", (0, 9))
    'rollbook sql --iterations 0..9 "select step from train_steps"'
    """
    span = f"--iterations {iterations[0]}..{iterations[1]} " if iterations else ""
    return f'rollbook sql {span}"{query}"'


def asked_of(command: str, run: str, iteration: int) -> str:
    """The command of a finding of `iteration`, to be asked from anywhere in the repository.

    >>> asked_of("rollbook audit steps", "demo", 3)
    'rollbook audit --run demo/0003 steps'
    """
    tool, _, rest = command.removeprefix("rollbook ").partition(" ")
    if not command.startswith("rollbook "):
        return command
    where = run if rest.startswith("--iterations") else f"{run}/{iteration:04d}"
    return f"rollbook {tool} --run {where} {rest}"


def point_at(finding: Finding, evidence: Evidence, query: str, noun: str = "") -> Finding:
    """`finding` with the rows that the SQL `query` finds, whose first column names them after `noun`."""
    command = sql_command(query)
    if finding.level == "ok":
        return dataclasses.replace(finding, rows=Rows(command))
    found = pl.SQLContext(dict(evidence.tables)).execute(query).collect().to_series(0)
    ids = tuple(f"{noun} {value}".lstrip() for value in found.head(N_IDS))
    return dataclasses.replace(finding, rows=Rows(command, found.len(), ids))
