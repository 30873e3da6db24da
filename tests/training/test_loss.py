"""The loss: the handed cases, numbers by hand, a slow second opinion in plain Python, and gradients."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.params import TrainingParams
from pipeline.training.loss import (
    MAX_LOG_RATIO,
    Loss,
    StepSize,
    TokenLogprobs,
    aggregate,
    clipped_objective,
    grpo_loss,
    kl_estimate,
)

CASES = {case["name"]: case for case in json.loads((Path(__file__).parents[1] / "golden" / "loss.json").read_text())}
AGGREGATIONS = ("grpo", "dapo", "dr_grpo")

Rows = list[list[float]]


def params_of(loss: str = "grpo", **changes: Any) -> TrainingParams:
    return TrainingParams(**{"learning_rate": 1.0, "loss": loss, "sampling_ratio_cap": None, **changes})


def double(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    """[B, C], padded on the right with 0."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)


def mask_of(rows: Sequence[Sequence[object]]) -> torch.Tensor:
    return double([[1.0] * len(row) for row in rows]).bool()


def size_of(mask: torch.Tensor, max_completion_tokens: int = 10) -> StepSize:
    return StepSize(int(mask.any(dim=1).sum()), int(mask.sum()), max_completion_tokens)


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
    kl.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert torch.isfinite(kl).all()
    assert torch.isfinite(logprobs.grad).all()
    assert (logprobs.grad < 0).all(), "a step down the gradient raises the log-probability"


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


# --- a slow second opinion


@dataclass(frozen=True)
class Sample:
    """A micro-batch as lists: a row per completion, unmasked tokens and others."""

    current: Rows
    old: Rows
    sampling: Rows
    reference: Rows
    advantages: list[float]
    mask: list[list[bool]]

    def run(self, params: TrainingParams, size: StepSize, has_reference: bool = True, **changes: torch.Tensor) -> Loss:
        names = ("current", "old", "sampling", "reference")
        tensors: dict[str, Any] = {name: double(getattr(self, name)) for name in names} | changes
        if not has_reference:
            tensors["reference"] = None
        advantages = torch.tensor(self.advantages, dtype=torch.float64)
        return grpo_loss(TokenLogprobs(**tensors), advantages, torch.tensor(self.mask), size, params)

    @property
    def size(self) -> StepSize:
        return StepSize(sum(map(any, self.mask)), sum(map(sum, self.mask)), 9)


def draw_sample(seed: int, spread: float = 0.4, far: float = 0.0) -> Sample:
    """Completions of random lengths with random holes in their masks; `far` is how often a reference is far off."""
    draw = random.Random(seed)
    n_rows, n_tokens = draw.randint(1, 4), draw.randint(1, 6)

    def around(rows: Rows | None = None, jump: float = 0.0) -> Rows:
        return [
            [
                (rows[i][j] if rows else -3.0) + draw.gauss(0, spread) + (draw.random() < jump) * draw.choice((-30, 30))
                for j in range(n_tokens)
            ]
            for i in range(n_rows)
        ]

    old = around()
    mask = [[draw.random() < 0.7 for _ in range(n_tokens)] for _ in range(n_rows)]
    mask[0][0] = True
    return Sample(around(old), old, around(old), around(old, far), [draw.gauss(0, 1) for _ in range(n_rows)], mask)


def slow_kl(logprob: float, reference: float, estimator: str) -> float:
    difference = reference - logprob
    if estimator == "k2":
        return 0.5 * difference * difference
    if difference <= 20.0:
        return math.exp(difference) - difference - 1
    return math.exp(20.0) - 20.0 - 1 + (math.exp(20.0) - 1) * (difference - 20.0)


