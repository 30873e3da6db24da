"""The loss: the handed cases and numbers worked by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.training.loss import MAX_LOG_RATIO, TokenLogprobs, aggregate, clipped_objective, grpo_loss, kl_estimate
from tests.slow_loss import AGGREGATIONS, double, mask_of, params_of, size_of

CASES = {case["name"]: case for case in json.loads((Path(__file__).parents[1] / "golden" / "loss.json").read_text())}


# --- the handed cases


@pytest.mark.parametrize("loss", AGGREGATIONS)
def test_case_aggregation(loss: str) -> None:
    case = CASES["aggregation"]
    mask = mask_of(case["token_losses"])
    size = size_of(mask, case["max_completion_tokens"])
    found = aggregate(double(case["token_losses"]), mask, loss, size)
    assert found.item() == pytest.approx(case["expect"][loss], abs=1e-6)


@pytest.mark.parametrize("loss", AGGREGATIONS)
def test_case_on_policy_value(loss: str) -> None:
    case = CASES["on_policy_value"]
    mask = mask_of(case["ratios"])
    logprobs = torch.zeros_like(mask, dtype=torch.float64)
    found = grpo_loss(
        TokenLogprobs(logprobs, logprobs, logprobs, None),
        torch.tensor(case["advantages"], dtype=torch.float64),
        mask,
        size_of(mask, case["max_completion_tokens"]),
        params_of(loss, kl_coefficient=0.0),
    )
    assert found.loss.item() == pytest.approx(case["expect"][loss], abs=1e-12)


def test_case_micro_batches() -> None:
    case = CASES["micro_batches"]
    size = size_of(mask_of(case["token_losses"]))
    parts = [aggregate(double([row]), mask_of([row]), "dapo", size).item() for row in case["token_losses"]]
    assert sum(parts) == pytest.approx(case["expect"]["dapo"])  # (2 * 1 + 8 * 4) / 10, not (1 + 4) / 2


def test_case_masked_tokens() -> None:
    case = CASES["masked_tokens"]
    mask = torch.tensor(case["mask"])
    found = aggregate(double(case["token_losses"]), mask, "dapo", size_of(mask))
    assert found.item() == pytest.approx(case["expect"]["dapo"])


def test_case_clip() -> None:
    case = CASES["clip"]
    ratio, advantages = double(case["ratios"]), torch.tensor(case["advantages"], dtype=torch.float64)
    objective = clipped_objective(ratio, advantages.unsqueeze(1), 0.2, 0.2)
    assert objective.flatten().tolist() == pytest.approx(case["objective"])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_case_k3(estimator: str) -> None:
    case = CASES["k3"]
    found = kl_estimate(double([case["logprobs"]]), double([case["ref_logprobs"]]), estimator)
    assert found[0].tolist() == pytest.approx(case[estimator], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_case_k3_far_apart(dtype: torch.dtype) -> None:
    case = CASES["k3_far_apart"]
    logprobs = torch.tensor(case["logprobs"], dtype=dtype, requires_grad=True)
    kl = kl_estimate(logprobs, torch.tensor(case["ref_logprobs"], dtype=dtype), "k3")
    (gradient,) = torch.autograd.grad(kl.sum(), logprobs)
    assert torch.isfinite(kl).all()
    assert torch.isfinite(gradient).all()
    assert (gradient < 0).all(), "a step down the gradient raises the log-probability"


# --- numbers by hand


def test_asymmetric_clipping_and_clip_fractions() -> None:
    ratio = double([[1.25, 1.35, 0.75, 0.95]])
    logprobs = TokenLogprobs(ratio.log(), torch.zeros_like(ratio), torch.zeros_like(ratio), None)
    params = params_of("dapo", kl_coefficient=0.0, clip_low=0.1, clip_high=0.3)
    mask = torch.ones_like(ratio, dtype=torch.bool)
    good = grpo_loss(logprobs, double([[2.0]])[:, 0], mask, size_of(mask), params)
    # 2 * (1.25 + 1.3 + 0.75 + 0.95) / 4: only 1.35 is above 1.3, and the minimum leaves what is below.
    assert good.loss.item() == pytest.approx(-2.125)
    assert (good.clip_low_sum.item(), good.clip_high_sum.item()) == (0, 1)
    bad = grpo_loss(logprobs, double([[-2.0]])[:, 0], mask, size_of(mask), params)
    # 2 * (1.25 + 1.35 + 0.9 + 0.95) / 4: 0.75 is below 0.9.
    assert bad.loss.item() == pytest.approx(2.225)
    assert (bad.clip_low_sum.item(), bad.clip_high_sum.item()) == (1, 0)
    assert bad.ratio_max.item() == pytest.approx(1.35)


def test_sampling_correction_and_its_cap() -> None:
    old, sampling = double([[-1.0, -1.0, -1.0]]), double([[-1.0 + math.log(2), -1.0 - math.log(1.5), -9.0]])
    mask = torch.ones_like(old, dtype=torch.bool)
    logprobs = TokenLogprobs(old, old, sampling, None)
    params = params_of("dapo", kl_coefficient=0.0, sampling_ratio_cap=2.0)
    found = grpo_loss(logprobs, torch.tensor([3.0], dtype=torch.float64), mask, size_of(mask), params)
    # Weights exp(old - sampling): 1/2, 1.5, and exp(8) capped at 2. -3 * (0.5 + 1.5 + 2) / 3 = -4.
    assert found.loss.item() == pytest.approx(-4.0)
    without = replace(logprobs, sampling=old)
    assert grpo_loss(without, torch.tensor([3.0], dtype=torch.float64), mask, size_of(mask), params).loss.item() == -3.0


def test_sampling_correction_leaves_the_kl_alone() -> None:
    old = double([[-1.0]])
    logprobs = TokenLogprobs(old, old, old - 5, old - 1)
    mask = torch.ones_like(old, dtype=torch.bool)
    params = params_of("dapo", kl_coefficient=0.5, sampling_ratio_cap=2.0)
    found = grpo_loss(logprobs, torch.tensor([1.0], dtype=torch.float64), mask, size_of(mask), params)
    # Policy term -2 * 1; k3 of a log-ratio of -1 is exp(-1) + 1 - 1 = 0.367879, half of it 0.18394.
    assert found.policy_loss.item() == pytest.approx(-2.0)
    assert found.loss.item() == pytest.approx(-2.0 + 0.18394, abs=1e-5)


def test_off_policy_kl_is_weighted_with_the_ratio() -> None:
    current, old = double([[-1.0 + math.log(1.1)]]), double([[-1.0]])
    logprobs = TokenLogprobs(current, old, old, current - 1)
    mask = torch.ones_like(old, dtype=torch.bool)
    zero = torch.zeros(1, dtype=torch.float64)
    found = grpo_loss(logprobs, zero, mask, size_of(mask), params_of("dapo", kl_coefficient=1.0))
    assert found.loss.item() == pytest.approx(1.1 * math.exp(-1))
    assert found.kl_sum.item() == pytest.approx(math.exp(-1)), "the metric is not weighted"


def test_kl_is_put_together_as_the_tokens_of_its_loss() -> None:
    # Completions of 1 and 3 tokens, k2 of 0.5 at each token of the first and 2 at each of the second.
    current, reference = double([[-1.0], [-1.0] * 3]), double([[-2.0], [-3.0] * 3])
    mask = mask_of([[1], [1] * 3])
    zero = torch.zeros(2, dtype=torch.float64)
    expected = {"grpo": (0.5 + 2) / 2, "dapo": (0.5 + 6) / 4, "dr_grpo": (0.5 + 6) / (2 * 10)}
    for loss, value in expected.items():
        params = params_of(loss, kl_coefficient=1.0, kl_estimator="k2")
        found = grpo_loss(TokenLogprobs(current, current, current, reference), zero, mask, size_of(mask), params)
        assert found.loss.item() == pytest.approx(value)


def test_sampling_kl_is_that_of_the_engine_to_the_trainer() -> None:
    old, sampling = double([[-1.0, -2.0]]), double([[-2.0, -2.0]])
    mask = torch.ones_like(old, dtype=torch.bool)
    logprobs = TokenLogprobs(old - 7, old, sampling, None)
    found = grpo_loss(logprobs, torch.ones(1, dtype=torch.float64), mask, size_of(mask), params_of())
    assert found.sampling_kl_sum.item() == pytest.approx(math.e - 2)  # exp(1) - 1 - 1, and 0


def test_k3_goes_on_linearly_with_its_slope() -> None:
    beyond = torch.tensor([MAX_LOG_RATIO, MAX_LOG_RATIO + 1, MAX_LOG_RATIO + 80], dtype=torch.float64)
    values = kl_estimate(torch.zeros_like(beyond), beyond, "k3").tolist()
    slope = math.exp(MAX_LOG_RATIO) - 1
    assert values[0] == pytest.approx(math.exp(MAX_LOG_RATIO) - MAX_LOG_RATIO - 1)
    assert values[1] - values[0] == pytest.approx(slope)
    assert values[2] - values[0] == pytest.approx(80 * slope)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_is_zero_where_the_policies_agree_and_never_negative(estimator: str) -> None:
    logprobs = -torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 10
    assert (kl_estimate(logprobs, logprobs, estimator) == 0).all()
    assert (kl_estimate(logprobs, logprobs.flip(0), estimator) >= 0).all()
