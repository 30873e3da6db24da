"""The stage `update` on a tiny model: killed and run again to the same bytes, and with each kind of reference."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from ruamel.yaml import YAML

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, load_params
from pipeline.presets import PRESETS
from pipeline.table_io import read_table, write_json, write_table
from pipeline.tables import TOKEN_LOGPROBS, TRAIN_STEPS, TRAINING_SET
from pipeline.training.forward import row_statistics
from pipeline.training.logprobs import TokenStatistics
from stages import paths, update
from stages.runner import Result
from tests import threads
from tests.stage_runs import ROOT, write_params
from tests.tiny_model import build_tiny_model
from tests.update_stage import FOUR_STEPS, OUTPUTS, lay_out_update, write_training_set


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """One thread, as the processes here have; and what the stage switches on in this process goes off again."""
    with threads.one_thread():
        yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_tiny_model(folder)
    return folder


@pytest.fixture
def lay_out(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Makes the current directory one in which `update` is the next stage."""

    def lay_out(changes: dict[str, Any]) -> None:
        monkeypatch.chdir(tmp_path)
        lay_out_update(base, changes)

    return lay_out


def run() -> Result:
    return update.update(load_params())


def outputs() -> dict[str, bytes]:
    """The bytes of every output by its path; the files are removed, as DVC does before a stage."""
    found: dict[str, bytes] = {}
    for path in OUTPUTS:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found |= {str(file): file.read_bytes() for file in files}
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return found


