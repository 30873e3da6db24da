"""The KL per token and per completion, and what it does to advantages: numbers by hand, and RLOO's own way to them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.training.kl import MAX_LOG_RATIO, completion_kl, kl_estimate, penalize_kl
from tests.slow_loss import double

CASES = {case["name"]: case for case in json.loads((Path(__file__).parents[1] / "golden" / "loss.json").read_text())}
BASELINES = ("mean", "leave_one_out")


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


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("distance", [-40.0, -1.0, 0.0, 0.5, 19.0, 21.0, 50.0])
def test_gradcheck(estimator: str, distance: float) -> None:
    logprobs = double([[-60.0]]).requires_grad_()
    reference = double([[-60.0 + distance]])
    assert torch.autograd.gradcheck(lambda values: kl_estimate(values, reference, estimator), [logprobs])


# --- in the reward


def test_the_kl_of_a_completion_is_the_sum_over_its_tokens() -> None:
    assert completion_kl([-1.0, -2.0, -0.5], [-3.0, -1.5, -0.5]) == 1.5  # 2 - 0.5 + 0
    with pytest.raises(ValueError, match="longer"):
        completion_kl([-1.0], [-1.0, -2.0])


def test_what_is_above_the_groups_kl_costs_advantage() -> None:
    advantages, kl, groups = [1.0, 0.0, -1.0, 5.0], [3.0, 1.0, 2.0, 7.0], ["a", "a", "a", "b"]
    # Means 2 and 7: 1 - 0.1 * 1, 0 - 0.1 * -1, -1 - 0, 5 - 0.
    assert penalize_kl(advantages, kl, groups, 0.1, "mean") == pytest.approx([0.9, 0.1, -1.0, 5.0])
    # Means of the others (1 + 2) / 2, (3 + 2) / 2 and (3 + 1) / 2: 1 - 0.1 * 1.5, 0 + 0.1 * 1.5, -1 - 0. The last has
    # no others.
    assert penalize_kl(advantages, kl, groups, 0.1, "leave_one_out") == pytest.approx([0.85, 0.15, -1.0, 5.0])
    assert penalize_kl(advantages, kl, groups, 0.0, "mean") == advantages


numbers = st.floats(-10, 10)
rows = st.lists(st.tuples(numbers, numbers, st.sampled_from("abc")), min_size=1, max_size=12)


@given(rows, st.floats(0, 2))
def test_it_is_rloo_on_rewards_that_the_kl_was_taken_from(rows: list[tuple[float, float, str]], beta: float) -> None:
    """RLOO's equation: R = r - beta * KL for each completion, less the mean R of the others of its group."""

    def less_the_others(values: list[float]) -> list[float]:
        found = []
        for i, (value, (_, _, group)) in enumerate(zip(values, rows, strict=True)):
            others = [values[j] for j, row in enumerate(rows) if row[2] == group and j != i]
            found.append(value - sum(others) / len(others) if others else 0.0)
        return found

    rewards, kl, groups = map(list, zip(*rows, strict=True))
    found = penalize_kl(less_the_others(rewards), kl, groups, beta, "leave_one_out")
    expected = less_the_others([reward - beta * value for reward, value, _ in rows])
    assert found == pytest.approx(expected, abs=1e-9)


@given(rows.flatmap(lambda rows: st.tuples(st.just(rows), st.permutations(range(len(rows))))))
def test_the_order_of_rows_changes_nothing(case: tuple[list[tuple[float, float, str]], list[int]]) -> None:
    rows, order = case

    def penalized(rows: list[tuple[float, float, str]], baseline: str) -> list[float]:
        advantages, kl, groups = zip(*rows, strict=True)
        return penalize_kl(advantages, kl, groups, 0.3, baseline)

    for baseline in BASELINES:
        found = penalized(rows, baseline)
        assert penalized([rows[i] for i in order], baseline) == [found[i] for i in order]


@given(rows, st.sampled_from(BASELINES))
def test_the_advantages_of_a_group_keep_their_sum(rows: list[tuple[float, float, str]], baseline: str) -> None:
    advantages, kl, groups = zip(*rows, strict=True)
    found = penalize_kl(advantages, kl, groups, 0.3, baseline)
    for group in set(groups):
        before, after = (
            sum(a for a, g in zip(values, groups, strict=True) if g == group) for values in (advantages, found)
        )
        assert after == pytest.approx(before, abs=1e-9)
