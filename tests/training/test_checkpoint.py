"""Checkpoints of an update: what is kept, when, how it is found again, and the update that goes on from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch

from pipeline.errors import BadInput
from pipeline.training import checkpoint as checkpoints
from pipeline.training.checkpoint import Checkpoint, DamagedCheckpoint, digest_of, fingerprint, set_aside
from pipeline.training.forward import row_statistics
from pipeline.training.logprobs import TokenStatistics
from pipeline.training.memory import MicroBatchTooLarge
from pipeline.training.recording import Logprobs
from pipeline.training.state import TrainerState, load_state, read_optimizer, save_state
from tests.tiny_updates import Update, load_trainable, plan, prepare, random_rows, record, training_params

FIRST_STEP = 5
PARAMS = training_params(
    epochs=2, minibatches=2, warmup_steps=FIRST_STEP + 1, decay="linear", decay_steps=FIRST_STEP + 4, weight_decay=0.01
)
"""Four steps, within the warm-up, at the peak, and beyond."""

Opened = Callable[..., Checkpoint]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Opens the checkpoint of this test."""
    save_state(TrainerState(step=FIRST_STEP), tmp_path / "state")
    return lambda minutes=0.0: Checkpoint(tmp_path / "checkpoint", minutes, tmp_path / "state")


class Killed(Exception):
    """What ends an update in these tests."""


def start(policy: Path, base: Path, opened: Checkpoint) -> Update:
    """An update of the policy, from the steps that its checkpoint has."""
    model = load_trainable(policy, base)
    rows = random_rows(n_groups=5)
    state = load_state(opened.taken.state)
    state = replace(state, step=state.step - len(opened.taken.metrics))
    reference = opened.recorded(
        "reference", lambda: record(load_trainable(base, base), rows, plan(model, rows, PARAMS))
    )
    update = prepare(model, rows, PARAMS, state=state, reference=reference)
    update.trainer.old = opened.taken.old or update.trainer.old
    update.trainer.metrics = list(opened.taken.metrics)
    return update


def run_until(update: Update, opened: Checkpoint, n_steps: int) -> None:
    """Take steps and write them, and be killed after `n_steps`."""

    def on_step() -> None:
        opened.write_if_due(update.trainer)
        if len(update.trainer.metrics) == n_steps:
            raise Killed

    with pytest.raises(Killed):
        update.trainer.run(update.steps, on_step)


def result_of(update: Update) -> tuple[list[pl.DataFrame], dict[str, torch.Tensor], int]:
    tables = update.run()
    state = read_optimizer(update.trainer.model, update.trainer.optimizer, 0, "full")
    return [*tables], state.tensors, state.optimizer_step


# --- going on


@pytest.mark.parametrize("n_steps", [1, 3, 4])
def test_an_update_that_was_killed_ends_in_the_same_bits(
    n_steps: int, policy: Path, base: Path, opened: Opened
) -> None:
    tables, tensors, n_seen = result_of(start(policy, base, opened(None)))
    assert tables[0]["learning_rate"].n_unique() > 2
    run_until(start(policy, base, opened()), opened(), n_steps)

    taken = opened().taken
    assert [row["step"] for row in taken.metrics] == list(range(FIRST_STEP, FIRST_STEP + n_steps))
    resumed = result_of(start(policy, base, opened()))
    assert all(ours.equals(theirs) for ours, theirs in zip(resumed[0], tables, strict=True))
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in resumed[1].items())
    assert resumed[2] == n_seen == 4


def test_an_update_may_be_killed_many_times(base: Path, opened: Opened) -> None:
    expected = result_of(start(base, base, opened(None)))
    for n_steps in (1, 2, 3):
        run_until(start(base, base, opened()), opened(), n_steps)
    tables, tensors, _ = result_of(start(base, base, opened()))
    assert all(ours.equals(theirs) for ours, theirs in zip(tables, expected[0], strict=True))
    assert all(torch.equal(tensor, expected[1][name]) for name, tensor in tensors.items())


def test_only_the_latest_steps_are_kept(base: Path, opened: Opened, tmp_path: Path) -> None:
    run_until(start(base, base, opened()), opened(), 3)
    assert [path.name for path in (tmp_path / "checkpoint").glob("step-*")] == ["step-3"]


