"""What the optimizer steps of an update cost, for its metrics."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.training.batching import Step
from pipeline.training.flops import measure_work
from pipeline.training.forward import count_tokens
from pipeline.training.trainer import Trainer

COST = ("n_tokens_run", "padding_fraction", "flops_per_second", "matmul_peak", "peak_fraction", "peak_gpu_memory_mb")


def cost_of(trainer: Trainer, steps: Sequence[Step], seconds: float) -> dict[str, float | None]:
    """`COST` of `steps`, which took `seconds`; nothing where there was none. The memory is that of this rank."""
    tokens = count_tokens(trainer.model, trainer.rows, steps)
    if not tokens.n_run:
        return {}
    work = measure_work(trainer.model, tokens.n_run, tokens.n_predicting, seconds, trainer.ranks.size)
    return {
        "n_tokens_run": tokens.n_run,
        "padding_fraction": tokens.n_padding / tokens.n_run,
        "flops_per_second": work.flops_per_second,
        "matmul_peak": work.matmul_peak,
        "peak_fraction": work.peak_fraction,
        "peak_gpu_memory_mb": _peak_gpu_memory_mb(trainer.device),
    }


def _peak_gpu_memory_mb(device: torch.device) -> int | None:
    return round(torch.cuda.max_memory_allocated(device) / 2**20) if device.type == "cuda" else None
