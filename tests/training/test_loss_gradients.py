"""The loss against a slow loop in plain Python, its gradients, and what must change neither."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.params import TrainingParams
from pipeline.training.loss import Loss, StepSize, TokenLogprobs, aggregate, grpo_loss
from pipeline.training.objective import clipped_objective
from tests.slow_loss import (
    LOSSES,
    MicroBatch,
    binding,
    double,
    draw_micro_batch,
    params_of,
    size_of,
    slow_loss,
    slow_sums,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"kl_coefficient": 0.0},
    "k2": {"kl_coefficient": 0.3, "kl_estimator": "k2"},
    "k3": {"kl_coefficient": 0.3},
    "KL in the reward": {"kl_coefficient": 0.3, "kl_in": "reward"},
    "sampling correction": {"kl_coefficient": 0.0, "sampling_ratio_cap": 1.3},
    "dual clip": {"kl_coefficient": 0.0, "dual_clip": 1.1},
    "entropy bonus": {"kl_coefficient": 0.0, "entropy_coefficient": 0.2},
    "all": {"kl_coefficient": 0.3, "sampling_ratio_cap": 1.3, "dual_clip": 1.1, "entropy_coefficient": 0.2},
}


def choice(loss: str, option: str) -> TrainingParams:
    changes = OPTIONS[option]
    return binding(loss, **(changes | {"dual_clip": None} if loss == "cispo" else changes))


CHOICES = {f"{loss}-{option}": choice(loss, option) for loss in LOSSES for option in OPTIONS}
each_choice = pytest.mark.parametrize("params", CHOICES.values(), ids=CHOICES)
each_loss = pytest.mark.parametrize("loss", LOSSES)

METRICS = ("kl_sum", "clip_low_sum", "clip_high_sum", "sampling_kl_sum", "ratio_max")
seeds = st.integers(0, 10_000)


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
        policy_loss = slow_loss(batch, params.model_copy(update={"kl_coefficient": 0.0, "entropy_coefficient": 0.0}))
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


# --- gradcheck


@each_loss
def test_gradcheck_aggregate(loss: str) -> None:
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    values = torch.linspace(-2, 3, 9, dtype=torch.float64).view(3, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: aggregate(values, mask, loss, size_of(mask)), [values])


@pytest.mark.parametrize("dual_clip", [None, 2.0])
def test_gradcheck_clipped_objective(dual_clip: float | None) -> None:
    ratio = double([[0.3, 0.75, 0.85, 1.0, 1.15, 1.25, 3.0]]).requires_grad_()
    advantages = double([[2.0], [-2.0]])
    assert torch.autograd.gradcheck(lambda values: clipped_objective(values, advantages, 0.2, 0.2, dual_clip), [ratio])


def gradcheck(batch: MicroBatch, params: TrainingParams, change: Callable[[TokenLogprobs], TokenLogprobs]) -> bool:
    """Of the loss with respect to current log-probabilities and entropies, after `change` to the others."""

    def value(current: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        return batch.loss(params, change(replace(batch.logprobs, current=current, entropy=entropy))).loss

    inputs = [double(batch.current).requires_grad_(), double(batch.entropy).requires_grad_()]
    return torch.autograd.gradcheck(value, inputs)


@pytest.mark.parametrize("name", [name for name, params in CHOICES.items() if params.loss != "cispo"])
def test_gradcheck_without_weights_that_carry_no_gradient(name: str) -> None:
    """All but `cispo`, and without a KL in the loss."""
    for seed in range(3):
        assert gradcheck(draw_micro_batch(seed), CHOICES[name], lambda logprobs: replace(logprobs, reference=None))


@each_choice
def test_gradcheck_with_ratios_that_stand_still(params: TrainingParams) -> None:
    """`old` and `sampling` move with `current`, and so no weight that carries no gradient moves."""
    for seed in range(3):
        batch = draw_micro_batch(seed)
        apart = batch.logprobs

        def follow(logprobs: TokenLogprobs, apart: TokenLogprobs = apart) -> TokenLogprobs:
            moved = logprobs.current - apart.current
            return replace(logprobs, old=apart.old + moved, sampling=apart.sampling + moved)

        assert gradcheck(batch, params, follow)


# --- gradients by hand


def test_gradient_is_zero_where_the_clip_binds_and_not_elsewhere() -> None:
    current = double([[1.5], [0.5], [1.5], [0.5]]).log().requires_grad_()
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    old = torch.zeros(4, 1, dtype=torch.float64)
    mask = torch.ones(4, 1, dtype=torch.bool)
    found = grpo_loss(TokenLogprobs(current, old, old, None), advantages, mask, StepSize(1, 1, 1), params_of("dapo"))
    # Where the clip does not bind: minus the ratio times the advantage.
    assert gradient(found.loss, current).flatten().tolist() == pytest.approx([0.0, -0.5, 1.5, 0.0])


@each_loss
def test_on_policy_gradient_is_minus_the_advantage(loss: str) -> None:
    current = double([[-1.0, -2.0], [-3.0, 0.0]]).requires_grad_()
    mask = torch.tensor([[True, True], [True, False]])
    old = current.detach().clone()
    advantages = torch.tensor([2.0, -1.0], dtype=torch.float64)
    found = grpo_loss(TokenLogprobs(current, old, old, None), advantages, mask, size_of(mask), params_of(loss))
    # -A, divided by the tokens of the completion and 2 completions, by all 3 tokens, or by 2 times 10 tokens.
    per_completion, per_token = [[-0.5, -0.5], [0.5, 0.0]], [[-2 / 3, -2 / 3], [1 / 3, 0.0]]
    expected = {"grpo": per_completion, "gspo": per_completion, "dapo": per_token, "cispo": per_token}
    expected["dr_grpo"] = [[-0.1, -0.1], [0.05, 0.0]]
    assert torch.allclose(gradient(found.loss, current), double(expected[loss]))


@given(seeds, st.sampled_from(LOSSES))
def test_a_first_on_policy_step_is_the_exact_policy_gradient(seed: int, loss: str) -> None:
    """Whatever the clips: -A at each unmasked token, divided as the loss divides."""
    batch = draw_micro_batch(seed)
    batch = replace(batch, old=batch.current)
    params = params_of(loss, kl_coefficient=0.0, **({"dual_clip": 1.5} if loss != "cispo" else {}))
    _, found = loss_and_gradient(batch, params)
    mask = torch.tensor(batch.mask)
    lengths, size = mask.sum(dim=1, keepdim=True), batch.size
    per_completion, per_token = lengths * size.n_completions, torch.tensor(size.n_tokens)
    divisors = {"grpo": per_completion, "gspo": per_completion, "dapo": per_token, "cispo": per_token}
    divisors["dr_grpo"] = torch.tensor(size.n_completions * size.max_completion_tokens)
    advantages = torch.tensor(batch.advantages, dtype=torch.float64).unsqueeze(1)
    assert torch.allclose(found, torch.where(mask, -advantages / divisors[loss], 0.0), rtol=1e-9)


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


@given(seeds, st.sampled_from([*CHOICES]))
def test_micro_batches_add_up(seed: int, name: str) -> None:
    params, batch = CHOICES[name], draw_micro_batch(seed)
    whole, parts = batch.loss(params), [row.loss(params, size=batch.size) for row in batch.rows]
    for field in ("loss", "policy_loss", "kl_sum", "clip_low_sum", "clip_high_sum", "sampling_kl_sum"):
        total = sum(getattr(part, field).item() for part in parts)
        assert total == pytest.approx(getattr(whole, field).item(), abs=1e-12)
    assert max(part.ratio_max for part in parts) == whole.ratio_max


@given(seeds, st.sampled_from([*CHOICES]), st.integers(0, 3), st.randoms(use_true_random=False))
def test_order_and_padding_change_nothing(seed: int, name: str, n_padding: int, random: Random) -> None:
    params, batch = CHOICES[name], draw_micro_batch(seed)
    order = random.sample(range(len(batch.mask)), len(batch.mask))
    found, its_gradient = loss_and_gradient(batch, params)
    other, other_gradient = loss_and_gradient(batch.arranged(order, n_padding), params)
    for field, value in vars(found).items():
        assert getattr(other, field).item() == pytest.approx(value.item(), abs=1e-12)
    n_tokens = its_gradient.shape[1]
    assert torch.allclose(other_gradient[:, :n_tokens], its_gradient[order])
    assert (other_gradient[:, n_tokens:] == 0).all()


@pytest.mark.parametrize("garbage", [math.inf, -math.inf, math.nan, 1e38])
@each_loss
def test_what_stands_at_masked_places_changes_nothing(loss: str, garbage: float) -> None:
    params, batch = CHOICES[f"{loss}-all"], draw_micro_batch(3)
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
    for loss, value in {"grpo": 1.5, "gspo": 1.5, "dapo": 1.5, "cispo": 1.5, "dr_grpo": 0.75}.items():
        found = aggregate(double([[1.0, 2.0], [math.nan, 50.0]]), mask, loss, size_of(mask, 4))
        assert found.item() == pytest.approx(value)  # (1 + 2) / 2, and / 4: N is 1


def test_the_largest_ratio_is_that_of_an_unmasked_token() -> None:
    current, old = double([[-1.0, 0.0]]), double([[-0.5, 0.0]])
    mask = torch.tensor([[True, False]])
    found = grpo_loss(TokenLogprobs(current, old, old, None), torch.ones(1), mask, size_of(mask), params_of())
    assert found.ratio_max.item() == pytest.approx(math.exp(-0.5))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@each_loss
def test_log_ratios_beyond_what_exp_can_hold_stay_finite(loss: str, advantage: float) -> None:
    current = torch.tensor([[0.0, -200.0]], requires_grad=True)
    old, sampling = torch.tensor([[-200.0, 0.0]]), torch.tensor([[-300.0, 0.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    params = params_of(loss, sampling_ratio_cap=2.0, kl_coefficient=0.1)
    logprobs = TokenLogprobs(current, old, sampling, old)
    found = grpo_loss(logprobs, torch.tensor([advantage]), mask, size_of(mask), params)
    assert torch.isfinite(gradient(found.loss, current)).all()
    assert all(torch.isfinite(value) for value in vars(found).values())