def slow_loss(
    sample: Sample, params: TrainingParams, size: StepSize, has_reference: bool = True, frozen: Sample | None = None
) -> float:
    """The loss, token by token. `frozen` gives the ratios that weight the KL, which carry no gradient."""
    frozen = frozen or sample
    total = 0.0
    for i, advantage in enumerate(sample.advantages):
        tokens = []
        for j, is_unmasked in enumerate(sample.mask[i]):
            if not is_unmasked:
                continue
            ratio = math.exp(sample.current[i][j] - sample.old[i][j])
            inside = min(max(ratio, 1 - params.clip_low), 1 + params.clip_high)
            objective = min(ratio * advantage, inside * advantage)
            if params.sampling_ratio_cap is not None:
                objective *= min(math.exp(sample.old[i][j] - sample.sampling[i][j]), params.sampling_ratio_cap)
            loss = -objective
            if has_reference:
                kl = slow_kl(sample.current[i][j], sample.reference[i][j], params.kl_estimator)
                loss += params.kl_coefficient * math.exp(frozen.current[i][j] - frozen.old[i][j]) * kl
            tokens.append(loss)
        if params.loss == "grpo" and tokens:
            total += sum(tokens) / len(tokens) / size.n_completions
        elif params.loss == "dapo":
            total += sum(tokens) / size.n_tokens
        elif params.loss == "dr_grpo":
            total += sum(tokens) / size.n_completions / size.max_completion_tokens
    return total


def slow_sums(sample: Sample, params: TrainingParams) -> dict[str, float]:
    """The sums that the metrics average, over unmasked tokens."""
    sums = dict.fromkeys(("kl_sum", "clip_low_sum", "clip_high_sum", "sampling_kl_sum", "ratio_max"), 0.0)
    for i, advantage in enumerate(sample.advantages):
        for j, is_unmasked in enumerate(sample.mask[i]):
            if is_unmasked:
                ratio = math.exp(sample.current[i][j] - sample.old[i][j])
                sums["kl_sum"] += slow_kl(sample.current[i][j], sample.reference[i][j], params.kl_estimator)
                sums["sampling_kl_sum"] += slow_kl(sample.sampling[i][j], sample.old[i][j], "k3")
                sums["clip_low_sum"] += advantage < 0 and ratio < 1 - params.clip_low
                sums["clip_high_sum"] += advantage > 0 and ratio > 1 + params.clip_high
                sums["ratio_max"] = max(sums["ratio_max"], ratio)
    return sums


CHOICES = [
    params_of(loss, kl_estimator=estimator, sampling_ratio_cap=cap, kl_coefficient=0.3, clip_low=0.2, clip_high=0.28)
    for loss, estimator, cap in itertools.product(AGGREGATIONS, ("k2", "k3"), (None, 1.3))
]


