"""The learning rate over a run, against numbers worked by hand."""

from __future__ import annotations

import pytest

from pipeline.training.schedule import learning_rate_at
from tests.tiny_updates import training_params


@pytest.mark.parametrize("warmup_steps", [0, 1, 3, 7])
def test_without_a_decay_it_is_the_warm_up_alone(warmup_steps: int) -> None:
    """To the last bit."""
    params = training_params(learning_rate=0.3, warmup_steps=warmup_steps)
    for step in range(12):
        assert learning_rate_at(params, step) == 0.3 * min(1.0, (step + 1) / max(1, warmup_steps))


def test_no_warm_up_is_the_whole_rate_at_once() -> None:
    assert learning_rate_at(training_params(learning_rate=0.5), 0) == 0.5


def test_a_line_falls_from_the_warm_up_to_zero() -> None:
    params = training_params(learning_rate=2.0, warmup_steps=2, decay="linear", decay_steps=6)
    rates = [learning_rate_at(params, step) for step in range(9)]
    # Up by 2/2 a step; then 2 (6 - step) / (6 - 2): 2.0 at step 2, 0.5 less with each step, 0 from step 6 on.
    assert rates == pytest.approx([1.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0, 0.0, 0.0], abs=1e-15)


def test_a_cosine_falls_slowly_at_both_ends() -> None:
    params = training_params(learning_rate=1.0, decay="cosine", decay_steps=6)
    rates = [learning_rate_at(params, step) for step in range(8)]
    # (1 + cos(pi step / 6)) / 2 with cos 30, 60, 90, 120, 150 degrees = 0.8660254, 0.5, 0, -0.5, -0.8660254.
    assert rates == pytest.approx([1.0, 0.9330127, 0.75, 0.5, 0.25, 0.0669873, 0.0, 0.0], abs=1e-7)


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_the_floor_is_a_fraction_of_the_peak(decay: str) -> None:
    settings = {"decay": decay, "decay_steps": 11, "warmup_steps": 1, "min_learning_rate_fraction": 0.2}
    params = training_params(learning_rate=5.0, **settings)
    # Halfway, at step 1 + 10 / 2, either is half the way from 5.0 down to 0.2 x 5.0: (5.0 + 1.0) / 2.
    assert learning_rate_at(params, 6) == pytest.approx(3.0, rel=1e-12)
    assert [learning_rate_at(params, step) for step in (1, 11, 12, 10_000)] == pytest.approx([5.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_it_never_rises_after_the_warm_up(decay: str) -> None:
    params = training_params(warmup_steps=4, decay=decay, decay_steps=5, min_learning_rate_fraction=0.5)
    rates = [learning_rate_at(params, step) for step in range(8)]
    assert rates == sorted(rates[:4]) + sorted(rates[4:], reverse=True)
    assert (rates[4], rates[5]) == (0.03, 0.015)
