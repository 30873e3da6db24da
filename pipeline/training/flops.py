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
    """The weights of the linear layers of `model`, and of its adapter, or of one of `lora_rank` on all but the head."""
    head = model.get_output_embeddings()
    head = getattr(head, "base_layer", head)
    matrices = {name: module.weight for name, module in model.named_modules() if _is_linear(module, head)}
    body = [weight for name, weight in matrices.items() if ".lora_" not in name]
    own_adapter = sum(weight.numel() for name, weight in matrices.items() if ".lora_" in name)
    adapter = own_adapter or sum(lora_rank * sum(weight.shape) for weight in body)
    return WeightCounts(sum(weight.numel() for weight in body), head.weight.numel(), adapter)


def _is_linear(module: torch.nn.Module, head: torch.nn.Module) -> bool:
    """Whether `module` multiplies each token with a matrix of its own: linear layers, by whatever class."""
    if isinstance(module, torch.nn.Embedding) or module is head or hasattr(module, "base_layer"):
        return False
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.ndim == 2


@dataclass(frozen=True)
class Work:
    """What the steps of an update had to compute, and how fast that went; rates are in FLOP/s."""

    flops: int
    flops_per_second: float
    matmul_peak: float

    @property
    def peak_fraction(self) -> float:
        """The share of the peak that was reached."""
        return self.flops_per_second / self.matmul_peak


def measure_work(model: Any, n_tokens: int, n_predictions: int, seconds: float, n_devices: int = 1) -> Work:
    """Rate `seconds` of forward and backward passes, see `update_flops`, against the peak of `n_devices` like ours."""
    flops = update_flops(count_weights(model), n_tokens, n_predictions)
    return Work(flops, flops / seconds, n_devices * matmul_peak(model.device, seconds=0.2))


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


def matmul_peak(device: torch.device, seconds: float = 1.0, size: int = 2048) -> float:
    """FLOP/s of square bfloat16 matmuls right now on `device`: the median over about `seconds`."""
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while not rates or time.perf_counter() < end:
        started = time.perf_counter()
        torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        rates.append(2 * size**3 / (time.perf_counter() - started))
    return statistics.median(rates)
