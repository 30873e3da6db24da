"""The floor of an update: the floating-point operations it can't do without, over the matmul peak of the machine."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class WeightCounts:
    """Weights that each token is multiplied with: in the body, in the head, and in an adapter."""

    body: int
    head: int
    adapter: int = 0


def count_weights(model: Any, lora_rank: int = 0) -> WeightCounts:
    """The weights of the linear layers of `model`, and of an adapter of `lora_rank` on all but the head."""
    head = model.get_output_embeddings()
    body = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear) and layer is not head]
    adapter = sum(lora_rank * (layer.in_features + layer.out_features) for layer in body)
    return WeightCounts(sum(layer.weight.numel() for layer in body), head.weight.numel(), adapter)


def update_flops(counts: WeightCounts, n_tokens: int, n_predictions: int) -> int:
    """FLOPs of forward and backward over `n_tokens` tokens, `n_predictions` of which predict a completion token.

    Forward is 2 per weight and token, backward as much again for the activations and, where weights are trained, as
    much once more; the head is needed at predictions alone. With an adapter, it alone is trained. Attention,
    normalization, softmax and the optimizer are left out, so that this is a floor.

    >>> update_flops(WeightCounts(body=100, head=10), n_tokens=4, n_predictions=2)
    2520
    >>> update_flops(WeightCounts(body=100, head=10, adapter=5), n_tokens=4, n_predictions=2)
    1800
    """
    forward = 2 * (counts.body * n_tokens + counts.head * n_predictions)
    return 2 * forward + 3 * 2 * counts.adapter * n_tokens if counts.adapter else 3 * forward


def matmul_peak(seconds: float = 1.0, size: int = 2048) -> float:
    """FLOP/s of square bfloat16 matmuls right now on torch's threads: the median over about `seconds`."""
    left, right = (torch.randn(size, size, dtype=torch.bfloat16) for _ in range(2))
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while not rates or time.perf_counter() < end:
        started = time.perf_counter()
        torch.mm(left, right)
        rates.append(2 * size**3 / (time.perf_counter() - started))
    return statistics.median(rates)
