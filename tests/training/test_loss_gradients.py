"""The loss against a slow loop in plain Python, its gradients, and what must change neither."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from pipeline.params import TrainingParams
from pipeline.training.loss import Loss, StepSize, TokenLogprobs, aggregate, clipped_objective, grpo_loss, kl_estimate
from tests.slow_loss import (
    AGGREGATIONS,
    MicroBatch,
    double,
    draw_micro_batch,
    params_of,
    size_of,
    slow_loss,
    slow_sums,
)

CHOICES = [
    params_of(loss, kl_estimator=estimator, sampling_ratio_cap=cap, kl_coefficient=0.3, clip_low=0.2, clip_high=0.28)
    for loss, estimator, cap in itertools.product(AGGREGATIONS, ("k2", "k3"), (None, 1.3))
]
each_choice = pytest.mark.parametrize(
    "params", CHOICES, ids=lambda p: f"{p.loss}-{p.kl_estimator}-{p.sampling_ratio_cap}"
)
each_aggregation = pytest.mark.parametrize("loss", AGGREGATIONS)

METRICS = ("kl_sum", "clip_low_sum", "clip_high_sum", "sampling_kl_sum", "ratio_max")


def gradient(value: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, at)[0]


def loss_and_gradient(
    batch: MicroBatch, params: TrainingParams, logprobs: TokenLogprobs | None = None
) -> tuple[Loss, torch.Tensor]:
    logprobs = logprobs or batch.logprobs
    found = batch.loss(params, replace(logprobs, current=logprobs.current.requires_grad_()))
    return found, gradient(found.loss, logprobs.current)


# --- the slow loop


@each_choice
def test_a_slow_loop_agrees(params: TrainingParams) -> None:
    for seed in range(20):
        batch = draw_micro_batch(seed, far=0.2)
        found = batch.loss(params)
        assert found.loss.item() == pytest.approx(slow_loss(batch, params), rel=1e-9, abs=1e-12)
        policy_loss = slow_loss(batch, params.model_copy(update={"kl_coefficient": 0.0}))
        assert found.policy_loss.item() == pytest.approx(policy_loss, rel=1e-9, abs=1e-12)
        sums = slow_sums(batch, params)
        assert [getattr(found, name).item() for name in METRICS] == pytest.approx([sums[name] for name in METRICS])


@each_choice
def test_gradient_is_that_of_the_slow_loop(params: TrainingParams) -> None:
    half = 1e-6
    for seed in range(6):
        batch = draw_micro_batch(seed)
        _, found = loss_and_gradient(batch, params)
        for i, row in enumerate(batch.current):
            for j in range(len(row)):
                ends = []
                for change in (-half, half):
                    moved = [list(values) for values in batch.current]
                    moved[i][j] += change
                    ends.append(slow_loss(replace(batch, current=moved), params, frozen=batch))
                assert found[i, j].item() == pytest.approx((ends[1] - ends[0]) / (2 * half), rel=1e-5, abs=1e-7)


@each_choice
def test_float32_has_the_gradient_of_float64(params: TrainingParams) -> None:
    """What cancels in exact arithmetic may swallow the rest in float32."""
    for seed in range(10):
        batch = draw_micro_batch(seed, far=0.1)
        _, exact = loss_and_gradient(batch, params)
        single = TokenLogprobs(*(value.float() for value in vars(batch.logprobs).values()))
        _, found = loss_and_gradient(batch, params, single)
        assert torch.allclose(found.double(), exact, rtol=1e-3, atol=1e-5)


@each_aggregation
def test_micro_batches_add_up(loss: str) -> None:
    params = params_of(loss, sampling_ratio_cap=1.3, kl_coefficient=0.3)
    for seed in range(10):
        batch = draw_micro_batch(seed)
        whole, parts = batch.loss(params), [row.loss(params, size=batch.size) for row in batch.rows]
        for name in ("loss", "policy_loss", "kl_sum", "clip_low_sum", "clip_high_sum", "sampling_kl_sum"):
            assert sum(getattr(part, name).item() for part in parts) == pytest.approx(getattr(whole, name).item())


# --- gradcheck


@each_aggregation
def test_gradcheck_aggregate(loss: str) -> None:
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    values = torch.linspace(-2, 3, 9, dtype=torch.float64).view(3, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: aggregate(values, mask, loss, size_of(mask)), [values])


def test_gradcheck_clipped_objective() -> None:
    ratio = double([[0.3, 0.75, 0.85, 1.0, 1.15, 1.25, 3.0]]).requires_grad_()
    advantages = double([[2.0], [-2.0]])
    assert torch.autograd.gradcheck(lambda values: clipped_objective(values, advantages, 0.2, 0.2), [ratio])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("distance", [-40.0, -1.0, 0.0, 0.5, 19.0, 21.0, 50.0])
def test_gradcheck_kl(estimator: str, distance: float) -> None:
    logprobs = double([[-60.0]]).requires_grad_()
    reference = double([[-60.0 + distance]])
    assert torch.autograd.gradcheck(lambda values: kl_estimate(values, reference, estimator), [logprobs])


@each_aggregation
def test_gradcheck_the_whole_loss(loss: str) -> None:
    """Without a KL, whose weight is detached: that part has the slow loop's gradient, as shown above."""
    params = params_of(loss, sampling_ratio_cap=1.3)
    for seed in range(3):
        batch = draw_micro_batch(seed)
        logprobs = replace(batch.logprobs, reference=None)

        def value(current: torch.Tensor, batch: MicroBatch = batch, logprobs: TokenLogprobs = logprobs) -> torch.Tensor:
            return batch.loss(params, replace(logprobs, current=current)).loss

        assert torch.autograd.gradcheck(value, [logprobs.current.requires_grad_()])


