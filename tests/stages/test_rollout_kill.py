"""The stage `rollout`, killed between shards: it goes on from those that it finished, to the same bytes."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from pipeline.params import load_params
from pipeline.table_io import write_table
from pipeline.tables import PROMPTS, SELECTION
from stages.rollout import rollout
from tests import threads
from tests.killing import kill_among_files
from tests.stage_runs import ROOT, run_process, write_params
from tests.tiny_model import build_tiny_model

N_SHARDS = 20


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the processes: how many threads there are is on record of rollouts, and part of the key of shards."""
    with threads.one_thread():
        yield


def lay_out(folder: Path) -> Path:
    """An iteration up to its rollouts, each of whose groups is a shard."""
    for name in ("base", "policy"):
        build_tiny_model(folder / "data" / name)
    prompts = [
        {
            "prompt_id": f"p{i:02}",
            "split": "train",
            "source": "made up",
            "messages": [{"role": "user", "content": "1" + " + 1" * i}],
            "answer": None,
            "verifier": "none",
            "metadata": None,
        }
        for i in range(N_SHARDS)
    ]
    drawn = [{"iteration": 0, "position": i, "prompt_id": f"p{i:02}", "reason": "epoch 0"} for i in range(N_SHARDS)]
    write_table(pl.DataFrame(prompts, schema=PROMPTS.schema), folder / "data/prompts.parquet", PROMPTS)
    write_table(pl.DataFrame(drawn, schema=SELECTION.schema), folder / "data/selection.parquet", SELECTION)
    sizes = {"rollout.group_size": 2, "sampling.shard_completions": 2, "sampling.max_completion_tokens": 64}
    write_params(folder, {**sizes, "sampling.device": "cpu"})
    return folder


@pytest.mark.slow
def test_a_stage_that_is_killed_between_shards_ends_as_one_that_is_not(tmp_path: Path) -> None:
    alone, killed = lay_out(tmp_path / "alone"), lay_out(tmp_path / "killed")
    with contextlib.chdir(alone):
        rollout(load_params())
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "stages.rollout"], cwd=killed, env=environment)
    draw = random.Random(1)
    wanted, shards = draw.randint(2, N_SHARDS // 4), killed / ".rollbook/samples/rollout"
    n_finished = kill_among_files(process, shards, wanted, draw)
    assert wanted <= n_finished < N_SHARDS
    assert not (killed / "data/rollouts.parquet").exists()

    ended = run_process("rollout", killed, OMP_NUM_THREADS="1")
    assert (ended.code, ended.err) == (0, "")
    assert f", {2 * n_finished} completions of an earlier try" in ended.out
    assert (killed / "data/rollouts.parquet").read_bytes() == (alone / "data/rollouts.parquet").read_bytes()
    assert len(list(shards.glob("*.json"))) == N_SHARDS
