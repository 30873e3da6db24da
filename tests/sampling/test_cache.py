"""The cache in steps against the cache of transformers; rows that leave it and rows that are added."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from pipeline.sampling import cache as cache_module
from pipeline.sampling.cache import SteppedLayer, can_join, join_caches, make_cache

KEY_HEADS = 2


def states(rows: int, n_positions: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (rows, KEY_HEADS, n_positions, 4)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers that grow many times in a test."""
    monkeypatch.setattr(cache_module, "STEP", 4)


@pytest.mark.parametrize("seed", range(20))
def test_stepped_layer_is_a_dynamic_layer(seed: int) -> None:
    """A prefill, then random appends, expansions, shuffles and departures of rows."""
    generator = torch.Generator().manual_seed(seed)

    def pick(high: int) -> int:
        return int(torch.randint(1, high + 1, (), generator=generator))

    ours, theirs = SteppedLayer(), DynamicLayer()
    rows = pick(5)
    new = states(rows, pick(7), generator)
    assert ours.get_seq_length() == theirs.get_seq_length() == 0
    assert ours.get_mask_sizes(7) == theirs.get_mask_sizes(7)
    for _ in range(12):
        n_shown, _ = ours.get_mask_sizes(new[0].shape[2])
        for mine, other in zip(ours.update(*new), theirs.update(*new), strict=True):
            length = other.shape[2]
            assert mine.shape[2] == n_shown
            assert torch.equal(mine[:, :, :length], other)
            assert not mine[:, :, length:].any()
        n_kept = pick(2 * rows) if pick(3) == 1 else pick(rows)
        indices = torch.randint(0, rows, (n_kept,), generator=generator)
        ours.reorder_cache(indices)
        theirs.reorder_cache(indices)
        rows = n_kept
        assert torch.equal(ours.keys[:, :, : ours.length], theirs.keys)
        assert torch.equal(ours.values[:, :, : ours.length], theirs.values)
        assert ours.get_seq_length() == theirs.get_seq_length()
        new = states(rows, 1, generator)


def test_a_step_is_shown_whole_buffers_and_a_prefill_what_it_filled() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = SteppedLayer()
    assert layer.get_mask_sizes(5) == (5, 0)
    assert layer.get_mask_sizes(1) == (1, 0)
    keys, _ = layer.update(*states(2, 5, generator))
    assert keys.shape[2] == 5
    assert layer.get_mask_sizes(1) == (8, 0)
    keys, _ = layer.update(*states(2, 1, generator))
    assert keys.shape[2] == 8
    assert keys.is_contiguous()


def test_appending_and_leaving_copy_nothing_that_stays() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = SteppedLayer()
    layer.update(*states(4, 3, generator))
    storage = layer.keys.data_ptr()
    keys, _ = layer.update(*states(4, 1, generator))
    assert keys.data_ptr() == storage
    layer.reorder_cache(torch.tensor([0, 3]))
    assert layer.keys.data_ptr() == storage
    assert layer.keys.shape == (2, KEY_HEADS, 4, 4)
    assert layer.keys.is_contiguous()
    keys, _ = layer.update(*states(2, 1, generator))
    assert keys.shape[2] == 8


def test_layers_of_a_sliding_window_stay_those_of_transformers() -> None:
    config = Gemma3TextConfig(num_hidden_layers=3, layer_types=["sliding_attention", *["full_attention"] * 2])
    kinds = [type(layer) for layer in make_cache(config).layers]
    assert kinds == [DynamicSlidingWindowLayer, SteppedLayer, SteppedLayer]
    assert not can_join(make_cache(config))
    assert can_join(make_cache(LlamaConfig(num_hidden_layers=2)))


@pytest.mark.parametrize(("n_own", "n_cut", "n_other"), [(5, 2, 3), (5, 2, 1), (3, 0, 6), (4, 3, 1)])
def test_rows_that_are_added_end_where_those_do_that_were_there(n_own: int, n_cut: int, n_other: int) -> None:
    generator = torch.Generator().manual_seed(0)
    config = LlamaConfig(num_hidden_layers=1)
    cache, other = make_cache(config), make_cache(config)
    own_states, other_states = states(3, n_own, generator), states(2, n_other, generator)
    cache.update(*own_states, 0)
    other.update(*other_states, 0)
    length = max(n_own - n_cut, n_other)
    join_caches(cache, other, n_cut)
    assert cache.get_seq_length() == length
    last = states(5, 1, generator)
    for joined, own, added, newest in zip(cache.update(*last, 0), own_states, other_states, last, strict=True):
        expected = torch.zeros_like(joined)
        expected[:3, :, length - (n_own - n_cut) : length] = own[:, :, n_cut:]
        expected[3:, :, length - n_other : length] = added
        expected[:, :, length : length + 1] = newest
        assert torch.equal(joined, expected)
