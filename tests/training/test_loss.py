"""The loss: the handed cases and numbers worked by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.params import TrainingParams
from pipeline.training.loss import Loss, TokenLogprobs, aggregate, grpo_loss
from tests.slow_loss import LOSSES, Rows, double, mask_of, params_of, size_of

CASES = {case["name"]: case for case in json.loads((Path(__file__).parents[1] / "golden" / "loss.json").read_text())}


# --- the handed cases


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo"])
def test_case_aggregation(loss: str) -> None:
    case = CASES["aggregation"]
    mask = mask_of(case["token_losses"])
    size = size_of(mask, case["max_completion_tokens"])
    found = aggregate(double(case["token_losses"]), mask, loss, size)
    assert found.item() == pytest.approx(case["expect"][loss], abs=1e-6)


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo"])
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


def loss_of(
    ratios: Rows, advantages: list[float], params: TrainingParams, current: Rows | None = None
) -> tuple[Loss, list[list[float]]]:
    """The loss of completions whose tokens have these `ratios`, and its gradient with respect to `current`."""
    mask = mask_of(ratios)
    now = (double(current) if current else torch.zeros_like(mask, dtype=torch.float64)).requires_grad_()
    old = now.detach() - torch.where(mask, double(ratios), 1.0).log()
    rows = torch.tensor(advantages, dtype=torch.float64)
    found = grpo_loss(TokenLogprobs(now, old, old, None), rows, mask, size_of(mask), params)
    return found, torch.autograd.grad(found.loss, now)[0].tolist()


def test_gspo_has_one_ratio_per_completion() -> None:
    params = params_of("gspo", clip_low=0.05, clip_high=0.05)
    # Geometric means sqrt(1.21 * 1) = 1.1 and 0.729^(1/3) = 0.9. Objectives min(1.1, 1.05) * 2 = 2.1 and
    # min(0.9 * -1, 0.95 * -1) = -0.95; their mean is 0.575. Both are clipped, with all their tokens.
    found, gradient = loss_of([[1.21, 1.0], [0.729, 1.0, 1.0]], [2.0, -1.0], params)
    assert found.loss.item() == pytest.approx(-0.575)
    assert (found.clip_low_sum.item(), found.clip_high_sum.item()) == (3, 2)
    assert found.ratio_max.item() == pytest.approx(1.1)
    assert gradient == [[0.0] * 3] * 2
    # The other way round neither clip binds: (1.1 * -2 + 0.9 * 1) / 2 = -0.65. Each token carries its completion's
    # ratio: minus 1.1 * -2 / 2 tokens / 2 completions = 0.55, and minus 0.9 * 1 / 3 / 2 = -0.15.
    found, gradient = loss_of([[1.21, 1.0], [0.729, 1.0, 1.0]], [-2.0, 1.0], params)
    assert found.loss.item() == pytest.approx(0.65)
    assert (found.clip_low_sum.item(), found.clip_high_sum.item()) == (0, 0)
    assert gradient == [pytest.approx([0.55, 0.55, 0.0]), pytest.approx([-0.15] * 3)]


def test_gspo_clips_at_its_own_bounds() -> None:
    above, below = math.exp(0.001), math.exp(-0.001)
    found, _ = loss_of([[above, above], [below, below]], [1.0, -1.0], params_of("gspo"))
    # (1 + 4e-4 - (1 - 3e-4)) / 2
    assert found.loss.item() == pytest.approx(-3.5e-4)


def test_cispo_caps_the_weight_and_keeps_the_gradient() -> None:
    # Cap 1 + 4 = 5. 2 * (5 * -1 + 0.5 * -2 + 1 * -3) / 3 = -6; gradients minus 2 * 5 / 3, 2 * 0.5 / 3 and 2 * 1 / 3.
    found, gradient = loss_of([[6.0, 0.5, 1.0]], [2.0], params_of("cispo"), current=[[-1.0, -2.0, -3.0]])
    assert found.loss.item() == pytest.approx(6.0)
    assert gradient == [pytest.approx([-10 / 3, -1 / 3, -2 / 3])]
    assert (found.clip_low_sum.item(), found.clip_high_sum.item()) == (0, 1)
    assert found.ratio_max.item() == pytest.approx(6.0)
    # The cap holds for negative advantages as well, and tokens of two completions are put together over all: T is 3.
    found, gradient = loss_of([[6.0, 0.5], [1.0]], [-2.0, 4.0], params_of("cispo", clip_high=1.0), [[-1.0, -2.0], [-3]])
    # -(-2 * (2 * -1 + 0.5 * -2) + 4 * -3) / 3 = -(6 - 12) / 3
    assert found.loss.item() == pytest.approx(2.0)
    assert gradient == [pytest.approx([4 / 3, 1 / 3]), pytest.approx([-4 / 3, 0.0])]
    assert found.clip_high_sum.item() == 1


def test_dual_clip_bounds_what_a_bad_completion_costs() -> None:
    params = params_of("dapo", dual_clip=3.0)
    # 5: max(min(-10, -2.4), 3 * -2) = -6. 0.5: min(-1, -1.6) = -1.6. 1: -2. Minus their mean is 3.2.
    found, gradient = loss_of([[5.0, 0.5, 1.0]], [-2.0], params)
    assert found.loss.item() == pytest.approx(3.2)
    assert gradient == [pytest.approx([0.0, 0.0, 2 / 3])]
    assert (found.clip_low_sum.item(), found.clip_high_sum.item()) == (1, 1)
    # A good completion is not touched: 2 * (1.2 + 0.5 + 1) / 3 = 1.8.
    assert loss_of([[5.0, 0.5, 1.0]], [2.0], params)[0].loss.item() == pytest.approx(-1.8)


def test_sampling_correction_of_gspo_is_one_weight_per_completion() -> None:
    old = double([[-1.0, -1.0]])
    logprobs = TokenLogprobs(old, old, double([[-1.0 - math.log(4), -1.0]]), None)
    mask, advantages = torch.ones_like(old, dtype=torch.bool), torch.tensor([3.0], dtype=torch.float64)
    # Of the weights 4 and 1 the geometric mean is 2, and capped 1.5 for both tokens: 3 * 1.5. For `grpo` it is 1.5 for
    # one token and 1 for the other: 3 * 1.25.
    for loss, expected in {"gspo": 4.5, "grpo": 3.75}.items():
        params = params_of(loss, sampling_ratio_cap=1.5)
        found = grpo_loss(logprobs, advantages, mask, size_of(mask), params)
        assert found.loss.item() == pytest.approx(-expected)


def test_entropy_is_put_together_as_the_tokens_of_its_loss() -> None:
    entropy = double([[1.0, 2.0], [3.0]])
    mask = mask_of([[1] * 2, [1]])
    zero = torch.zeros_like(entropy)
    logprobs = TokenLogprobs(zero, zero, zero, None, entropy)
    # (1.5 + 3) / 2, 6 / 3 and 6 / (2 * 10), times 0.1
    expected = {"grpo": 0.225, "gspo": 0.225, "dapo": 0.2, "cispo": 0.2, "dr_grpo": 0.03}
    for loss, value in expected.items():
        params = params_of(loss, entropy_coefficient=0.1)
        found = grpo_loss(logprobs, zero[:, 0], mask, size_of(mask), params)
        assert found.loss.item() == pytest.approx(-value)
        assert found.policy_loss.item() == 0.0
    with pytest.raises(ValueError, match="needs the entropy"):
        grpo_loss(replace(logprobs, entropy=None), zero[:, 0], mask, size_of(mask), params)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_kl_in_the_reward_is_no_part_of_the_loss_and_is_still_measured(loss: str) -> None:
    old = double([[-1.0, -2.0]])
    logprobs = TokenLogprobs(old, old, old, double([[-2.0, -2.0]]))
    mask, advantages = torch.ones_like(old, dtype=torch.bool), torch.tensor([1.0], dtype=torch.float64)
    params = params_of(loss, kl_coefficient=0.5, kl_in="reward")
    found = grpo_loss(logprobs, advantages, mask, size_of(mask), params)
    assert found.loss.item() == found.policy_loss.item()
    assert found.kl_sum.item() == pytest.approx(math.exp(-1))  # k3 of a log-ratio of -1, and of 0
