"""The stages without torch, as processes on the artifacts that are here, beside a bare import of their libraries."""

from __future__ import annotations

from tests.benchmarks.compare import command, in_turn, need, show

LIGHT_STAGES = ("select", "score", "normalize", "filter")
IMPORTS = "import polars, pyarrow.parquet, pydantic, ruamel.yaml"


def main(rounds: int = 7) -> None:
    """Whole processes, of which each stage is to take less than a second."""
    need(["data/rollouts.parquet", "data/advantages.parquet"])
    functions = {"imports alone": command("-c", IMPORTS)}
    functions |= {stage: command("-m", f"stages.{stage}") for stage in LIGHT_STAGES}
    show("stages without torch", in_turn(functions, rounds), "imports alone")
