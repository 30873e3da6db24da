"""The stage `update` by two processes that it starts: the tables of one, and how it ends where one of them does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import torch
from safetensors.torch import load_file

from pipeline.errors import BadInput
from pipeline.params import load_params
from pipeline.policy import load_model
from pipeline.table_io import write_table
from pipeline.tables import TRAINING_SET
from stages import paths, update
from tests import threads
from tests.stage_runs import ROOT, Ended, run_process, write_params
from tests.tiny_model import build_tiny_model
from tests.tiny_updates import CPU
from tests.update_stage import FOUR_STEPS, OUTPUTS, lay_out_update

TWO_RANKS: dict[str, Any] = {"training.launcher": "torchrun", "training.n_processes": 2}
SMOOTH = {"training.adam_epsilon": 1e-3}
"""Else a gradient that is nothing but rounding moves a weight as far as any other."""

HAS_TENSORBOARD = find_spec("tensorboard") is not None
OUT_OF_MEMORY = """
import os
if os.environ.get("RANK") == "1":
    import torch
    import pipeline.training.trainer as trainer
    trainer.row_statistics = lambda *_: torch.empty(2**50)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, in which `update` is the next stage; torch is as it was afterwards."""
    build_tiny_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    with threads.one_thread():
        yield tmp_path
    torch.use_deterministic_algorithms(False)


def run(tracker: str = "", first_on_path: Path = ROOT) -> Ended:
    environment = {"OMP_NUM_THREADS": "1", "ROLLBOOK_TRACKER": tracker}
    return run_process("update", Path(), first_on_path=first_on_path, **environment)


def assert_near(ours: pl.DataFrame, theirs: pl.DataFrame) -> None:
    assert ours.schema == theirs.schema
    for name, dtype in ours.schema.items():
        found, expected = (
            (each[name].explode() if isinstance(dtype, pl.List) else each[name]).to_list() for each in (ours, theirs)
        )
        assert found == (expected if dtype == pl.String else pytest.approx(expected, rel=0.02, abs=2e-3))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora"])
def test_two_processes_give_the_tables_of_one(method: str, folder: Path) -> None:
    lay_out_update(folder / "model", {"training.method": method, **SMOOTH})
    update.update(load_params())
    tables = [pl.read_parquet(path) for path in (paths.TRAIN_STEPS, paths.TOKEN_LOGPROBS)]
    masters = load_file(paths.NEXT_TRAINER_STATE / "state.safetensors")
    counts = (paths.NEXT_TRAINER_STATE / "state.json").read_text()

    write_params(folder, {**FOUR_STEPS, "training.method": method, **SMOOTH, **TWO_RANKS})
    ended = run(tracker="tensorboard" if HAS_TENSORBOARD else "")
    assert (ended.code, ended.record["kind"]) == (0, "ok")
    lines = [line for line in ended.out.splitlines() if line.startswith("update: ")]
    assert lines[-1].startswith("update: 4 steps on 15 completions")
    assert len(lines) == (2 if method == "full" else 1), "a rank says what the other one said"
    assert len(list(update.TRACKING.glob("**/events*"))) == HAS_TENSORBOARD
    for path, table in zip((paths.TRAIN_STEPS, paths.TOKEN_LOGPROBS), tables, strict=True):
        assert_near(pl.read_parquet(path), table)
    assert (paths.NEXT_TRAINER_STATE / "state.json").read_text() == counts
    found = load_file(paths.NEXT_TRAINER_STATE / "state.safetensors")
    assert {name: tensor.shape for name, tensor in found.items()} == {n: t.shape for n, t in masters.items()}
    load_model(paths.NEXT_POLICY, paths.BASE, CPU)
    assert not paths.CHECKPOINTS.exists()


@pytest.mark.slow
def test_a_rank_that_fails_ends_all_with_its_message_and_code(folder: Path) -> None:
    lay_out_update(folder / "model", {"training.kl_coefficient": 0.0, **TWO_RANKS})
    (folder / "first").mkdir()
    (folder / "first/sitecustomize.py").write_text(OUT_OF_MEMORY)
    ended = run(first_on_path=folder / "first")
    assert ended.code == 1
    message = "params.yaml: training.max_tokens_per_microbatch: a micro-batch does not fit into memory"
    assert ended.record["message"].startswith(message)
    assert [line for line in ended.err.splitlines() if "error" in line] == [f"update: error: {ended.record['message']}"]
    assert "Traceback" not in ended.err
    assert not any(path.exists() for path in OUTPUTS)


@pytest.mark.slow
@pytest.mark.parametrize("is_rank", [False, True], ids=["the stage", "a rank"])
def test_where_a_process_is_killed_no_other_is_left(is_rank: bool, folder: Path) -> None:
    lay_out_update(folder / "model", {"training.epochs": 500, **TWO_RANKS})
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    stage = subprocess.Popen([sys.executable, "-m", "stages.update"], env=environment, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list(paths.CHECKPOINTS.glob("*/step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    ranks = psutil.Process(stage.pid).children(recursive=True)
    assert len(ranks) == 2
    (ranks[1] if is_rank else stage).send_signal(signal.SIGKILL)
    assert stage.wait(timeout=60) == -signal.SIGKILL
    assert psutil.wait_procs(ranks, timeout=10)[1] == []
    assert not any(path.exists() for path in OUTPUTS)
    assert not (paths.EXIT_RECORDS / "update.json").exists()


def test_torchrun_with_a_launcher_of_single_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out_update(folder / "model", {})
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "0")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(BadInput, match=r"training.launcher: it says single, and torchrun started this process"):
        update.update(load_params())


def test_an_update_of_nothing_starts_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out_update(folder / "model", {"training.mask_truncated": True, **TWO_RANKS})
    rows = pl.read_parquet(paths.TRAINING_SET).with_columns(is_truncated=True)
    write_table(rows, paths.TRAINING_SET, TRAINING_SET)
    monkeypatch.setattr(update, "leave_to_ranks", lambda *_: pytest.fail("started"))
    assert update.update(load_params()).metrics["is_policy_unchanged"]
