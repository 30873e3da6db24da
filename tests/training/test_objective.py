"""The objective of a token: the handed case, ratios and what counts as clipped."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from pipeline.training.objective import clipped_objective, clipped_tokens, importance_ratio
from tests.slow_loss import double, params_of

CASES = {case["name"]: case for case in json.loads((Path(__file__).parents[1] / "golden" / "loss.json").read_text())}


def test_case_clip() -> None:
    case = CASES["clip"]
    ratio, advantages = double(case["ratios"]), torch.tensor(case["advantages"], dtype=torch.float64)
    objective = clipped_objective(ratio, advantages.unsqueeze(1), 0.2, 0.2)
    assert objective.flatten().tolist() == pytest.approx(case["objective"])


def test_a_dual_clip_beyond_every_ratio_changes_nothing() -> None:
    ratio, advantages = double([[0.1, 0.9, 1.0, 1.3, 4.0]]), double([[1.0], [-1.0], [0.0]])
    plain = clipped_objective(ratio, advantages, 0.2, 0.2)
    assert torch.equal(clipped_objective(ratio, advantages, 0.2, 0.2, dual_clip=5.0), plain)


def test_a_ratio_per_completion_is_the_geometric_mean_of_its_unmasked_tokens() -> None:
    ratios = double([[4.0, 9.0, 100.0], [2.0, 7.0, 7.0], [3.0, 3.0, 3.0]])
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    # sqrt(4 * 9) = 6, and 2; a completion without unmasked tokens has a ratio of 1, which nothing reads.
    assert importance_ratio(ratios.log(), mask, is_per_completion=True)[:, 0].tolist() == pytest.approx([6.0, 2.0, 1.0])
    assert torch.allclose(importance_ratio(ratios.log(), mask, is_per_completion=False), ratios)


@pytest.mark.parametrize("is_per_completion", [True, False])
def test_a_ratio_is_held_within_what_exp_can_hold(is_per_completion: bool) -> None:
    log_ratio = torch.tensor([[500.0, 500.0], [-500.0, -500.0]])
    found = importance_ratio(log_ratio, torch.ones(2, 2, dtype=torch.bool), is_per_completion)
    assert found[:, 0].tolist() == pytest.approx([math.exp(20), math.exp(-20)])


def test_a_token_that_is_just_at_its_bound_is_not_clipped() -> None:
    ratio = torch.tensor([[0.5, 1.5, 0.25, 2.0, 4.0]], dtype=torch.float64)
    params = params_of("grpo", clip_low=0.5, clip_high=0.5, dual_clip=2.0)
    is_low, is_high = clipped_tokens(ratio, torch.tensor([[1.0], [-1.0], [0.0]]), params)
    assert is_low.int().tolist() == [[0] * 5, [0, 0, 1, 0, 0], [0] * 5]
    assert is_high.int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1], [0] * 5]
    is_low, is_high = clipped_tokens(ratio, torch.tensor([[-1.0]]), params_of("cispo", clip_high=1.0))
    assert (is_low.any().item(), is_high.int().tolist()) == (False, [[0, 0, 0, 0, 1]])
