"""Drawing tokens: the distribution, the log-probabilities, and the edges of both."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sampling.draw import CHUNK, draw_tokens

LAST_UNIFORM = 1 - 2**-53
"""The largest float64 below 1, and the largest number that numpy's `random()` gives."""


def draw(logits: list[float], u: float, temperature: float = 1.0) -> tuple[int, float]:
    tokens, logprobs = draw_tokens(torch.tensor([logits]), temperature, torch.tensor([u], dtype=torch.float64))
    return int(tokens), float(logprobs)


def plain_cdf(logits: list[float], temperature: float) -> np.ndarray:
    scaled = np.array(logits, dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return np.cumsum(weights / weights.sum())


def test_distribution_is_that_of_the_logits() -> None:
    # Ten tokens with a probability, in all three chunks of the vocabulary and on both sides of their borders.
    places = [0, 5, 126, 127, 128, 129, 200, 255, 256, 299]
    weights = np.array([0.2, 0.05, 0.1, 0.1, 0.15, 0.05, 0.02, 0.03, 0.1, 0.2])
    logits = torch.full((300,), -math.inf)
    logits[places] = torch.tensor(np.log(weights) * 0.7, dtype=torch.float32)
    n = 20_000
    uniforms = torch.tensor(np.random.default_rng(0).random(n))
    tokens, _ = draw_tokens(logits.expand(n, -1), 0.7, uniforms)
    counts = np.bincount(tokens.numpy(), minlength=300)
    assert counts.sum() == counts[places].sum() == n
    chi_square = float(((counts[places] - n * weights) ** 2 / (n * weights)).sum())
    assert chi_square < 27.88  # the 0.999 quantile with 9 degrees of freedom


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logprob_is_log_softmax_after_temperature(temperature: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(50, 1000, generator=generator) * 5).to(dtype)
    tokens, logprobs = draw_tokens(logits, temperature, torch.rand(50, dtype=torch.float64, generator=generator))
    expected = torch.log_softmax(logits.double() / temperature, dim=-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
    assert logprobs.dtype == torch.float32
    rounding = 2**-23 * float(logits.abs().max()) / temperature
    assert logprobs.numpy() == pytest.approx(expected.numpy(), rel=1e-6, abs=1e-6 + rounding)


@settings(max_examples=300, deadline=None)
@given(
    logits=st.lists(st.one_of(st.floats(-40, 40), st.just(-math.inf)), min_size=1, max_size=2 * CHUNK + 3),
    u=st.one_of(st.floats(0, LAST_UNIFORM), st.sampled_from([0.0, 0.5, LAST_UNIFORM])),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
)
def test_agrees_with_a_plain_inverse_cdf(logits: list[float], u: float, temperature: float) -> None:
    if max(logits) == -math.inf:
        logits = [*logits[:-1], 0.0]
    token, logprob = draw(logits, u, temperature)
    cdf = plain_cdf(logits, temperature)
    below = cdf[token - 1] if token else 0.0
    # Probabilities are float32, so that a uniform number within their rounding of a border may fall on either side.
    assert below - 1e-5 <= u <= cdf[token] + 1e-5
    assert logits[token] > -math.inf
    assert math.isfinite(logprob)
    assert logprob <= 1e-5


@pytest.mark.parametrize("size", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 7])
def test_extreme_uniforms_reach_the_first_and_the_last_token(size: int) -> None:
    logits = [0.0] * size
    assert draw(logits, 0.0) == (0, pytest.approx(-math.log(size), abs=1e-5))
    assert draw(logits, LAST_UNIFORM) == (size - 1, pytest.approx(-math.log(size), abs=1e-5))


def test_a_vocabulary_of_one_token_has_nothing_to_choose() -> None:
    for u in (0.0, 0.3, LAST_UNIFORM):
        assert draw([-17.5], u) == (0, 0.0)


@pytest.mark.parametrize("only", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 299])
@pytest.mark.parametrize("u", [0.0, 0.5, LAST_UNIFORM])
def test_a_token_of_probability_zero_is_never_drawn(only: int, u: float) -> None:
    logits = [-math.inf] * 300
    logits[only] = 3.0
    assert draw(logits, u) == (only, 0.0)
    # exp(-200) is 0 in float32: as improbable as minus infinity.
    assert draw([203.0 if i == only else 3.0 for i in range(300)], u) == (only, 0.0)


def test_zero_probability_at_either_end_of_a_chunk_and_of_the_vocabulary() -> None:
    logits = [-math.inf] * 300
    for place in (3, CHUNK + 3, 2 * CHUNK + 3):
        logits[place] = 0.0
    assert [draw(logits, u)[0] for u in (0.0, 0.34, LAST_UNIFORM)] == [3, CHUNK + 3, 2 * CHUNK + 3]
    # A uniform number on a border belongs to the token above it: [0, 1/2) is the first, [1/2, 1) the second.
    assert [draw([0.0, -math.inf, 0.0], u)[0] for u in (0.5 - 2**-53, 0.5)] == [0, 2]


def test_sums_of_many_small_probabilities_never_run_past_the_end() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 49_152, generator=generator) * 3
    logits[:, -1000:] = -math.inf
    tokens, logprobs = draw_tokens(logits, 1.0, torch.full((64,), LAST_UNIFORM, dtype=torch.float64))
    assert int(tokens.max()) < 49_152 - 1000
    assert bool(logprobs.isfinite().all())


def test_a_row_is_drawn_alike_alone_and_among_others() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(33, 500, generator=generator)
    uniforms = torch.rand(33, dtype=torch.float64, generator=generator)
    together, logprobs = draw_tokens(logits, 0.9, uniforms)
    for row in range(33):
        token, logprob = draw_tokens(logits[row : row + 1], 0.9, uniforms[row : row + 1])
        assert int(token) == int(together[row])
        assert float(logprob) == pytest.approx(float(logprobs[row]), abs=1e-6)


def test_a_low_temperature_takes_the_largest_logit() -> None:
    assert draw([1.0, 1.5, 1.4], 0.999, temperature=1e-4) == (1, 0.0)


def test_rounding_at_the_border_of_a_chunk_draws_no_token_of_probability_zero() -> None:
    # Sums over a chunk differ in the last bit with the order of their terms, so that just below the border of the
    # first chunk the target may reach or pass the sum within it: 9 neighbouring uniform numbers for each of 1,000 rows.
    logits = torch.randn(1000, 3, CHUNK, generator=torch.Generator().manual_seed(4)) * 10
    logits[:, :, [0, -1]] = -math.inf
    logits = logits.view(1000, -1)
    probabilities = (logits - logits.logsumexp(dim=-1, keepdim=True)).exp().view(1000, 3, CHUNK)
    cdf = probabilities.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    border = (cdf[:, 0] / cdf[:, -1]).numpy()
    uniforms = torch.tensor(np.stack([border + step * np.spacing(border) for step in range(-4, 5)]))
    for row in uniforms:
        tokens, logprobs = draw_tokens(logits, 1.0, row)
        assert bool(logprobs.isfinite().all())
        assert not set((tokens % CHUNK).tolist()) & {0, CHUNK - 1}
