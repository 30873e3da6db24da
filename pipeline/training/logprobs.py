"""Log-probabilities of completion tokens from the hidden states that predict them, a chunk of tokens at a time.

No tensor of tokens x vocabulary outlives its chunk. The gradient of a log-probability with respect to a hidden state
needs no more than the logits that the forward pass has at hand, so that is when it is computed; only for a head that
is trained itself are they computed again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

from pipeline.training.buckets import padded_length

LOGITS_PER_CHUNK = 1 << 22
"""16 MB in float32: many enough for matrix products to be fast, few enough for caches."""

Entropy = Literal["left_out", "measured", "trained"]
"""What is wanted of the entropy: nothing (it is 0 then), its value, or its value with a gradient."""


class Barred(NamedTuple):
    """Tokens that could not be drawn at some places: their logits are -inf there."""

    token_ids: torch.Tensor  # [n] int64
    places: torch.Tensor  # [T] bool

    def padded(self, n_padding: int) -> Barred:
        """The same with `n_padding` more places, at which everything could be drawn."""
        return self._replace(places=torch.nn.functional.pad(self.places, (0, n_padding)))

    def apply(self, logits: torch.Tensor, part: slice) -> torch.Tensor:
        """`logits` [t, vocabulary] of the places in `part`, changed in place."""
        logits[self.places[part].nonzero(), self.token_ids] = -torch.inf
        return logits


class TokenStatistics(NamedTuple):
    """Per completion token, in nats: its log-probability, and the entropy of the whole distribution there."""

    logprobs: torch.Tensor
    entropy: torch.Tensor


@dataclass(frozen=True)
class Head:
    """How a model makes logits of a hidden state h: cap * tanh(scale * (weight h + bias) / cap).

    With `adds_to_grad` the backward pass adds the gradient of `weight`, a leaf, to its `grad` at once. Left to
    autograd, a second one of its size is kept until embeddings that are tied to it have theirs, after all layers.
    """

    weight: torch.Tensor  # [vocabulary, hidden size]
    bias: torch.Tensor | None = None  # [vocabulary]
    scale: float = 1.0
    cap: float | None = None
    adds_to_grad: bool = False

    def cast(self, dtype: torch.dtype) -> Head:
        """The same in `dtype`, without gradients."""
        bias = None if self.bias is None else self.bias.detach().to(dtype)
        return replace(self, weight=self.weight.detach().to(dtype), bias=bias)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, vocabulary] of `hidden` [T, hidden size], in float32, or in float64 where that is given."""
        products = torch.nn.functional.linear(hidden, self.weight, self.bias)
        logits = products if products.dtype == torch.float64 else products.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap

    def slope(self, logits: torch.Tensor) -> torch.Tensor | float:
        """The derivative of `logits` with respect to the products of weight and hidden state."""
        return self.scale if self.cap is None else self.scale * (1 - (logits / self.cap).square())


def token_statistics(
    hidden: torch.Tensor,
    head: Head,
    token_ids: torch.Tensor,
    temperature: float,
    entropy: Entropy = "measured",
    barred: Barred | None = None,
) -> TokenStatistics:
    """Statistics [T] of `token_ids` [T] where `hidden` [T, hidden size] predicts them.

    Logits are divided by `temperature` and those of `barred` left out, since that is the distribution the completions
    were drawn from. Matrix products are in the type that autocast says, everything else in float32.

    >>> head = Head(torch.tensor([[2.0], [0.0]]))
    >>> statistics = token_statistics(torch.tensor([[1.0]]), head, torch.tensor([0]), temperature=0.6)
    >>> round(statistics.logprobs.item(), 6)
    -0.035052
    """
    n_tokens = len(hidden)
    n_padding = padded_length(n_tokens) - n_tokens
    hidden = torch.nn.functional.pad(hidden, (0, 0, 0, n_padding))
    token_ids = torch.nn.functional.pad(token_ids, (0, n_padding))
    barred = None if barred is None else barred.padded(n_padding)
    arguments = (hidden, head.weight, head.bias, head, token_ids, temperature, entropy, barred)
    padded = _Statistics.apply(*arguments)  # type: ignore[no-untyped-call]
    return TokenStatistics(*(values[:n_tokens] for values in padded))