# --- gradients by hand


def test_gradient_is_zero_where_the_clip_binds_and_not_elsewhere() -> None:
    current = double([[1.5], [0.5], [1.5], [0.5]]).log().requires_grad_()
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    old = torch.zeros(4, 1, dtype=torch.float64)
    mask = torch.ones(4, 1, dtype=torch.bool)
    found = grpo_loss(TokenLogprobs(current, old, old, None), advantages, mask, StepSize(1, 1, 1), params_of("dapo"))
    # Where the clip does not bind: minus the ratio times the advantage.
    assert gradient(found.loss, current).flatten().tolist() == pytest.approx([0.0, -0.5, 1.5, 0.0])


def test_on_policy_gradient_is_minus_the_advantage() -> None:
    current = double([[-1.0, -2.0], [-3.0, 0.0]]).requires_grad_()
    mask = torch.tensor([[True, True], [True, False]])
    old = current.detach().clone()
    advantages = torch.tensor([2.0, -1.0], dtype=torch.float64)
    found = grpo_loss(TokenLogprobs(current, old, old, None), advantages, mask, size_of(mask), params_of("grpo"))
    # -A / tokens of the completion / 2 completions
    assert gradient(found.loss, current).tolist() == [[-0.5, -0.5], [0.5, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("distance", [0.01, 1.0, 15.0, 25.0, 300.0])
def test_the_kl_pulls_toward_the_reference_from_both_sides(distance: float, estimator: str, dtype: torch.dtype) -> None:
    current = torch.tensor([[-distance], [0.0]], dtype=dtype, requires_grad=True)
    reference = torch.tensor([[0.0], [-distance]], dtype=dtype)
    mask = torch.ones(2, 1, dtype=torch.bool)
    old = current.detach().clone()
    params = params_of("dapo", kl_coefficient=1.0, kl_estimator=estimator)
    logprobs = TokenLogprobs(current, old, old, reference)
    found = gradient(grpo_loss(logprobs, torch.zeros(2), mask, size_of(mask), params).loss, current)
    assert torch.isfinite(found).all()
    assert found[0].item() < 0 < found[1].item()


# --- what must change nothing


@pytest.mark.parametrize("garbage", [math.inf, -math.inf, math.nan, 1e38])
@each_aggregation
def test_what_stands_at_masked_places_changes_nothing(loss: str, garbage: float) -> None:
    params = params_of(loss, sampling_ratio_cap=1.3, kl_coefficient=0.3)
    batch = draw_micro_batch(3)
    mask = torch.tensor(batch.mask)
    assert not mask.all()
    results = []
    for filler in (0.0, garbage):
        filled = TokenLogprobs(*(torch.where(mask, value, filler) for value in vars(batch.logprobs).values()))
        found, its_gradient = loss_and_gradient(batch, params, filled)
        results.append([its_gradient, *(value.detach() for value in vars(found).values())])
    for clean, dirty in zip(*results, strict=True):
        assert torch.isfinite(dirty).all()
        assert torch.equal(clean, dirty)


def test_a_completion_that_is_masked_whole_adds_nothing() -> None:
    mask = torch.tensor([[True, True], [False, False]])
    for loss, value in {"grpo": 1.5, "dapo": 1.5, "dr_grpo": 0.75}.items():
        found = aggregate(double([[1.0, 2.0], [math.nan, 50.0]]), mask, loss, size_of(mask, 4))
        assert found.item() == pytest.approx(value)  # (1 + 2) / 2, and / 4: N is 1


def test_the_largest_ratio_is_that_of_an_unmasked_token() -> None:
    current, old = double([[-1.0, 0.0]]), double([[-0.5, 0.0]])
    mask = torch.tensor([[True, False]])
    found = grpo_loss(TokenLogprobs(current, old, old, None), torch.ones(1), mask, size_of(mask), params_of())
    assert found.ratio_max.item() == pytest.approx(math.exp(-0.5))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_log_ratios_beyond_what_exp_can_hold_stay_finite(advantage: float) -> None:
    current = torch.tensor([[0.0, -200.0]], requires_grad=True)
    old, sampling = torch.tensor([[-200.0, 0.0]]), torch.tensor([[-300.0, 0.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    params = params_of("dapo", sampling_ratio_cap=2.0, kl_coefficient=0.1)
    logprobs = TokenLogprobs(current, old, sampling, old)
    found = grpo_loss(logprobs, torch.tensor([advantage]), mask, size_of(mask), params)
    assert torch.isfinite(gradient(found.loss, current)).all()
    assert all(torch.isfinite(value) for value in vars(found).values())
