"""Forward and backward over the completions that are here: groups packed behind their prompt, beside padded rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import polars as pl
import torch

from pipeline.params import load_params
from pipeline.policy import Model, load_model
from pipeline.training.batching import read_rows
from pipeline.training.forward import plan_update, prepare_model, row_statistics
from tests.benchmarks.compare import in_turn, need, show


def main(rounds: int = 3) -> None:
    """Both run every completion of data/rollouts.parquet once, with LoRA, and add up the same gradient."""
    need(["data/base", "data/policy", "data/rollouts.parquet"])
    params = load_params().training
    models = {"padded rows": load(), "packed groups": load()}
    prepare_model(models["packed groups"])
    rollouts = pl.read_parquet("data/rollouts.parquet").head(64)
    rows = read_rows(rollouts.with_columns(advantage=1.0, is_truncated=False), mask_truncated=False)

    def run(model: Model) -> None:
        for step in plan_update(model, rows, params.model_copy(update={"epochs": 1, "minibatches": 1})):
            for indices in step.micro_batches:
                statistics = row_statistics(model, [rows[index] for index in indices], temperature=1.0)
                statistics.logprobs.sum().backward()  # type: ignore[no-untyped-call]
        model.zero_grad()

    functions = {name: partial(run, model) for name, model in models.items()}
    show("forward and backward, 64 completions", in_turn(functions, rounds), "padded rows")


def load() -> Model:
    """The policy to be trained; before it is made ready, it takes padded rows."""
    return load_model(Path("data/policy"), Path("data/base"), torch.device("cpu"), is_trainable=True)
