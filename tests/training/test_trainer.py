"""The update loop on a tiny model: ratios, the fixed old policy, the reference, learning, several iterations."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.errors import BadInput
from pipeline.policy import load_model, save_model
from pipeline.table_checks import check_schema, check_table
from pipeline.tables import TOKEN_LOGPROBS, TRAIN_STEPS
from pipeline.training.state import load_state, read_optimizer, save_state
from tests.tiny_updates import (
    CPU,
    FREE,
    Update,
    distance,
    load_trainable,
    plan,
    prepare,
    random_rows,
    ready,
    record,
    training_params,
    weights_of,
    with_own_sampling,
)


def method_of(policy: Path, base: Path) -> tuple[str, torch.dtype]:
    """The training method, and the precision of the weights that the stage loads for it."""
    return ("full", torch.float32) if policy == base else ("lora", torch.bfloat16)


# --- the same update


def test_the_same_update_twice_is_the_same_bits(policy: Path, base: Path) -> None:
    method, dtype = method_of(policy, base)
    found = []
    for _ in range(2):
        model = load_trainable(policy, base, dtype)
        tables = prepare(model, random_rows(), training_params(epochs=2, minibatches=2)).run()
        found.append((weights_of(model), tables))
    (ours, our_tables), (theirs, their_tables) = found
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items()), method
    assert all(table.equals(other) for table, other in zip(our_tables, their_tables, strict=True))


# --- ratios, and the fixed old policy


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_the_ratio_is_exactly_1_at_the_first_step(epochs: int, minibatches: int, policy: Path, base: Path) -> None:
    """Under autocast, as the stage runs it: the same kernels on the same batches."""
    model = load_trainable(policy, base, method_of(policy, base)[1])
    update = prepare(model, random_rows(n_groups=6), training_params(epochs=epochs, minibatches=minibatches))
    train_steps, _ = update.run()
    assert train_steps["ratio_max"][0] == 1.0
    assert (train_steps["ratio_max"][1:] != 1.0).all()
    assert train_steps["clip_fraction_low"][0] == train_steps["clip_fraction_high"][0] == 0.0


def test_every_step_of_an_update_has_the_same_old_policy(policy: Path, base: Path) -> None:
    rows = random_rows(n_groups=5)
    params = training_params(epochs=2, minibatches=2)
    model = load_trainable(policy, base, method_of(policy, base)[1])
    before = record(model, rows, plan(model, rows, params))
    update = prepare(model, rows, params)
    train_steps, token_logprobs = update.run()
    assert train_steps["epoch"].to_list() == [0, 0, 1, 1]
    assert train_steps["step"].to_list() == [0, 1, 2, 3]
    by_id = {rows[index].completion_id: values for index, values in before.items()}
    assert {row["completion_id"]: row["old_logprobs"] for row in token_logprobs.iter_rows(named=True)} == by_id
    after = record(model, rows, update.steps)
    assert all(after[index] != before[index] for index in before), "the policy itself has moved"


def test_token_logprobs_say_which_steps_used_a_completion(base: Path) -> None:
    rows = random_rows(n_groups=5)
    update = prepare(load_trainable(base, base), rows, training_params(epochs=2, minibatches=2))
    train_steps, token_logprobs = update.run()
    check_schema(train_steps.schema, TRAIN_STEPS, "train_steps")
    check_table(train_steps, TRAIN_STEPS, "train_steps")
    check_schema(token_logprobs.schema, TOKEN_LOGPROBS, "token_logprobs")
    check_table(token_logprobs, TOKEN_LOGPROBS, "token_logprobs")
    steps = dict(token_logprobs.select("completion_id", "steps").iter_rows())
    assert steps.keys() == {row.completion_id for row in rows}
    for number, step in enumerate(update.steps):
        used = {rows[index].completion_id for index in step.rows}
        assert used == {name for name, numbers in steps.items() if number in numbers}
    assert {len(numbers) for numbers in steps.values()} == {2}
    assert token_logprobs["ref_logprobs"].null_count() == len(rows)


def test_counts_are_those_of_the_step(base: Path) -> None:
    rows = random_rows(n_groups=5)
    update = prepare(load_trainable(base, base), rows, training_params(minibatches=2))
    train_steps, _ = update.run()
    lengths = [[len(rows[index].completion_token_ids) for index in step.rows] for step in update.steps]
    assert train_steps["n_completions"].to_list() == [len(step) for step in lengths]
    assert train_steps["n_tokens"].to_list() == [sum(step) for step in lengths]


# --- the reference


def test_the_reference_of_an_adapter_is_the_base_model(base: Path, adapter: Path) -> None:
    rows = random_rows()
    model = load_trainable(adapter, base, torch.bfloat16)
    steps = plan(model, rows, training_params())
    reference = record(model, rows, steps, model.disable_adapter())
    assert reference == record(ready(load_model(base, base, CPU, torch.bfloat16)), rows, steps)
    assert reference != record(model, rows, steps), "the adapter is on again"
    assert all(value.requires_grad for name, value in model.named_parameters() if "lora_" in name)


@pytest.mark.usefixtures("layout")
def test_the_kl_of_a_new_adapter_is_exactly_0(base: Path, new_adapter: Path) -> None:
    rows = random_rows()
    model = load_trainable(new_adapter, base, torch.bfloat16)
    params = training_params(epochs=2)
    reference = record(model, rows, plan(model, rows, params), model.disable_adapter())
    update = prepare(model, rows, params, reference=reference)
    train_steps, token_logprobs = update.run()
    assert train_steps["kl"][0] == 0.0
    assert train_steps["kl"][1] > 0.0
    assert train_steps["loss"][0] == train_steps["policy_loss"][0]
    assert token_logprobs["ref_logprobs"].to_list() == token_logprobs["old_logprobs"].to_list()


def test_a_new_adapter_moves_its_b_alone(base: Path, new_adapter: Path) -> None:
    update = prepare(load_trainable(new_adapter, base), random_rows(), training_params())
    update.run()
    for name, gradient in update.gradients.items():
        assert gradient.any().item() == ("lora_B" in name), "A's gradient goes through B, which is 0"


def test_without_a_reference_the_kl_is_null(base: Path) -> None:
    train_steps, _ = prepare(load_trainable(base, base), random_rows(), training_params()).run()
    assert train_steps["kl"].to_list() == [None]
    assert train_steps["loss"].to_list() == train_steps["policy_loss"].to_list()


@pytest.mark.usefixtures("in_float32")
def test_the_engine_s_own_probabilities_need_no_correction(base: Path) -> None:
    rows = random_rows()
    model = load_trainable(base, base)
    own = with_own_sampling(rows, record(model, rows, plan(model, rows, training_params())))
    train_steps, _ = prepare(model, own, training_params()).run()
    assert train_steps["sampling_kl"].item() == 0.0
    # grpo on-policy: minus the mean over completions of the advantage.
    assert train_steps["policy_loss"].item() == pytest.approx(-sum(row.advantage for row in rows) / len(rows), abs=1e-6)


# --- learning, and the learning rate


def test_warm_up_is_over_the_run_and_not_the_iteration(base: Path) -> None:
    params = training_params(learning_rate=1e-4, warmup_steps=5, epochs=2, minibatches=2)
    first = prepare(load_trainable(base, base), random_rows(), params)
    rates = first.run()[0]["learning_rate"].to_list()
    second = first.then(random_rows(seed=1))
    train_steps, token_logprobs = second.run()
    assert [*rates, *train_steps["learning_rate"]] == pytest.approx(
        [2e-5, 4e-5, 6e-5, 8e-5, 1e-4, 1e-4, 1e-4, 1e-4], rel=1e-12
    )
    assert train_steps["step"].to_list() == [4, 5, 6, 7]
    assert {number for numbers in token_logprobs["steps"] for number in numbers} == {4, 5, 6, 7}


def test_the_rate_is_the_one_that_adam_uses(base: Path) -> None:
    """Adam's first step moves each weight by the learning rate, where the gradient is well above epsilon."""
    model = load_trainable(base, base)
    before = weights_of(model)
    update = prepare(model, random_rows(), training_params(learning_rate=8e-3, warmup_steps=4, **FREE))
    update.run()
    moved = torch.cat([(before[name] - value).flatten() for name, value in weights_of(model).items()])
    gradient = torch.cat([update.gradients[name].flatten() for name in before])
    is_large = gradient.abs() > 1e-3
    assert is_large.sum() > 100
    assert torch.allclose(moved[is_large], 2e-3 * gradient[is_large].sign(), rtol=1e-2)


