"""The stages without torch, as processes on the artifacts that are here, beside a bare import of their libraries."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.compare import command, in_turn, need, show

LIGHT_STAGES = ("select", "score", "normalize", "filter")
IMPORTS = "import polars, pyarrow.parquet, pydantic, ruamel.yaml"


def main(rounds: int = 7) -> None:
    """Whole processes, of which each stage is to take less than a second."""
    need(["data/rollouts.parquet", "data/advantages.parquet"])
    with TemporaryDirectory() as folder:
        _copy_artifacts(Path(folder))
        functions = {"imports alone": command(folder, "-c", IMPORTS)}
        functions |= {stage: command(folder, "-m", f"stages.{stage}") for stage in LIGHT_STAGES}
        show("stages without torch", in_turn(functions, rounds), "imports alone")


def _copy_artifacts(folder: Path) -> None:
    """Stages write, so they get tables of their own."""
    (folder / "data").mkdir()
    for file in (Path("params.yaml"), Path("dvc.yaml"), *Path("data").glob("*.parquet")):
        shutil.copyfile(file, folder / file)
