"""Drawing a token per row from logits, with a uniform number per row."""

from __future__ import annotations

import torch

CHUNK = 128
LOGITS_AT_ONCE = 1 << 21
"""On a CPU: 8 MB in float32, which stay in its cache; tensors of more than 32 MB get new pages every time."""


def draw_tokens(logits: torch.Tensor, temperature: float, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw by inverting the cumulative distribution at `uniforms`.

    Args:
        logits: [rows, vocabulary], any float type.
        temperature: the logits are divided by it.
        uniforms: [rows] float64 in [0, 1).

    Returns:
        tokens [rows] int64, and their log-probabilities after temperature [rows] float32: not finite where a logit is
        NaN or infinite, -inf aside.

    The cumulative sum goes over chunks of the vocabulary first and within one chunk then: two short sums in float64
    instead of one long one, and many times faster than `torch.multinomial` on a CPU. The vocabulary is passed over
    once for each of conversion, maximum, difference, exponential and sums of chunks, all in float32.

    >>> logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]] * 3))
    >>> draw_tokens(logits, 1.0, torch.tensor([0.4, 0.6, 0.8], dtype=torch.float64))[0].tolist()
    [0, 1, 2]
    """
    n_rows = max(1, LOGITS_AT_ONCE // logits.shape[1]) if logits.is_cpu else len(logits)
    blocks = zip(torch.split(logits, n_rows), torch.split(uniforms, n_rows), strict=True)
    tokens, logprobs = zip(*(_draw(block, temperature, numbers) for block, numbers in blocks), strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def _draw(logits: torch.Tensor, temperature: float, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = _weights(logits, temperature)
    chunk_cdf = weights.sum(dim=-1).double().cumsum(dim=-1)
    total = chunk_cdf[:, -1:]
    target = uniforms.unsqueeze(1) * total
    chunk = _first_above(chunk_cdf, target)
    before = torch.where(chunk > 0, chunk_cdf.gather(1, (chunk - 1).clamp(min=0)), 0.0)
    within = weights.gather(1, chunk.unsqueeze(2).expand(-1, 1, CHUNK)).squeeze(1).double()
    place = _first_above(within.cumsum(dim=-1), target - before)
    logprobs = (within.gather(1, place) / total).log().float()
    return (chunk * CHUNK + place).squeeze(1), logprobs.squeeze(1)


def _weights(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Probabilities, but for a factor per row, in chunks [rows, chunks, CHUNK] float32; 0 beyond the vocabulary."""
    scaled = logits.to(torch.float32, copy=True)
    if temperature != 1.0:
        scaled.div_(temperature)
    weights = scaled.sub_(scaled.amax(dim=-1, keepdim=True)).exp_()
    padding = -weights.shape[1] % CHUNK
    if padding:
        weights = torch.nn.functional.pad(weights, (0, padding))
    return weights.view(len(weights), -1, CHUNK)


def _first_above(cdf: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Index [rows, 1] of the first entry of `cdf` [rows, n] above `target` [rows, 1].

    Where rounding puts the target at or above the last entry, the last one that adds probability is taken, so that
    a token of probability zero is never drawn.
    """
    last = (cdf < cdf[:, -1:]).sum(dim=-1, keepdim=True)
    return torch.minimum((cdf <= target).sum(dim=-1, keepdim=True), last)
