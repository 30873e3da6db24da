"""The floor of an update: weights that tokens are multiplied with, with an adapter and in layers of any class."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from pipeline.policy import load_model
from pipeline.training import flops
from pipeline.training.flops import WeightCounts, count_weights, measure_work
from tests.tiny_updates import CPU


def test_an_adapter_is_counted_apart(base: Path, new_adapter: Path) -> None:
    whole = load_model(base, base, CPU, torch.float32)
    adapted = load_model(new_adapter, base, CPU, torch.float32, is_trainable=True)
    assert count_weights(adapted) == count_weights(whole, lora_rank=4)  # that of `new_adapter`
    assert count_weights(adapted).adapter > 0


def test_layers_that_are_no_torch_linear_count_as_well() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_positions=64, n_embd=16, n_layer=1, n_head=2))
    # Query, key and value, output, and two of four times the width; embeddings multiply nothing.
    assert count_weights(model) == WeightCounts(body=16 * (3 * 16 + 16 + 2 * 64), head=99 * 16)


def test_work_is_measured_against_the_peak_of_all_devices(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops, "matmul_peak", lambda *_args, **_kwargs: 1e6)
    model = load_model(base, base, CPU, torch.float32)
    counts = count_weights(model)
    work = measure_work(model, n_tokens=10, n_predictions=5, seconds=2.0, n_devices=2)
    assert work.flops == 6 * (counts.body * 10 + counts.head * 5)
    assert work.flops_per_second == work.flops / 2
    assert work.peak_fraction == work.flops / 2 / 2e6