class _Statistics(torch.autograd.Function):
    """`token_statistics`, with gradients with respect to hidden states, weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        head: Head,
        token_ids: torch.Tensor,
        temperature: float,
        entropy: Entropy,
        barred: Barred | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device = hidden.device.type
        is_cast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_cast else torch.promote_types(hidden.dtype, weight.dtype)
        cast, inputs = head.cast(dtype), hidden.detach().to(dtype)
        n_slopes = (1 + (entropy == "trained")) * ctx.needs_input_grad[0]
        logprobs = hidden.new_zeros(len(hidden), dtype=torch.promote_types(dtype, torch.float32))
        entropies = torch.zeros_like(logprobs)
        slopes = [torch.empty_like(inputs) for _ in range(n_slopes)]
        with torch.autocast(device, enabled=False):
            for part in _chunks(len(hidden), len(weight)):
                chunk = _Chunk(cast, inputs, token_ids, temperature, barred, part)
                logprobs[part] = chunk.chosen
                if entropy != "left_out":
                    entropies[part] = chunk.entropy
                for slope, by_logit in zip(slopes, chunk.slopes(n_slopes), strict=True):
                    slope[part] = by_logit.to(dtype) @ cast.weight
        if entropy != "trained":
            ctx.mark_non_differentiable(entropies)
        ctx.save_for_backward(hidden, weight, token_ids)
        ctx.leaf = head.weight if head.adds_to_grad else None
        ctx.slopes, ctx.cast, ctx.temperature, ctx.barred = slopes, cast, temperature, barred
        ctx.n_outputs = 1 + (entropy == "trained")
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, token_ids = ctx.saved_tensors
        factors = [gradient.unsqueeze(1) for gradient in given[: ctx.n_outputs]]
        for_hidden = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_hidden = torch.zeros_like(hidden)
            for factor, slope in zip(factors, ctx.slopes, strict=True):
                for_hidden += factor * slope
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            dtype = ctx.cast.weight.dtype
            for_weight = torch.zeros_like(weight) if ctx.leaf is None else _gradient_of(ctx.leaf)
            for_bias = weight.new_zeros(len(weight))
            inputs = hidden.to(dtype)
            for part in _chunks(len(hidden), len(weight)):
                chunk = _Chunk(ctx.cast, inputs, token_ids, ctx.temperature, ctx.barred, part)
                for factor, slope in zip(factors, chunk.slopes(ctx.n_outputs), strict=True):
                    by_logit = factor[part] * slope
                    for_weight += by_logit.to(dtype).t() @ inputs[part]
                    for_bias += by_logit.sum(dim=0)
        returned = (for_weight if ctx.leaf is None else None, for_bias if ctx.needs_input_grad[2] else None)
        return for_hidden, *returned, *[None] * 5


def _gradient_of(leaf: torch.Tensor) -> torch.Tensor:
    """The `grad` of `leaf`, zeros where it had none."""
    if leaf.grad is None:
        leaf.grad = torch.zeros_like(leaf)
    return leaf.grad


class _Chunk:
    """The distributions [t, vocabulary] of the tokens in `part`."""

    def __init__(
        self,
        head: Head,
        hidden: torch.Tensor,
        token_ids: torch.Tensor,
        temperature: float,
        barred: Barred | None,
        part: slice,
    ) -> None:
        logits = head.logits(hidden[part])
        self.scale = head.slope(logits) / temperature
        if barred is not None:
            logits = barred.apply(logits, part)
        self.token_ids = token_ids[part].unsqueeze(1)
        # A logit of -inf, a token that can't be, would be NaN times its probability of 0.
        self.logprobs = (logits / temperature).log_softmax(dim=1).clamp_(min=torch.finfo(logits.dtype).min)

    @property
    def chosen(self) -> torch.Tensor:
        """[t]"""
        return self.logprobs.gather(1, self.token_ids).squeeze(1)

    @property
    def entropy(self) -> torch.Tensor:
        """[t]"""
        negative: torch.Tensor = torch.linalg.vecdot(self.logprobs.exp(), self.logprobs)
        return -negative

    def slopes(self, n: int) -> Iterator[torch.Tensor]:
        """Derivatives [t, vocabulary] of `chosen`, then of `entropy`, by the products of weight and hidden state."""
        if n > 0:
            by_logit = self.logprobs.exp().neg_()
            by_logit.scatter_add_(1, self.token_ids, torch.ones_like(by_logit[:, :1]))
            yield by_logit.mul_(self.scale)
        if n > 1:
            yield (self.logprobs + self.entropy.unsqueeze(1)).mul_(self.logprobs.exp()).mul_(self.scale).neg_()


def _chunks(n_tokens: int, n_vocabulary: int) -> Iterator[slice]:
    size = 1 << (max(1, LOGITS_PER_CHUNK // n_vocabulary).bit_length() - 1)  # a power of two, as buckets are
    return (slice(start, start + size) for start in range(0, n_tokens, size))