def test_gradients_are_clipped_to_the_norm_and_the_norm_is_that_before(base: Path) -> None:
    free = prepare(load_trainable(base, base), random_rows(), training_params(**FREE))
    norm = free.run()[0]["grad_norm"].item()
    clipped = prepare(load_trainable(base, base), random_rows(), training_params(**{**FREE, "max_grad_norm": norm / 4}))
    assert clipped.run()[0]["grad_norm"].item() == norm
    quarter = {name: value / 4 for name, value in free.gradients.items()}
    assert distance(clipped.gradients, quarter) < 1e-4


def test_what_is_rewarded_becomes_likelier(policy: Path, base: Path) -> None:
    rows = random_rows(n_groups=2, group_size=2)
    model = load_trainable(policy, base, method_of(policy, base)[1])
    update = prepare(model, rows, training_params(learning_rate=3e-3, **FREE))
    before = record(model, rows, update.steps)
    update.run()
    after = record(model, rows, update.steps)
    gain = sum(row.advantage * (sum(after[i]) - sum(before[i])) for i, row in enumerate(rows))
    assert gain > 0


# --- from one iteration to the next


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (2, 2)])
def test_two_iterations_are_the_same_with_a_save_between(
    epochs: int, minibatches: int, policy: Path, base: Path, tmp_path: Path
) -> None:
    method, dtype = method_of(policy, base)
    schedule = {"warmup_steps": 1, "decay": "cosine", "decay_steps": 6, "min_learning_rate_fraction": 0.1}
    params = training_params(epochs=epochs, minibatches=minibatches, weight_decay=0.01, **schedule)
    first, second = random_rows(seed=1), random_rows(seed=2)

    through = prepare(load_trainable(policy, base, dtype), first, params)
    through.run()
    n_steps = len(through.steps)
    save_model(through.trainer.model, tmp_path / "policy")
    save_state(read_optimizer(through.trainer.model, through.trainer.optimizer, n_steps, method), tmp_path / "state")
    through = through.then(second)
    expected = through.run()

    resumed = prepare(
        load_trainable(tmp_path / "policy", base, dtype), second, params, state=load_state(tmp_path / "state")
    )
    found = resumed.run()
    assert all(ours.equals(theirs) for ours, theirs in zip(found, expected, strict=True))
    assert_same_state(resumed, through, method)
    for name, update in (("a", resumed), ("b", through)):
        save_model(update.trainer.model, tmp_path / name)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def assert_same_state(ours: Update, theirs: Update, method: str) -> None:
    found, expected = (read_optimizer(u.trainer.model, u.trainer.optimizer, 9, method).tensors for u in (ours, theirs))
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_steps_smaller_than_the_rounding_of_bfloat16_add_up(base: Path, tmp_path: Path) -> None:
    """Without masters each of these steps would be lost when the policy is saved."""
    params = training_params(learning_rate=1e-6)
    model = load_trainable(base, base)
    update = prepare(model, random_rows(), params)
    update.run()
    start = weights_of(load_trainable(base, base))
    save_model(model, tmp_path / "policy")
    rounded = weights_of(load_trainable(tmp_path / "policy", base))
    n_lost = sum(int((rounded[name] == start[name]).sum()) for name in start)
    assert n_lost > 0.9 * sum(value.numel() for value in start.values())
    state = read_optimizer(model, update.trainer.optimizer, 1, "full")
    resumed = load_trainable(tmp_path / "policy", base)
    prepare(resumed, random_rows(), params, state=state).run()
    n_moved = sum(int((value != start[name]).sum()) for name, value in weights_of(resumed).items())
    assert n_moved > 0.9 * sum(value.numel() for value in start.values() if value.ndim > 1)


