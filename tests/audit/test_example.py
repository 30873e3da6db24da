"""The notebook runs, on a run made up for it, and its outputs are not empty."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from pipeline.params import load_params
from pipeline.tables import TABLES
from tests.sound_iteration import sound_frames
from tests.stage_runs import PARAMS_FILE, ROOT
from tests.versioning.fabricated import add_table, import_run, init, lock_text

NOTEBOOK = ROOT / "pipeline/audit/example.ipynb"


def test_every_cell_of_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init(tmp_path)
    params = load_params(PARAMS_FILE)
    locks = []
    for number in (0, 30):
        frames = sound_frames(params.model_copy(update={"iteration": number}))
        outputs = [
            add_table(tmp_path / ".dvc/cache", f"data/{name}.parquet", frames[name], TABLES[name], tmp_path)
            for name in ("prompts", "rollouts", "rewards", "groups", "prompt_stats")
        ]
        locks.append(lock_text(outputs))
    import_run(tmp_path, "demo", locks[:1])
    import_run(tmp_path, "demo", locks[1:], start="demo/0000", first=30)
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {}
    with pl.Config():  # what the notebook sets ends with it
        for cell in cells:
            exec("".join(cell["source"]), names)
    assert [len(cell["outputs"]) for cell in cells] == [0, 1, 1, 1, 1, 1]