def kill_in_step(number: int) -> None:
    """Run the stage, and interrupt it in that step, before the optimizer changes anything."""
    with pytest.MonkeyPatch.context() as patch:
        step, n_calls = torch.optim.AdamW.step, 0

        def interrupted(*arguments: Any, **named: Any) -> Any:
            nonlocal n_calls
            if n_calls == number:
                raise KeyboardInterrupt
            n_calls += 1
            return step(*arguments, **named)

        patch.setattr(torch.optim.AdamW, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert not any(path.exists() for path in OUTPUTS)


def folders() -> list[str]:
    return sorted(path.name for path in paths.CHECKPOINTS.iterdir())


# --- the presets


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_trains(preset: str, lay_out: Callable[[dict[str, Any]], None]) -> None:
    """As it is: without the keys that the file of the tests gives."""
    lay_out({"preset": preset})
    yaml = YAML(typ="safe", pure=True)
    given = yaml.load(PARAMS_FILE)
    given["normalize"] = {}
    for key in PRESETS["grpo"]["training"]:
        given["training"].pop(key, None)
    yaml.dump(given, PARAMS_FILE)
    rows = read_table(paths.TRAINING_SET, TRAINING_SET).with_row_index()
    rows = rows.with_columns(is_truncated=pl.col("index") % 3 == 0).drop("index")  # one of each group
    write_table(rows, paths.TRAINING_SET, TRAINING_SET)
    training = load_params().training
    assert training.loss == PRESETS[preset]["training"]["loss"]
    metrics = run().metrics
    assert (metrics["n_steps"], metrics["n_completions"]) == (4, 10 if preset == "dapo" else 15)
    steps = read_table(paths.TRAIN_STEPS, TRAIN_STEPS)
    assert steps["kl"].null_count() == (0 if training.kl_coefficient else 4)
    assert steps["grad_norm"][0] > 0  # later ones may be clipped to nothing, those of gspo above all
    assert steps["ratio_max"][0] == 1.0
    assert (steps["ratio_max"][1:] > 1.0).all()


# --- killed, and run again


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("kl", [{"kl_coefficient": 0.0}, {"kl_coefficient": 0.1}, {"kl_in": "reward"}], ids=str)
def test_a_killed_update_ends_in_the_same_bytes(
    method: str, kl: dict[str, Any], lay_out: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out({"training.method": method, **{f"training.{key}": value for key, value in kl.items()}})
    assert run().metrics["n_steps_resumed"] == 0
    expected = outputs()
    assert "goes on" not in capsys.readouterr().out
    for n_steps in (1, 3):
        kill_in_step(n_steps)
        metrics = run().metrics
        assert "update: it goes on from step" in capsys.readouterr().out
        assert (metrics["n_steps"], metrics["n_steps_resumed"]) == (4, n_steps)
        assert outputs() == expected
        assert not paths.CHECKPOINTS.exists()


def test_an_update_killed_again_and_again_ends_in_the_same_bytes(
    lay_out: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out({"training.decay": "cosine", "training.decay_steps": 5})
    run()
    expected = outputs()
    for _ in range(3):
        kill_in_step(1)  # of those that are left
    assert run().metrics["n_steps_resumed"] == 3
    assert "update: it goes on from step 3 of 4, where an earlier try came to" in capsys.readouterr().out
    assert outputs() == expected


@pytest.mark.parametrize("method", ["lora", "full"])
def test_log_probabilities_on_record_are_not_recorded_again(method: str, lay_out: Callable[..., None]) -> None:
    lay_out({"training.method": method})
    run()
    expected = outputs()
    kill_in_step(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "record_logprobs", lambda *_: pytest.fail("recorded again"))
        assert run().metrics["n_steps_resumed"] == 0
    assert outputs() == expected


def test_an_update_killed_while_it_writes_takes_no_step_again(lay_out: Callable[..., None]) -> None:
    lay_out({})
    run()
    expected = outputs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "save_state", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run()
    metrics = run().metrics
    assert (metrics["n_steps_resumed"], metrics["tokens_per_second"]) == (4, None)
    assert outputs() == expected


# --- which checkpoint is used


@pytest.mark.parametrize(
    "change",
    [
        lambda: write_params(Path(), {**FOUR_STEPS, "training.kl_coefficient": 0.3}),
        lambda: write_params(Path(), {**FOUR_STEPS, "sampling.temperature": 0.7}),
        lambda: write_params(Path(), {**FOUR_STEPS, "seed": 1}),
        lambda: write_training_set(seed=1),
        lambda: (paths.TRAINER_STATE / "state.json").write_text('{"method": "lora", "step": 9, "optimizer_step": 0}'),
    ],
    ids=["kl_coefficient", "temperature", "seed", "row", "state"],
)
def test_a_checkpoint_of_other_inputs_is_not_used(change: Callable[[], Any], lay_out: Callable[..., None]) -> None:
    lay_out({})
    kill_in_step(2)
    (other,) = folders()
    change()
    kill_in_step(1)
    assert len(folders()) == 2
    assert other in folders()
    assert run().metrics["n_steps_resumed"] == 1
    assert not paths.CHECKPOINTS.exists(), "that of the other inputs is gone, too"
    found = outputs()
    run()
    assert outputs() == found


@pytest.mark.parametrize("minutes", [0.5, 3.0])
def test_how_often_checkpoints_are_written_makes_no_difference(minutes: float, lay_out: Callable[..., None]) -> None:
    lay_out({})
    kill_in_step(2)
    write_params(Path(), {**FOUR_STEPS, "training.checkpoint_minutes": minutes, "training.device": "cpu"})
    assert run().metrics["n_steps_resumed"] == 2


def test_null_leaves_nothing_and_uses_nothing(lay_out: Callable[..., None]) -> None:
    lay_out({})
    kill_in_step(2)
    write_params(Path(), {**FOUR_STEPS, "training.checkpoint_minutes": None})
    assert run().metrics["n_steps_resumed"] == 0
    outputs()
    assert not paths.CHECKPOINTS.exists()
    kill_in_step(2)
    assert not paths.CHECKPOINTS.exists()


def test_a_damaged_checkpoint_is_set_aside(lay_out: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    lay_out({})
    run()
    expected = outputs()
    kill_in_step(2)
    (name,) = folders()
    file = paths.CHECKPOINTS / name / "step-2/trainer_state/state.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    kill_in_step(1)
    assert folders() == [name, f"{name}.damaged"]
    aside = paths.CHECKPOINTS / f"{name}.damaged"
    line = f"update: it begins anew: the checkpoint of an earlier try is damaged, and is now {aside}\n"
    assert line in capsys.readouterr().out
    assert run().metrics["n_steps_resumed"] == 1
    assert outputs() == expected
    assert not paths.CHECKPOINTS.exists()


# --- out of memory


def count_passes(then: Callable[[int], object] = lambda _: None) -> int:
    """Run the stage; return how many forward passes its steps made, each told to `then` by its number, from 1."""
    n_passes = 0

    def counted(*arguments: Any, **named: Any) -> TokenStatistics:
        nonlocal n_passes
        if torch.is_grad_enabled():
            n_passes += 1
            then(n_passes)
        return row_statistics(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.training.trainer.row_statistics", counted)
        run()
    return n_passes


def run_out_of_memory(number: int) -> str:
    """Run the stage, whose memory is used up in that forward pass; return the message."""
    with pytest.raises(BadInput) as refused:
        count_passes(lambda current: torch.empty(2**50) if current == number else None)
    return str(refused.value)


def test_what_was_done_before_the_memory_was_used_up_is_kept(lay_out: Callable[..., None]) -> None:
    lay_out({"training.checkpoint_minutes": 60.0})
    n_passes = count_passes()
    expected = outputs()
    message = run_out_of_memory(n_passes)
    assert message.startswith("params.yaml: training.max_tokens_per_microbatch: a micro-batch does not fit into memory")
    assert [path.name for path in paths.CHECKPOINTS.glob("*/step-*")] == ["step-3"]
    assert run().metrics["n_steps_resumed"] == 3
    assert outputs() == expected


def test_smaller_micro_batches_go_on_from_what_was_done(lay_out: Callable[..., None]) -> None:
    lay_out({"training.checkpoint_minutes": 60.0})
    loss = run().metrics["loss"]
    expected = outputs()
    n_passes = count_passes()
    outputs()
    run_out_of_memory(n_passes)
    write_params(Path(), {**FOUR_STEPS, "training.max_tokens_per_microbatch": 16})
    smaller = run()
    assert smaller.metrics["n_steps_resumed"] == 3
    assert smaller.metrics["loss"] == pytest.approx(loss, abs=2e-3)
    assert outputs().keys() == expected.keys()


def test_a_first_step_that_does_not_fit_leaves_no_steps(lay_out: Callable[..., None]) -> None:
    lay_out({"training.checkpoint_minutes": 60.0})
    run_out_of_memory(1)
    assert not list(paths.CHECKPOINTS.glob("*/step-*"))


def test_an_optimizer_that_does_not_fit_is_named_and_nothing_half_changed_is_kept(lay_out: Callable[..., None]) -> None:
    lay_out({"training.checkpoint_minutes": 60.0})
    step, n_calls = torch.optim.AdamW.step, 0

    def run_out(*arguments: Any, **named: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3:
            torch.empty(2**50)
        return step(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", run_out)
        with pytest.raises(BadInput, match=r"training\.method: the model and its optimizer do not fit into memory"):
            run()
    assert not list(paths.CHECKPOINTS.glob("*/step-*"))


# --- real processes


def start_process() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "stages.update"], env=environment, stdout=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "full"])
def test_an_update_killed_at_a_random_moment_ends_in_the_same_bytes(method: str, lay_out: Callable[..., None]) -> None:
    lay_out({"training.method": method, "training.epochs": 20})
    run()
    expected = outputs()
    process = start_process()
    deadline = time.monotonic() + 120
    while not list(paths.CHECKPOINTS.glob("*/step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.5))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert run().metrics["n_steps_resumed"] > 0
    assert outputs() == expected


@pytest.mark.slow
def test_two_iterations_in_two_processes_are_those_of_one(lay_out: Callable[..., None]) -> None:
    """With a schedule, which goes on over both."""
    changes = {**FOUR_STEPS, "training.warmup_steps": 2, "training.decay": "linear", "training.decay_steps": 7}
    lay_out(changes)
    first = {path: path.with_name(f"first_{path.name}") for path in (paths.POLICY, paths.TRAINER_STATE)}
    for path, kept in first.items():
        shutil.copytree(path, kept)

    def iterate(update_once: Callable[[], Any]) -> dict[str, bytes]:
        for path, kept in first.items():
            shutil.rmtree(path)
            shutil.copytree(kept, path)
        for iteration in (0, 1):
            write_params(Path(), {**changes, "iteration": iteration, "parent": "0" * 40 if iteration else None})
            write_training_set(seed=iteration)
            update_once()
            if iteration == 0:
                for target, made in (
                    (paths.POLICY, paths.NEXT_POLICY),
                    (paths.TRAINER_STATE, paths.NEXT_TRAINER_STATE),
                ):
                    shutil.rmtree(target)
                    shutil.copytree(made, target)
        rates = pl.read_parquet(paths.TRAIN_STEPS)["learning_rate"].to_list()
        # Steps 4 to 7: (7 - step) / (7 - 2) of the peak, 0.01.
        assert rates == pytest.approx([0.006, 0.004, 0.002, 0.0])
        return outputs()

    assert iterate(lambda: start_process().wait()) == iterate(run)


# --- which policy is the reference


@pytest.mark.parametrize(("reference", "name"), [("base", "data/base"), ("previous", "the policy")])
def test_a_token_that_a_model_does_not_know_is_named(
    reference: str, name: str, lay_out: Callable[[dict[str, Any]], None]
) -> None:
    lay_out({"training.method": "full", "training.reference": reference})
    strange = pl.col("completion_token_ids").list.eval(pl.element() + 1000)
    write_table(read_table(paths.TRAINING_SET, TRAINING_SET).with_columns(strange), paths.TRAINING_SET, TRAINING_SET)
    with pytest.raises(BadInput, match=rf"has the token id 1\d\d\d, and {name} knows 0 to 98"):
        update.update(load_params())


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("is_fetched", [False, True])
def test_the_policy_of_the_iteration_as_its_own_reference(
    method: str, is_fetched: bool, lay_out: Callable[[dict[str, Any]], None]
) -> None:
    """Taken from its old log-probabilities, or, where an older iteration's policy was fetched, loaded for itself."""
    lay_out({"training.method": method, "training.reference": "previous"})
    if is_fetched:
        shutil.copytree(paths.POLICY, paths.REFERENCE / "policy")
        write_json({"policy": str(paths.REFERENCE / "policy")}, paths.REFERENCE / "reference.json")
    update.update(load_params())
    recorded = read_table(paths.TOKEN_LOGPROBS, TOKEN_LOGPROBS)
    theirs, ours = (recorded[name].explode().to_list() for name in ("ref_logprobs", "old_logprobs"))
    # An adapter is float32 only where it is trained.
    assert theirs == (pytest.approx(ours, abs=1e-3) if is_fetched else ours)
    kl = read_table(paths.TRAIN_STEPS, TRAIN_STEPS)["kl"]
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert (kl[1:] > 0).all()


def test_the_base_model_is_another_reference_than_an_adapter_that_was_trained(
    lay_out: Callable[[dict[str, Any]], None],
) -> None:
    lay_out({"training.reference": "base"})
    update.update(load_params())
    shutil.rmtree(paths.POLICY)
    paths.NEXT_POLICY.rename(paths.POLICY)
    update.update(load_params())
    recorded = read_table(paths.TOKEN_LOGPROBS, TOKEN_LOGPROBS)
    assert recorded["ref_logprobs"].to_list() != recorded["old_logprobs"].to_list()


def test_an_update_leaves_out_the_end_tokens_that_sampling_left_out(lay_out: Callable[[dict[str, Any]], None]) -> None:
    barred: list[int] = []

    def seen(*arguments: Any, **named: Any) -> TokenStatistics:
        stops = arguments[4]
        barred.append(stops.min_tokens if stops else 0)
        assert stops is None or stops.end_token_ids == {2, 7}
        return row_statistics(*arguments, **named)

    recorded = []
    for minimum in (0, 2):
        lay_out(
            {"sampling.min_completion_tokens": minimum, "sampling.stop_token_ids": [7], "training.reference": "base"}
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pipeline.training.trainer.row_statistics", seen)
            patch.setattr("pipeline.training.recording.row_statistics", seen)
            run()
        recorded.append(read_table(paths.TOKEN_LOGPROBS, TOKEN_LOGPROBS))
        assert set(barred) == {minimum}
        barred.clear()
        shutil.rmtree(paths.DATA)
    without, with_minimum = recorded
    for column in ("old_logprobs", "ref_logprobs"):
        for plain, masked in zip(without[column], with_minimum[column], strict=True):
            assert all(masked[:2] > plain[:2])  # the others share the probability of two tokens
            assert masked[2:].to_list() == pytest.approx(plain[2:].to_list(), abs=1e-6)


def test_the_kl_in_the_reward_moves_the_policy(lay_out: Callable[[dict[str, Any]], None]) -> None:
    found = []
    for coefficient in (0.0, 0.5):
        lay_out({"training.kl_in": "reward", "training.kl_coefficient": coefficient})
        update.update(load_params())
        shutil.rmtree(paths.POLICY)
        paths.NEXT_POLICY.rename(paths.POLICY)
        update.update(load_params())
        found.append(read_table(paths.TRAIN_STEPS, TRAIN_STEPS))
        shutil.rmtree(paths.DATA)
    without, with_kl = found
    assert without["kl"].null_count() == len(without)
    assert (with_kl["kl"] > 0).all()
    assert with_kl["policy_loss"].to_list() != without["policy_loss"].to_list()
    assert with_kl["loss"].to_list() == with_kl["policy_loss"].to_list(), "no term of the loss"
