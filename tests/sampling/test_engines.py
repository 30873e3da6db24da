"""What is asked of every engine alike, before it is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import BadInput
from pipeline.params import LoraParams, SamplingParams
from pipeline.policy import create_adapter, load_tokenizer
from pipeline.sampling.engines import open_sampler
from tests.tiny_model import PRINTABLE_ASCII, build_tiny_model

N_TOKENS, N_POSITIONS = 3 + len(PRINTABLE_ASCII), 512
"""Of the tiny model."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A policy that is an adapter, and its base."""
    root = tmp_path_factory.mktemp("policy")
    build_tiny_model(root / "base")
    create_adapter(root / "base", LoraParams(rank=4, alpha=8.0), 0, root / "policy")
    return root / "policy", root / "base"


@pytest.mark.parametrize("engine", ["transformers", "vllm", "server"])
@pytest.mark.parametrize(
    ("changes", "longest_prompt", "problem"),
    [
        (
            {"stop_token_ids": [3, N_TOKENS]},
            9,
            f"sampling.stop_token_ids: {N_TOKENS} is no token of the model, which has {N_TOKENS}",
        ),
        (
            {},
            N_POSITIONS - 11,
            "sampling.max_completion_tokens: a prompt of 501 tokens and 12 new ones make 513, and the model has 512",
        ),
    ],
)
def test_a_model_has_the_stop_tokens_and_the_positions_that_are_asked_for(
    engine: Any, changes: dict[str, Any], longest_prompt: int, problem: str, folders: tuple[Path, Path]
) -> None:
    server: Any = {"urls": ["http://127.0.0.1:1"]}
    params = SamplingParams(engine=engine, max_completion_tokens=12, server=server, **changes)
    with pytest.raises(BadInput) as caught:
        open_sampler(*folders, load_tokenizer(folders[1]), params, longest_prompt)
    assert str(caught.value).startswith(f"params.yaml: {problem}")
