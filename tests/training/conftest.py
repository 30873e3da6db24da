"""A tiny base model and policies of both methods, one thread, and float32 where bfloat16 would hide an error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipeline.params import LoraParams
from pipeline.policy import create_adapter, load_model, save_model
from tests import threads
from tests.tiny_model import build_tiny_model
from tests.tiny_updates import CPU


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Products this small take longer to share out than to compute."""
    with threads.one_thread():
        yield


@pytest.fixture
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """No autocast: rounding to bfloat16 depends on the shape of a batch, and would hide differences up to 1e-2."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model whose next-token distributions are far from uniform, as the initial weights would leave them."""
    folder = tmp_path_factory.mktemp("models")
    build_tiny_model(folder / "initial")
    model = load_model(folder / "initial", folder / "initial", CPU, torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)
    save_model(model, folder / "base", tokenizer_from=folder / "initial")
    return folder / "base"


@pytest.fixture(scope="session")
def new_adapter(base: Path) -> Path:
    """An adapter that changes nothing yet."""
    create_adapter(base, LoraParams(rank=4), 7, base.parent / "new_adapter")
    return base.parent / "new_adapter"


@pytest.fixture(scope="session")
def adapter(base: Path, new_adapter: Path) -> Path:
    """An adapter that changes the base model."""
    model = load_model(new_adapter, base, CPU, torch.float32, is_trainable=True)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=generator)
    save_model(model, base.parent / "adapter")
    return base.parent / "adapter"


@pytest.fixture(params=["full", "lora"])
def policy(request: pytest.FixtureRequest, base: Path, adapter: Path) -> Path:
    """A policy of each training method."""
    return base if request.param == "full" else adapter


@pytest.fixture(params=["packed", "padded"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to lay out a micro-batch: packed, as models like the tiny one allow, and padded, as others need."""
    layout = str(request.param)
    if layout == "padded":
        monkeypatch.setattr("pipeline.training.forward.supports_grouped_attention", lambda _: False)
    return layout
