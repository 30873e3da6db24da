"""The trainer's state on disk, and the optimizer that is made from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from pipeline.errors import BadInput
from pipeline.params import LoraParams
from pipeline.policy import create_adapter, save_model
from pipeline.training.state import (
    PARTS,
    TrainerState,
    load_state,
    make_optimizer,
    read_optimizer,
    save_state,
    trainable_parameters,
)
from tests.tiny_updates import load_trainable, prepare, random_rows, training_params, weights_of


@pytest.fixture
def state(adapter: Path, base: Path) -> TrainerState:
    """That of an adapter after one step."""
    model = load_trainable(adapter, base)
    update = prepare(model, random_rows(), training_params())
    update.run()
    return read_optimizer(model, update.trainer.optimizer, 1, "lora")


def test_a_new_state_holds_no_tensor(tmp_path: Path) -> None:
    save_state(TrainerState(method="full"), tmp_path / "state")
    assert [file.name for file in (tmp_path / "state").iterdir()] == ["state.json"]
    assert load_state(tmp_path / "state") == TrainerState(0, "full", {})


def test_what_is_saved_is_loaded(state: TrainerState, tmp_path: Path) -> None:
    save_state(state, tmp_path / "state")
    loaded = load_state(tmp_path / "state")
    assert (loaded.step, loaded.method) == (1, "lora")
    assert loaded.tensors.keys() == state.tensors.keys()
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in state.tensors.items())
    assert {tensor.dtype for tensor in loaded.tensors.values()} == {torch.float32}


def test_the_same_state_is_the_same_bytes(state: TrainerState, tmp_path: Path) -> None:
    turned = replace(state, tensors=dict(reversed(state.tensors.items())))
    for name, value in (("a", state), ("b", turned)):
        save_state(value, tmp_path / name)
    for file in ("state.json", "state.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_state_holds_the_adapter_alone(state: TrainerState, adapter: Path, base: Path) -> None:
    names = trainable_parameters(load_trainable(adapter, base))
    assert state.tensors.keys() == {f"{part}.{name}" for part in PARTS for name in names}
    assert all("lora_" in name for name in names)


def test_masters_replace_what_bfloat16_rounded(state: TrainerState, adapter: Path, base: Path, tmp_path: Path) -> None:
    model = load_trainable(adapter, base)
    update = prepare(model, random_rows(), training_params(learning_rate=1e-5))
    update.run()
    masters = weights_of(model)
    save_model(model, tmp_path / "policy")
    again = load_trainable(tmp_path / "policy", base)
    rounded = weights_of(again)
    assert all(torch.equal(rounded[name], master.bfloat16().float()) for name, master in masters.items())
    assert any(not torch.equal(rounded[name], master) for name, master in masters.items())
    make_optimizer(again, read_optimizer(model, update.trainer.optimizer, 1, "lora"), training_params())
    assert all(torch.equal(weights_of(again)[name], master) for name, master in masters.items())


def test_the_optimizer_goes_on_where_it_was(state: TrainerState, adapter: Path, base: Path) -> None:
    params = training_params(adam_beta1=0.8, adam_beta2=0.9, adam_epsilon=1e-6, weight_decay=0.1)
    model = load_trainable(adapter, base)
    optimizer = make_optimizer(model, replace(state, step=20, optimizer_step=17), params)
    (group,) = optimizer.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.9), 1e-6, 0.1)
    for name, parameter in trainable_parameters(model).items():
        moments = optimizer.state[parameter]
        assert moments["step"].item() == 17
        assert torch.equal(moments["exp_avg"], state.tensors[f"exp_avg.{name}"])
        assert torch.equal(moments["exp_avg_sq"], state.tensors[f"exp_avg_sq.{name}"])


def test_without_a_step_the_optimizer_is_new(adapter: Path, base: Path) -> None:
    model = load_trainable(adapter, base)
    before = weights_of(model)
    optimizer = make_optimizer(model, TrainerState(), training_params())
    assert not optimizer.state
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(before)
    assert all(torch.equal(value, before[name]) for name, value in weights_of(model).items())


# --- states that are refused


def test_the_state_of_another_rank_is_refused(state: TrainerState, base: Path, tmp_path: Path) -> None:
    create_adapter(base, LoraParams(rank=2), 0, tmp_path / "policy")
    model = load_trainable(tmp_path / "policy", base)
    before = weights_of(model)
    with pytest.raises(BadInput, match=r"trainer_state: exp_avg\..*lora_A.* is \(4, \d+\) there and \(2, \d+\) in the"):
        make_optimizer(model, state, training_params())
    assert all(torch.equal(value, before[name]) for name, value in weights_of(model).items())


def test_the_state_of_other_modules_is_refused(state: TrainerState, base: Path, tmp_path: Path) -> None:
    create_adapter(base, LoraParams(rank=4, target_modules=["q_proj"]), 0, tmp_path / "policy")
    with pytest.raises(BadInput, match=r"absent in the policy.*begin a new run"):
        make_optimizer(load_trainable(tmp_path / "policy", base), state, training_params())


def test_the_state_of_the_other_method_is_refused(state: TrainerState, base: Path) -> None:
    with pytest.raises(BadInput, match="data/trainer_state"):
        make_optimizer(load_trainable(base, base), state, training_params())


def test_a_state_that_lacks_a_moment_is_refused(state: TrainerState, adapter: Path, base: Path) -> None:
    gone = next(name for name in state.tensors if name.startswith("exp_avg_sq."))
    tensors = {name: tensor for name, tensor in state.tensors.items() if name != gone}
    with pytest.raises(BadInput, match="is absent there"):
        make_optimizer(load_trainable(adapter, base), replace(state, tensors=tensors), training_params())


def test_no_state_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere/state.json: there is no such file. Run `dvc repro start`"):
        load_state(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"step": 1}', '{"step": "many", "method": "lora"}', "\xff"])
def test_a_state_without_step_and_method_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput, match=r"state.json: it holds no step, method and optimizer_step"):
        load_state(tmp_path)


def test_a_lost_tensor_file_is_named(state: TrainerState, tmp_path: Path) -> None:
    save_state(state, tmp_path / "state")
    (tmp_path / "state" / "state.safetensors").unlink()
    with pytest.raises(BadInput, match=r"state.safetensors: it can't be read"):
        load_state(tmp_path / "state")


def test_a_cut_tensor_file_is_named(state: TrainerState, tmp_path: Path) -> None:
    save_state(state, tmp_path / "state")
    file = tmp_path / "state" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadInput, match=r"state.safetensors: it can't be read"):
        load_state(tmp_path / "state")


def test_a_state_is_written_over_another_one(state: TrainerState, tmp_path: Path) -> None:
    save_state(state, tmp_path / "state")
    save_state(TrainerState(method="full"), tmp_path / "state")
    assert [file.name for file in (tmp_path / "state").iterdir()] == ["state.json"]
    save_state(state, tmp_path / "state")
    with safe_open(tmp_path / "state" / "state.safetensors", "pt") as file:
        assert set(file.keys()) == set(state.tensors)
    assert json.loads((tmp_path / "state" / "state.json").read_text()) == {
        "method": "lora",
        "step": 1,
        "optimizer_step": 1,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
