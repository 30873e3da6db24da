"""Forward and backward over the completions that are here: groups packed behind their prompt, beside padded rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import torch

from pipeline.params import load_params
from pipeline.policy import load_model
from pipeline.training.batching import collate, cut_padded_rows, read_rows
from pipeline.training.logprobs import TokenStatistics, completion_statistics
from pipeline.training.packing import cut_packed_rows, pack_rows, packed_statistics
from tests.benchmarks.compare import in_turn, need, show


def main(rounds: int = 3) -> None:
    """Both run every completion of data/rollouts.parquet once, with LoRA, and add up the same gradient."""
    need(["data/base", "data/policy", "data/rollouts.parquet"])
    device = torch.device("cpu")
    model = load_model(Path("data/policy"), Path("data/base"), device, is_trainable=True)
    rollouts = pl.read_parquet("data/rollouts.parquet").head(64)
    rows = read_rows(rollouts.with_columns(advantage=1.0, is_truncated=False), mask_truncated=False)
    limit, everything = load_params().training.max_tokens_per_microbatch, range(len(rows))

    def run(batches: list[list[int]], statistics: Callable[[list[int]], TokenStatistics]) -> None:
        for indices in batches:
            statistics(indices).logprobs.sum().backward()  # type: ignore[no-untyped-call]
        model.zero_grad()

    def padded(indices: list[int]) -> TokenStatistics:
        return completion_statistics(model, collate([rows[i] for i in indices], device), 1.0)

    def packed(indices: list[int]) -> TokenStatistics:
        return packed_statistics(model, pack_rows([rows[i] for i in indices], device), 1.0)

    functions = {
        "padded rows": lambda: run(cut_padded_rows(rows, everything, limit), padded),
        "packed groups": lambda: run(cut_packed_rows(rows, everything, limit), packed),
    }
    show("forward and backward, 64 completions", in_turn(functions, rounds), "padded rows")
