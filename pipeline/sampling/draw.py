"""Drawing a token per row from logits, with a uniform number per row."""

from __future__ import annotations

import torch

CHUNK = 128


def draw_tokens(logits: torch.Tensor, temperature: float, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw by inverting the cumulative distribution at `uniforms`.

    Args:
        logits: [rows, vocabulary], any float type.
        temperature: the logits are divided by it.
        uniforms: [rows] float64 in [0, 1).

    Returns:
        tokens [rows] int64, and their log-probabilities after temperature [rows] float32.

    The cumulative sum goes over chunks of the vocabulary first and within one chunk then: two short sums in float64
    instead of one long one, and many times faster than `torch.multinomial` on a CPU.

    >>> logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]] * 3))
    >>> draw_tokens(logits, 1.0, torch.tensor([0.4, 0.6, 0.8], dtype=torch.float64))[0].tolist()
    [0, 1, 2]
    """
    rows, vocabulary = logits.shape
    scaled = logits.float() / temperature
    log_total = scaled.logsumexp(dim=-1, keepdim=True)
    padding = -vocabulary % CHUNK
    probabilities = torch.nn.functional.pad((scaled - log_total).exp(), (0, padding)).view(rows, -1, CHUNK)
    chunk_cdf = probabilities.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    target = uniforms.unsqueeze(1) * chunk_cdf[:, -1:]
    chunk = _first_above(chunk_cdf, target)
    before = torch.where(chunk > 0, chunk_cdf.gather(1, (chunk - 1).clamp(min=0)), 0.0)
    within = probabilities.gather(1, chunk.unsqueeze(2).expand(-1, 1, CHUNK)).squeeze(1)
    tokens = chunk * CHUNK + _first_above(within.double().cumsum(dim=-1), target - before)
    return tokens.squeeze(1), (scaled.gather(1, tokens) - log_total).squeeze(1)


def _first_above(cdf: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Index [rows, 1] of the first entry of `cdf` [rows, n] above `target` [rows, 1].

    Where rounding puts the target at or above the last entry, the last one that adds probability is taken, so that
    a token of probability zero is never drawn.
    """
    last = (cdf < cdf[:, -1:]).sum(dim=-1, keepdim=True)
    return torch.minimum((cdf <= target).sum(dim=-1, keepdim=True), last)