@pytest.mark.parametrize("params", CHOICES, ids=lambda p: f"{p.loss}-{p.kl_estimator}-{p.sampling_ratio_cap}")
def test_a_slow_loop_agrees(params: TrainingParams) -> None:
    for seed in range(20):
        sample = draw_sample(seed, far=0.2)
        found = sample.run(params, sample.size)
        assert found.loss.item() == pytest.approx(slow_loss(sample, params, sample.size), rel=1e-9, abs=1e-12)
        without_kl = params.model_copy(update={"kl_coefficient": 0.0})
        policy_loss = slow_loss(sample, without_kl, sample.size)
        assert found.policy_loss.item() == pytest.approx(policy_loss, rel=1e-9, abs=1e-12)
        for name, value in slow_sums(sample, params).items():
            assert getattr(found, name).item() == pytest.approx(value, rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize("params", CHOICES, ids=lambda p: f"{p.loss}-{p.kl_estimator}-{p.sampling_ratio_cap}")
def test_gradient_is_that_of_the_slow_loop(params: TrainingParams) -> None:
    step = 1e-6
    for seed in range(6):
        sample = draw_sample(seed)
        current = double(sample.current).requires_grad_()
        sample.run(params, sample.size, current=current).loss.backward()  # type: ignore[no-untyped-call]
        assert current.grad is not None
        for i, row in enumerate(sample.current):
            for j in range(len(row)):
                ends = []
                for change in (-step, step):
                    moved = [list(values) for values in sample.current]
                    moved[i][j] += change
                    there = replace(sample, current=moved)
                    ends.append(slow_loss(there, params, sample.size, frozen=sample))
                slope = (ends[1] - ends[0]) / (2 * step)
                assert current.grad[i, j].item() == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("params", CHOICES, ids=lambda p: f"{p.loss}-{p.kl_estimator}-{p.sampling_ratio_cap}")
def test_float32_has_the_gradient_of_float64(params: TrainingParams) -> None:
    """What cancels in exact arithmetic may swallow the rest in float32."""
    for seed in range(10):
        sample = draw_sample(seed, far=0.1)
        current = double(sample.current).requires_grad_()
        (exact,) = torch.autograd.grad(sample.run(params, sample.size, current=current).loss, current)
        names = ("current", "old", "sampling", "reference")
        single = {name: double(getattr(sample, name)).float() for name in names}
        single["current"].requires_grad_()
        (found,) = torch.autograd.grad(sample.run(params, sample.size, **single).loss, single["current"])
        assert torch.allclose(found.double(), exact, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("loss", AGGREGATIONS)
def test_micro_batches_add_up(loss: str) -> None:
    params = params_of(loss, sampling_ratio_cap=1.3, kl_coefficient=0.3)
    for seed in range(10):
        sample = draw_sample(seed)
        parts = [
            Sample(*([getattr(sample, name)[i]] for name in Sample.__dataclass_fields__)).run(params, sample.size)
            for i in range(len(sample.mask))
        ]
        whole = sample.run(params, sample.size)
        for name in ("loss", "policy_loss", "kl_sum", "clip_low_sum", "clip_high_sum", "sampling_kl_sum"):
            assert sum(getattr(part, name).item() for part in parts) == pytest.approx(getattr(whole, name).item())


# --- gradients


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (values * scale).requires_grad_()


@pytest.mark.parametrize("loss", AGGREGATIONS)
def test_gradcheck_aggregate(loss: str) -> None:
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    assert torch.autograd.gradcheck(lambda values: aggregate(values, mask, loss, size_of(mask)), [numbers(3, 3)])


def test_gradcheck_clipped_objective() -> None:
    ratio = double([[0.3, 0.75, 0.85, 1.0, 1.15, 1.25, 3.0]]).requires_grad_()
    advantages = double([[2.0], [-2.0]])
    assert torch.autograd.gradcheck(lambda values: clipped_objective(values, advantages, 0.2, 0.2), [ratio])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_gradcheck_kl(estimator: str) -> None:
    reference = double([[-1.0, -30.0, -0.5, -25.0, -40.0]])
    logprobs = double([[-2.0, -1.0, -0.5, -27.0, -15.0]]).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: kl_estimate(values, reference, estimator), [logprobs])
    far = double([[-50.0]]).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: kl_estimate(values, torch.zeros_like(far), estimator), [far])


@pytest.mark.parametrize("loss", AGGREGATIONS)
def test_gradcheck_the_policy_term(loss: str) -> None:
    params = params_of(loss, sampling_ratio_cap=1.3, kl_coefficient=0.0)
    for seed in range(3):
        sample = draw_sample(seed)
        current = double(sample.current).requires_grad_()

        def value(current: torch.Tensor, sample: Sample = sample) -> torch.Tensor:
            return sample.run(params, sample.size, has_reference=False, current=current).loss

        assert torch.autograd.gradcheck(value, [current])


def test_gradient_is_zero_where_the_clip_binds_and_not_elsewhere() -> None:
    current = double([[1.5], [0.5], [1.5], [0.5]]).log().requires_grad_()
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    mask = torch.ones(4, 1, dtype=torch.bool)
    old = torch.zeros(4, 1, dtype=torch.float64)
    size = StepSize(1, 1, 1)
    grpo_loss(TokenLogprobs(current, old, old, None), advantages, mask, size, params_of("dapo")).loss.backward()
    assert current.grad is not None
    # minus ratio times advantage where the clip does not bind
    assert current.grad.flatten().tolist() == pytest.approx([0.0, -0.5, 1.5, 0.0])


