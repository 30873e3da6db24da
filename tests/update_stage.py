"""A folder in which `update` is the next stage, for the tests of the stage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.params import load_params
from pipeline.table_io import write_table
from pipeline.tables import TRAINING_SET
from stages import paths, start
from tests.stage_runs import write_params
from tests.tiny_updates import random_rows

FOUR_STEPS: dict[str, Any] = {
    "training.epochs": 2,
    "training.minibatches": 2,
    "training.max_tokens_per_microbatch": 32,
    "training.learning_rate": 1e-2,
    "training.lora": {"rank": 4, "alpha": 8.0, "target_modules": "all-linear"},
    "training.checkpoint_minutes": 0.0,
}
OUTPUTS = (paths.NEXT_POLICY, paths.NEXT_TRAINER_STATE, paths.TRAIN_STEPS, paths.TOKEN_LOGPROBS)


def lay_out_update(base: Path, changes: dict[str, Any]) -> None:
    """Params, the base model of the folder `base`, what the iteration starts from, and a training set, here."""
    write_params(Path(), {**FOUR_STEPS, **changes})
    params = load_params()
    shutil.copytree(base, paths.BASE)
    start._lay_out(params)
    start._write_reference(params)
    write_training_set()


def write_training_set(seed: int = 0) -> None:
    """Five groups of random rows."""
    rows = [
        {**vars(row), "iteration": 0, "is_truncated": False, "advantage": round(row.advantage, 2)}
        for row in random_rows(n_groups=5, seed=seed)
    ]
    write_table(pl.DataFrame(rows, schema=TRAINING_SET.schema), paths.TRAINING_SET, TRAINING_SET)
