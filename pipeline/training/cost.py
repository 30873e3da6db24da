"""What the optimizer steps of an update cost, for its metrics."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.training.batching import Step
from pipeline.training.flops import measure_work
from pipeline.training.forward import count_tokens
from pipeline.training.trainer import Trainer

COST = ("n_tokens_run", "padding_fraction", "flops_per_second", "matmul_peak", "peak_fraction")


def cost_of(trainer: Trainer, steps: Sequence[Step], seconds: float) -> dict[str, float]:
    """`COST` of `steps`, which took `seconds`; nothing where there was none."""
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
    }
