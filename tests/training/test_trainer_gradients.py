"""The gradient of a step is the exact policy gradient, and what must change neither it nor the loss.

In float32: autocast is off, since bfloat16 rounds differently in batches of different shapes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.policy import Model, load_model
from pipeline.training.batching import TrainingRow
from pipeline.training.state import trainable_parameters
from tests.tiny_updates import (
    CPU,
    FREE,
    MAX_COMPLETION_TOKENS,
    TEMPERATURE,
    distance,
    load_trainable,
    plan,
    prepare,
    random_rows,
    record,
    training_params,
)

pytestmark = pytest.mark.usefixtures("in_float32")


def weighted_gradient(model: Model, rows: list[TrainingRow], weights: list[list[float]]) -> dict[str, torch.Tensor]:
    """The sum of weight * grad log p over all tokens, each completion run alone, without mask or padding."""
    model.set_attn_implementation("sdpa")
    total = torch.zeros((), dtype=torch.float64)
    for row, of_row in zip(rows, weights, strict=True):
        ids = torch.tensor([row.prompt_token_ids + row.completion_token_ids])
        logits = model(input_ids=ids).logits[0, len(row.prompt_token_ids) - 1 : -1].double() / TEMPERATURE
        places = torch.arange(len(row.completion_token_ids))
        total = total + logits.log_softmax(dim=-1)[places, row.completion_token_ids] @ torch.tensor(of_row).double()
    trainable = trainable_parameters(model)
    return dict(zip(trainable, torch.autograd.grad(total, list(trainable.values())), strict=True))


def policy_gradient(model: Model, rows: list[TrainingRow], loss: str) -> dict[str, torch.Tensor]:
    """minus the sum of A * grad log p, divided as `loss` does."""
    n_tokens = sum(len(row.completion_token_ids) for row in rows)
    weights = []
    for row in rows:
        n_own = len(row.completion_token_ids)
        divisors = {"dapo": n_tokens, "cispo": n_tokens, "dr_grpo": len(rows) * MAX_COMPLETION_TOKENS}
        weights.append([-row.advantage / divisors.get(loss, n_own * len(rows))] * n_own)
    return weighted_gradient(model, rows, weights)


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo", "gspo", "cispo"])
def test_the_first_step_is_the_exact_policy_gradient(loss: str, policy: Path, base: Path) -> None:
    rows = random_rows()
    expected = policy_gradient(load_trainable(policy, base), rows, loss)
    update = prepare(
        load_trainable(policy, base), rows, training_params(loss=loss, max_tokens_per_microbatch=30, **FREE)
    )
    train_steps, _ = update.run()
    assert len(update.steps[0].micro_batches) > 1
    assert distance(update.gradients, expected) < 1e-4
    norm = math.sqrt(math.fsum(value.double().square().sum().item() for value in expected.values()))
    assert train_steps["grad_norm"].item() == pytest.approx(norm, rel=1e-4)


def test_the_kl_has_its_own_gradient(base: Path, adapter: Path) -> None:
    """On-policy, that of k3 is (1 - p_reference / p) grad log p at each token."""
    rows = [replace(row, advantage=0.0) for row in random_rows()]
    model = load_trainable(adapter, base)
    params = training_params(kl_coefficient=0.7, loss="dapo", max_grad_norm=1e9)
    steps = plan(model, rows, params)
    reference, current = record(model, rows, steps, model.disable_adapter()), record(model, rows, steps)
    n_tokens = sum(map(len, current.values()))
    weights = [
        [0.7 * (1 - math.exp(ref - now)) / n_tokens for ref, now in zip(reference[i], current[i], strict=True)]
        for i in range(len(rows))
    ]
    update = prepare(load_trainable(adapter, base), rows, params, reference=reference)
    update.run()
    assert distance(update.gradients, weighted_gradient(model, rows, weights)) < 1e-4


# --- what must change nothing


def run_whole(policy: Path, base: Path, rows: list[TrainingRow], **changes: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """The first step's metrics and gradients, with a KL and a correction of the sampling engine's probabilities."""
    reference_model = load_model(base, base, CPU, torch.float32)
    params = training_params(max_grad_norm=1e9, **changes)
    reference = record(reference_model, rows, plan(reference_model, rows, params))
    update = prepare(load_trainable(policy, base), rows, params, reference=reference)
    train_steps, _ = update.run()
    return train_steps.row(0, named=True), update.gradients


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo", "gspo", "cispo"])
def test_cutting_into_micro_batches_changes_nothing(loss: str, policy: Path, base: Path) -> None:
    rows = random_rows()
    whole, whole_gradients = run_whole(policy, base, rows, loss=loss, max_tokens_per_microbatch=10_000)
    for limit in (1, 30):
        parts, gradients = run_whole(policy, base, rows, loss=loss, max_tokens_per_microbatch=limit)
        assert parts == pytest.approx(whole, rel=1e-4, abs=1e-5)
        assert distance(gradients, whole_gradients) < 1e-4


@pytest.mark.usefixtures("layout")
def test_the_order_of_rows_changes_nothing(policy: Path, base: Path) -> None:
    rows = random_rows()
    there, gradients = run_whole(policy, base, rows)
    turned, turned_gradients = run_whole(policy, base, rows[::-1])
    assert turned == pytest.approx(there, rel=1e-4, abs=1e-5)
    assert distance(turned_gradients, gradients) < 1e-4


def test_the_layout_changes_nothing(policy: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows()
    packed, packed_gradients = run_whole(policy, base, rows)
    monkeypatch.setattr("pipeline.training.forward.supports_grouped_attention", lambda _: False)
    padded, padded_gradients = run_whole(policy, base, rows)
    assert padded == pytest.approx(packed, rel=1e-4, abs=1e-5)
    assert distance(padded_gradients, packed_gradients) < 1e-4
