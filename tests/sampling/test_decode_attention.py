"""The preallocated cache against the cache of transformers, and the attention of one position against theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from pipeline.sampling.decode_attention import (
    DECODE_ATTENTION,
    PreallocatedLayer,
    decode_attention,
    make_cache,
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


def states(rows: int, n_positions: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (rows, KEY_HEADS, n_positions, 4)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


@pytest.mark.parametrize("seed", range(20))
def test_preallocated_layer_is_a_dynamic_layer(seed: int) -> None:
    """A prefill, then random appends, expansions, shuffles and departures of rows."""
    generator = torch.Generator().manual_seed(seed)

    def pick(high: int) -> int:
        return int(torch.randint(1, high + 1, (), generator=generator))

    ours, theirs = PreallocatedLayer(40), DynamicLayer()
    rows = pick(5)
    new = states(rows, pick(7), generator)
    assert ours.get_seq_length() == theirs.get_seq_length() == 0
    assert ours.get_mask_sizes(7) == theirs.get_mask_sizes(7)
    for _ in range(12):
        for mine, other in zip(ours.update(*new), theirs.update(*new), strict=True):
            assert torch.equal(mine, other)
        n_kept = pick(2 * rows) if pick(3) == 1 else pick(rows)
        indices = torch.randint(0, rows, (n_kept,), generator=generator)
        ours.reorder_cache(indices)
        theirs.reorder_cache(indices)
        rows = n_kept
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.get_mask_sizes(1) == theirs.get_mask_sizes(1)
        new = states(rows, 1, generator)


def test_appending_and_leaving_copy_nothing_that_stays() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = PreallocatedLayer(6)
    layer.update(*states(4, 3, generator))
    storage = layer.buffers[0].data_ptr()
    keys, _ = layer.update(*states(4, 1, generator))
    assert keys.data_ptr() == storage
    layer.reorder_cache(torch.tensor([0, 3]))
    assert layer.buffers[0].data_ptr() == storage
    assert layer.buffers[0].shape == (2, KEY_HEADS, 6, 4)


def test_a_full_layer_refuses_more() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = PreallocatedLayer(3)
    layer.update(*states(2, 3, generator))
    with pytest.raises(IndexError, match="4 positions in a cache for 3"):
        layer.update(*states(2, 1, generator))


def test_layers_of_a_sliding_window_stay_those_of_transformers() -> None:
    config = Gemma3TextConfig(num_hidden_layers=3, layer_types=["sliding_attention", *["full_attention"] * 2])
    kinds = [type(layer) for layer in make_cache(config, 10).layers]
    assert kinds == [DynamicSlidingWindowLayer, PreallocatedLayer, PreallocatedLayer]


@pytest.mark.parametrize(("given", "after"), [("sdpa", DECODE_ATTENTION), ("eager", "eager")])
def test_only_a_model_of_scaled_dot_product_attention_is_switched(given: str, after: str) -> None:
    config = LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, head_dim=4
    )
    model = LlamaForCausalLM._from_config(config, attn_implementation=given)
    use_decode_attention(model)
    assert model.config._attn_implementation == after