def test_on_policy_gradient_is_minus_the_advantage() -> None:
    current = double([[-1.0, -2.0], [-3.0, 0.0]]).requires_grad_()
    mask = torch.tensor([[True, True], [True, False]])
    old = current.detach().clone()
    logprobs = TokenLogprobs(current, old, old, None)
    advantages = torch.tensor([2.0, -1.0], dtype=torch.float64)
    grpo_loss(logprobs, advantages, mask, size_of(mask), params_of("grpo")).loss.backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    assert current.grad.tolist() == [[-0.5, -0.5], [0.5, 0.0]]  # -A / tokens of the completion / 2 completions


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_kl_pulls_toward_the_reference_from_both_sides(estimator: str) -> None:
    for distance in (0.01, 1.0, 15.0, 25.0, 300.0):
        current = double([[-distance], [0.0]]).requires_grad_()
        reference = double([[0.0], [-distance]])
        mask = torch.ones(2, 1, dtype=torch.bool)
        old = current.detach().clone()
        params = params_of("dapo", kl_coefficient=1.0, kl_estimator=estimator)
        zero = torch.zeros(2, dtype=torch.float64)
        found = grpo_loss(TokenLogprobs(current, old, old, reference), zero, mask, size_of(mask), params)
        found.loss.backward()  # type: ignore[no-untyped-call]
        assert current.grad is not None
        assert torch.isfinite(current.grad).all()
        assert current.grad[0].item() < 0 < current.grad[1].item(), distance


@pytest.mark.parametrize("garbage", [math.inf, -math.inf, math.nan, 1e38])
@pytest.mark.parametrize("loss", AGGREGATIONS)
def test_what_stands_at_masked_places_changes_nothing(loss: str, garbage: float) -> None:
    params = params_of(loss, sampling_ratio_cap=1.3, kl_coefficient=0.3)
    sample = draw_sample(3)
    mask = torch.tensor(sample.mask)
    results = []
    for filler in (0.0, garbage):
        names = ("current", "old", "sampling", "reference")
        filled = {name: torch.where(mask, double(getattr(sample, name)), filler) for name in names}
        filled["current"].requires_grad_()
        found = sample.run(params, sample.size, **filled)
        found.loss.backward()  # type: ignore[no-untyped-call]
        assert filled["current"].grad is not None
        results.append([filled["current"].grad, *(getattr(found, name).detach() for name in Loss.__dataclass_fields__)])
    for clean, dirty in zip(*results, strict=True):
        assert torch.isfinite(dirty).all()
        assert torch.equal(clean, dirty)


def test_a_completion_that_is_masked_whole_adds_nothing() -> None:
    mask = torch.tensor([[True, True], [False, False]])
    for loss in AGGREGATIONS:
        value = aggregate(double([[1.0, 2.0], [math.nan, 50.0]]), mask, loss, size_of(mask, 4))
        assert value.item() == pytest.approx({"grpo": 1.5, "dapo": 1.5, "dr_grpo": 0.75}[loss])  # N is 1


def test_the_largest_ratio_is_that_of_an_unmasked_token() -> None:
    current = double([[-1.0, 0.0]])
    old = double([[-0.5, 0.0]])
    mask = torch.tensor([[True, False]])
    found = grpo_loss(TokenLogprobs(current, old, old, None), torch.ones(1), mask, size_of(mask), params_of())
    assert found.ratio_max.item() == pytest.approx(math.exp(-0.5))


def test_log_ratios_beyond_what_exp_can_hold_stay_finite() -> None:
    current = torch.tensor([[0.0, -200.0]], requires_grad=True)
    old, sampling = torch.tensor([[-200.0, 0.0]]), torch.tensor([[-300.0, 0.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    params = params_of("dapo", sampling_ratio_cap=2.0, kl_coefficient=0.1)
    for advantage in (1.0, -1.0):
        logprobs = TokenLogprobs(current, old, sampling, old)
        found = grpo_loss(logprobs, torch.tensor([advantage]), mask, size_of(mask), params)
        (gradient,) = torch.autograd.grad(found.loss, current)
        assert torch.isfinite(gradient).all()
        assert all(torch.isfinite(getattr(found, name)) for name in Loss.__dataclass_fields__)