def test_steps_are_told_by_number(base: Path, opened: Opened, tmp_path: Path) -> None:
    """Ten comes after nine, and not before two."""
    run_until(start(base, base, opened()), opened(), 2)
    folder = tmp_path / "checkpoint"
    shutil.copytree(folder / "step-2", folder / "step-10")
    assert opened().taken.state == folder / "step-10" / "trainer_state"


# --- when


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, to be set, by which checkpoints are due."""
    now = [1000.0]
    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_steps_are_written_when_so_many_minutes_have_passed(
    base: Path, opened: Opened, tmp_path: Path, clock: list[float]
) -> None:
    written: list[list[str]] = []
    kept = opened(2.0)
    update = start(base, base, kept)

    def on_step() -> None:
        clock[0] += 70.0
        kept.write_if_due(update.trainer)
        written.append([path.name for path in (tmp_path / "checkpoint").glob("step-*")])

    update.trainer.run(update.steps, on_step)
    # 70 s are too early; 140 s are not, and the time starts anew from there.
    assert written == [[], ["step-2"], ["step-2"], ["step-4"]]


def test_null_writes_and_reads_nothing(base: Path, opened: Opened, tmp_path: Path) -> None:
    kept = opened(None)
    update = start(base, base, kept)
    update.trainer.run(update.steps[:2], lambda: kept.write_if_due(update.trainer))
    kept.write(update.trainer)
    assert not (tmp_path / "checkpoint").exists()
    run_until(start(base, base, opened()), opened(), 2)
    assert opened(None).taken.metrics == []


def test_an_older_checkpoint_that_another_process_removes_meanwhile_is_no_error(
    base: Path, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = opened()
    latest = tmp_path / "checkpoint" / "step-2"
    monkeypatch.setattr(checkpoints, "_step_folders", lambda folder: [folder / "step-1", folder / "step-2"])
    update = start(base, base, kept)
    update.trainer.run(update.steps[:2])
    kept.write(update.trainer)
    assert latest.is_dir()


def test_nothing_new_is_not_written_again(base: Path, opened: Opened, tmp_path: Path) -> None:
    run_until(start(base, base, opened()), opened(), 2)
    before = (tmp_path / "checkpoint" / "step-2").stat().st_ino
    kept = opened()
    kept.write(start(base, base, kept).trainer)
    assert (tmp_path / "checkpoint" / "step-2").stat().st_ino == before


# --- recorded log-probabilities


def test_log_probabilities_are_recorded_once(opened: Opened) -> None:
    # 1/3 and pi have no short decimals: what comes back must have every bit.
    logprobs: Logprobs = {7: [-1 / 3], 2: [-3.141592653589793, 0.0]}
    assert opened().recorded("reference", lambda: logprobs) == logprobs
    again = opened()
    assert again.recorded("reference", lambda: pytest.fail("recorded again")) == logprobs
    assert again.recorded("old", lambda: {1: [-1.0]}) == {1: [-1.0]}


def test_log_probabilities_of_no_row_are_recorded(opened: Opened) -> None:
    assert opened().recorded("old", dict) == {}
    assert opened().recorded("old", lambda: pytest.fail("recorded again")) == {}


# --- damage


def garble(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


FILES = [
    "step-2/train_steps.parquet",
    "step-2/old.parquet",
    "step-2/sha256",
    "step-2/trainer_state/state.json",
    "step-2/trainer_state/state.safetensors",
]


@pytest.mark.parametrize("damage", [garble, cut, Path.unlink], ids=["garbled", "cut", "gone"])
@pytest.mark.parametrize("file", FILES)
def test_damage_is_noticed(
    file: str, damage: Callable[[Path], None], base: Path, opened: Opened, tmp_path: Path
) -> None:
    run_until(start(base, base, opened()), opened(), 2)
    damage(tmp_path / "checkpoint" / file)
    with pytest.raises(DamagedCheckpoint):
        opened()
    aside = set_aside(tmp_path / "checkpoint")
    assert (aside / "step-2").is_dir()
    assert opened().taken.metrics == []


def test_recorded_log_probabilities_are_refused_or_right(opened: Opened, tmp_path: Path) -> None:
    """Bits of a Parquet file that hold no value may turn unnoticed."""
    logprobs: Logprobs = {row: [-1 / (row + 3)] * 4 for row in range(15)}
    opened().recorded("old", lambda: logprobs)
    file = tmp_path / "checkpoint" / "old.parquet"
    content = file.read_bytes()
    n_refused = 0
    for place in range(4, len(content) // 2, 15):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert opened().recorded("old", dict) == logprobs
        except DamagedCheckpoint:
            n_refused += 1
    assert n_refused > 10
    cut(file)
    with pytest.raises(DamagedCheckpoint):
        opened()


def test_a_second_damaged_checkpoint_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "checkpoint" / name).mkdir(parents=True)
        aside = set_aside(tmp_path / "checkpoint")
    assert [path.name for path in aside.iterdir()] == ["b"]


def test_what_a_kill_left_half_written_is_not_used(base: Path, opened: Opened, tmp_path: Path) -> None:
    run_until(start(base, base, opened()), opened(), 2)
    folder = tmp_path / "checkpoint"
    (folder / ".tmp-step-3.999999999" / "trainer_state").mkdir(parents=True)
    (folder / ".tmp-old.parquet.999999999").write_bytes(b"PAR1")
    (folder / "step-1" / "trainer_state").mkdir(parents=True)  # it was about to be removed
    assert len(opened().taken.metrics) == 2
    run_until(start(base, base, opened()), opened(), 3)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["step-3"]


# --- fingerprints


def test_a_fingerprint_is_of_names_contents_and_values(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    file = tmp_path / "policy" / "weights"
    seen = {fingerprint([tmp_path / "policy"], 1)}
    for name, content in (("weights", b"1"), ("weights", b"2"), ("other", b"2")):
        file = file.rename(file.with_name(name)) if file.exists() else file
        file.write_bytes(content)
        seen.add(fingerprint([tmp_path / "policy"], 1))
    seen.add(fingerprint([tmp_path / "policy"], 2))
    assert len(seen) == 5
    assert fingerprint([tmp_path / "policy"], 2) in seen
    assert all(len(name) == 16 for name in seen)


@pytest.mark.parametrize("name", ["CODE", "PACKAGES"])
def test_a_fingerprint_is_of_code_and_packages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint([])
    monkeypatch.setattr(checkpoints, name, getattr(checkpoints, name)[1:])
    assert fingerprint([]) != before


def test_where_files_lie_makes_no_difference(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place / "policy").mkdir(parents=True)
        (tmp_path / place / "policy" / "weights").write_bytes(b"1")
    assert digest_of([tmp_path / "a" / "policy"]) == digest_of([tmp_path / "b" / "policy"])
    assert digest_of([tmp_path / "c" / "policy"]) == digest_of([])


# --- out of memory


def test_a_micro_batch_too_large_leaves_the_steps_before(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = prepare(load_trainable(base, base), random_rows(n_groups=5), training_params(minibatches=2))
    assert [len(step.micro_batches) for step in update.steps] == [1, 1]
    n_calls = 0

    def run_out(*arguments: Any) -> TokenStatistics:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            torch.empty(2**50)
        return row_statistics(*arguments)

    monkeypatch.setattr("pipeline.training.trainer.row_statistics", run_out)
    with pytest.raises(MicroBatchTooLarge) as refused:
        update.run()
    message = str(refused.value)
    assert message.startswith("params.yaml: training.max_tokens_per_microbatch: a micro-batch does not fit into memory")
    assert "DefaultCPUAllocator" in message
    rows = [update.trainer.rows[index] for index in update.steps[1].rows]
    assert f"completions: {len(rows)}, their tokens: {sum(len(row.completion_token_ids) for row in rows)}," in message
    assert [row["step"] for row in update.trainer.metrics] == [0]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried 9 GiB"), MemoryError()])
def test_recording_log_probabilities_runs_out_of_memory_in_the_same_words(
    error: Exception, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("pipeline.training.recording.row_statistics", run_out)
    model = load_trainable(base, base)
    with pytest.raises(BadInput, match="max_tokens_per_microbatch: a micro-batch does not fit into memory"):
        record(model, random_rows(), plan(model, random_rows(), PARAMS))


def test_another_error_is_left_as_it_is(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr("pipeline.training.recording.row_statistics", fail)
    model = load_trainable(base, base)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        record(model, random_rows(), plan(model, random_rows(), PARAMS))