def test_a_parameter_that_no_token_reached_is_carried_on(base: Path, tmp_path: Path) -> None:
    """As an expert of a mixture that was not chosen: no gradient is a gradient of 0."""
    model = load_trainable(base, base)
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    update = prepare(model, random_rows(), training_params())
    update.run()
    state = read_optimizer(model, update.trainer.optimizer, 1, "full")
    assert state.tensors["master.unused"].tolist() == [1.0] * 3
    assert state.tensors["exp_avg.unused"].tolist() == [0.0] * 3
    save_state(state, tmp_path / "state")
    prepare(model, random_rows(), training_params(), state=load_state(tmp_path / "state")).run()


# --- bad input


@pytest.mark.parametrize("advantage", [math.inf, -math.inf, math.nan, 3e38])
def test_a_gradient_that_is_not_finite_changes_no_weight(advantage: float, policy: Path, base: Path) -> None:
    rows = random_rows()
    rows[4] = replace(rows[4], advantage=advantage)
    model = load_trainable(policy, base, method_of(policy, base)[1])
    before = weights_of(model)
    update = prepare(model, rows, training_params())
    with pytest.raises(BadInput, match=r"training_set.parquet: the gradient of step 0 is not finite"):
        update.run()
    assert all(torch.equal(value, before[name]) for name, value in weights_of(model).items())
    assert not update.trainer.optimizer.state


def test_a_single_completion_of_one_token_is_enough(base: Path) -> None:
    row = replace(random_rows(n_groups=1, group_size=1)[0], completion_token_ids=[2], sampling_logprobs=[-1.0])
    train_steps, _ = prepare(load_trainable(base, base), [row], training_params(minibatches=3)).run()
    assert train_steps.height == 1
    assert math.isfinite(train_steps["loss"].item())


def test_an_end_token_with_the_id_of_padding_is_trained_on(base: Path) -> None:
    """Two completions that differ in a final 2, which is both eos and pad, have 3 and 2 tokens."""
    rows = [
        replace(row, completion_token_ids=tokens, sampling_logprobs=[-1.0] * len(tokens))
        for row, tokens in zip(random_rows(n_groups=1, group_size=2), ([5, 7, 2], [5, 7]), strict=True)
    ]
    train_steps, token_logprobs = prepare(load_trainable(base, base), rows, training_params()).run()
    assert train_steps["n_tokens"].item() == 5
    assert sorted(token_logprobs["old_logprobs"].list.len()) == [2, 3]
