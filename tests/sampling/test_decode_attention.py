"""The attention of one position against that of transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from pipeline.sampling.decode_attention import (
    DECODE_ATTENTION,
    decode_attention,
    use_decode_attention,
)

KEY_HEADS = 2
LENGTH = 9


def tensors(n_heads: int, n_positions: int = 1, key_heads: int = KEY_HEADS) -> tuple[torch.Tensor, ...]:
    """Query, key and value of three rows; values are wider than keys, as some models have them."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, n_heads, n_positions, 8, generator=generator)
    key = torch.randn(3, key_heads, LENGTH, 8, generator=generator)
    value = torch.randn(3, key_heads, LENGTH, 12, generator=generator)
    return query, key, value


def left_padding() -> torch.Tensor:
    """Mask [rows, 1, 1, length] of rows that have 9, 5 and 1 positions."""
    n_padding = torch.tensor([0, 4, 8])
    return (torch.arange(LENGTH) >= n_padding.unsqueeze(1))[:, None, None, :]


def both(query: torch.Tensor, *others: torch.Tensor | None, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    key = others[0]
    assert key is not None
    module: Any = SimpleNamespace(num_key_value_groups=query.shape[1] // key.shape[1], is_causal=True)
    ours, _ = decode_attention(module, query, *others, **kwargs)  # type: ignore[arg-type]
    theirs, _ = sdpa_attention_forward(module, query, *others, **kwargs)
    return ours, theirs


@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize("kind", ["no mask", "boolean", "additive"])
@pytest.mark.parametrize(("n_heads", "key_heads"), [(2, 2), (6, 2), (4, 1), (1, 1)])
def test_one_position_attends_as_in_transformers(
    n_heads: int, key_heads: int, kind: str, scaling: float | None
) -> None:
    mask = {"no mask": None, "boolean": left_padding(), "additive": torch.where(left_padding(), 0.5, -torch.inf)}[kind]
    ours, theirs = both(*tensors(n_heads, key_heads=key_heads), mask, scaling=scaling)
    assert ours.shape == theirs.shape == (3, 1, n_heads, 12)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_a_query_that_is_a_view_of_the_projection_is_taken() -> None:
    _, key, value = tensors(6)
    query = torch.randn(3, 1, 6, 8).transpose(1, 2)
    ours, theirs = both(query, key, value, left_padding())
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_several_positions_go_to_transformers() -> None:
    ours, theirs = both(*tensors(6, n_positions=LENGTH), None)
    assert torch.equal(ours, theirs)


def test_a_position_bias_goes_to_transformers() -> None:
    bias = torch.linspace(-3, 3, LENGTH).view(1, 1, 1, LENGTH).expand(3, 6, 1, LENGTH)
    ours, theirs = both(*tensors(6), left_padding(), position_bias=bias)
    assert torch.equal(ours, theirs)
    assert not torch.allclose(ours, both(*tensors(6), left_padding())[0])


@pytest.mark.parametrize(("given", "after"), [("sdpa", DECODE_ATTENTION), ("eager", "eager")])
def test_only_a_model_of_scaled_dot_product_attention_is_switched(given: str, after: str) -> None:
    config = LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, head_dim=4
    )
    model = LlamaForCausalLM._from_config(config, attn_implementation=given)
    use_decode_attention(model)
    assert model.config._attn_implementation == after
