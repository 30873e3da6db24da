"""Attention over a packed row against plain attention with a mask over the whole row, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.training import grouped_attention as module
from pipeline.training.grouped_attention import (
    GROUPED_ATTENTION,
    Layout,
    batches_by_length,
    grouped_attention,
    supports_grouped_attention,
)
from pipeline.training.places import Places
from tests.tiny_updates import CPU

Groups = list[tuple[int, list[int]]]
"""Of each prompt in a row: its length, and those of its completions."""

States = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values [1, heads, L, size]."""

PATHS = {"in one piece": 1 << 22, "torch's": 0}
"""By name, the limit under which each way to attend is taken."""


@dataclass
class Packed:
    """A packed row of these groups: its layout, and of each token what it belongs to and where it is there."""

    layout: Layout
    members: list[tuple[int, int | None]]  # prompt, and completion or None
    positions: list[int]

    @property
    def is_seen(self) -> torch.Tensor:
        """[L, L], query and key: itself and what is before it in its completion, and in its prompt."""

        def sees(query: int, key: int) -> bool:
            same_prompt = self.members[query][0] == self.members[key][0]
            can_see = self.members[key][1] in (None, self.members[query][1])
            return same_prompt and can_see and self.positions[key] <= self.positions[query]

        places = range(len(self.positions))
        return torch.tensor([[sees(query, key) for key in places] for query in places])

    def mask(self, window: int | None) -> torch.Tensor:
        """`is_seen`, of the last `window` positions."""
        positions = torch.tensor(self.positions)
        is_near = positions[:, None] - positions < (window or len(positions))
        return self.is_seen & is_near


def pack(groups: Groups) -> Packed:
    prompts: list[range] = []
    completions: list[range] = []
    prompt_of_completion: list[int] = []
    members: list[tuple[int, int | None]] = []
    positions: list[int] = []
    for n_prompt, lengths in groups:
        prompts.append(range(len(positions), len(positions) + n_prompt))
        members += [(len(prompts) - 1, None)] * n_prompt
        positions += range(n_prompt)
        for n in lengths:
            members += [(len(prompts) - 1, len(completions))] * n
            completions.append(range(len(positions), len(positions) + n))
            positions += range(n_prompt, n_prompt + n)
            prompt_of_completion.append(len(prompts) - 1)
    places = Places(prompts, completions, prompt_of_completion, len(positions))
    return Packed(Layout.of(places, CPU), members, positions)


def plain_attention(inputs: States, mask: torch.Tensor, scaling: float) -> torch.Tensor:
    """[1, L, heads, size] in the plainest way: all scores, each key head repeated for the heads that share it."""
    query, key, value = inputs
    n_sharing = query.shape[1] // key.shape[1]
    keys, values = (states.repeat_interleave(n_sharing, dim=1) for states in (key, value))
    scores = query @ keys.transpose(2, 3) * scaling
    return (scores.masked_fill(~mask, -torch.inf).softmax(dim=-1) @ values).transpose(1, 2)


def states(n_tokens: int, n_heads: int, n_key_heads: int, size: int = 3, value_size: int = 3) -> States:
    generator = torch.Generator().manual_seed(n_tokens)

    def draw(n_heads: int, size: int) -> torch.Tensor:
        values = torch.randn(1, n_heads, n_tokens, size, generator=generator, dtype=torch.float64)
        return values.mul_(2).requires_grad_()

    return draw(n_heads, size), draw(n_key_heads, size), draw(n_key_heads, value_size)


def each(change: Callable[[torch.Tensor], torch.Tensor], inputs: States) -> States:
    query, key, value = inputs
    return change(query), change(key), change(value)


def attend(packed: Packed, inputs: States, window: int | None = None, **kwargs: Any) -> torch.Tensor:
    query, key, value = inputs
    attended, weights = grouped_attention(
        torch.nn.Module(), query, key, value, None, packed.layout, sliding_window=window, **kwargs
    )
    assert weights is None
    return attended


@pytest.fixture(params=list(PATHS.values()), ids=list(PATHS))
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to attend."""
    monkeypatch.setattr(module, "SCORES_IN_ONE_PIECE", request.param)


# --- layouts


def test_a_layout_by_hand() -> None:
    # Places: prompt 0 1 2, its completions 3 4 and 5; prompt 6, its completions none long and 7 8.
    layout = pack([(3, [2, 1]), (1, [0, 2])]).layout
    assert layout.prompt_places.tolist() == [[0, 1, 2], [6, 0, 0]]
    (completions,) = layout.completions
    assert completions.places.tolist() == [[3, 4], [5, 0], [0, 0], [7, 8]]
    assert layout.prompt_lengths.tolist() == [3, 1]
    assert completions.prompts.tolist() == [0, 0, 1, 1]
    # The 6 places of prompts come before the 8 of completions: 6 and 7, 8 and padding, two of padding, 12 and 13.
    assert layout.restore.tolist() == [0, 1, 2, 6, 7, 8, 3, 12, 13]


def test_masks_by_hand() -> None:
    layout = pack([(3, [2]), (1, [2])]).layout
    prompt_mask, (completion_mask,) = layout.masks_for(None)
    assert prompt_mask is None
    assert completion_mask.shape == (2, 1, 2, 5)
    assert completion_mask[:, 0].int().tolist() == [
        [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
        [[1, 0, 0, 1, 0], [1, 0, 0, 1, 1]],  # of its prompt the first alone is no padding
    ]


def test_masks_of_a_window_by_hand() -> None:
    prompt_mask, (completion_mask,) = pack([(3, [2]), (1, [2])]).layout.masks_for(2)
    assert prompt_mask is not None
    assert prompt_mask[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert completion_mask[:, 0].int().tolist() == [
        [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]],
        [[1, 0, 0, 1, 0], [0, 0, 0, 1, 1]],
    ]


def test_a_window_as_long_as_the_prompts_leaves_them_plainly_causal() -> None:
    layout = pack([(3, [2])]).layout
    assert layout.masks_for(3)[0] is None
    # The completion's tokens, at 3 and 4, see 1 2 3 and 2 3 4.
    assert layout.masks_for(3)[1][0][0, 0].int().tolist() == [[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]


def test_a_layout_knows_the_windows_that_layers_told_of() -> None:
    """On any device: on some, no mask is made of them."""
    packed = pack([(3, [2, 1])])
    for window in (2, None, 2):
        attend(packed, states(6, 2, 2), window)
    assert packed.layout.windows == {2, None}


def test_layers_share_masks() -> None:
    layout = pack([(3, [2])]).layout
    first, full = layout.masks_for(2), layout.masks_for(None)
    assert layout.masks_for(2) is first
    assert layout.masks_for(None) is full
    assert not torch.equal(first[1][0], full[1][0])


def test_a_long_completion_among_short_ones_is_a_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # 5 x 40 places for 56 tokens. The long one takes along one more, 2 x 40 <= 2 x (40 + 4), and no third.
    lengths = [4, 40, 4, 4, 4]
    (together,) = pack([(3, lengths)]).layout.completions
    assert together.places.shape == (5, 40)
    monkeypatch.setattr(module, "PADDED_IN_ONE_PIECE", 199)
    apart = pack([(3, lengths)]).layout.completions
    assert [each.places.shape for each in apart] == [(2, 40), (3, 4)]


@given(st.lists(st.integers(0, 50), max_size=30))
def test_batches_by_length_hold_all_and_are_at_most_half_padding(lengths: list[int]) -> None:
    with mock.patch.object(module, "PADDED_IN_ONE_PIECE", 0):
        batches = batches_by_length(lengths)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        held = [lengths[index] for index in batch]
        assert len(held) * max(held, default=0) <= 2 * sum(held)


# --- values and gradients

GROUPS = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=4)), min_size=1, max_size=3
)
"""Some with a completion of which nothing is seen, as of one that is a single token."""

WINDOWS = st.sampled_from([None, 1, 2, 3, 5, 100])


@pytest.mark.parametrize("limit", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1), (1, 1)])
@settings(max_examples=25, deadline=None)
@given(groups=GROUPS, window=WINDOWS, is_parted=st.booleans())
def test_plain_attention_agrees(
    heads: tuple[int, int], limit: int, groups: Groups, window: int | None, is_parted: bool
) -> None:
    with mock.patch.object(module, "PADDED_IN_ONE_PIECE", 0 if is_parted else 1 << 12):
        packed = pack(groups)
    inputs = states(len(packed.positions), *heads)
    with mock.patch.object(module, "SCORES_IN_ONE_PIECE", limit):
        ours = attend(packed, inputs, window, scaling=0.7)
    theirs = plain_attention(inputs, packed.mask(window), 0.7)
    assert ours.shape == theirs.shape
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = (torch.autograd.grad((attended * weights).sum(), inputs) for attended in (ours, theirs))
    for our, their in zip(*gradients, strict=True):
        assert torch.allclose(our, their, rtol=0, atol=1e-11)


@pytest.mark.usefixtures("path")
def test_scores_are_scaled_by_the_size_of_a_head_unless_told() -> None:
    packed = pack([(3, [2, 1])])
    inputs = states(6, 2, 2, size=4, value_size=4)
    assert torch.allclose(attend(packed, inputs), attend(packed, inputs, scaling=0.5))
    assert not torch.allclose(attend(packed, inputs), attend(packed, inputs, scaling=0.25))


@pytest.mark.usefixtures("path")
def test_values_may_have_another_size_than_keys() -> None:
    """As with latent attention."""
    packed = pack([(3, [2, 1]), (2, [3])])
    inputs = states(11, 4, 2, size=5, value_size=3)
    ours, theirs = attend(packed, inputs, scaling=0.4), plain_attention(inputs, packed.mask(None), 0.4)
    assert ours.shape == theirs.shape == (1, 11, 4, 3)
    assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("window", [None, 2])
def test_the_order_of_mates_changes_nothing(window: int | None) -> None:
    lengths = [3, 0, 1, 4]
    packed = pack([(4, lengths), (2, [2])])
    n_first = 4 + sum(lengths)
    inputs = states(n_first + 4, 4, 2)
    expected = attend(packed, inputs, window)
    places = {i: [at for at, member in enumerate(packed.members) if member == (0, i)] for i in range(4)}
    for order in itertools.permutations(range(4)):
        moved = [*range(4), *(at for i in order for at in places[i]), *range(n_first, n_first + 4)]
        reordered = pack([(4, [lengths[i] for i in order]), (2, [2])])
        found = attend(reordered, each(partial(torch.index_select, dim=2, index=torch.tensor(moved)), inputs), window)
        assert torch.allclose(found, expected[:, moved], rtol=0, atol=1e-12)


@pytest.mark.usefixtures("path")
def test_a_completion_does_not_depend_on_its_mates() -> None:
    packed = pack([(3, [2, 3]), (2, [2])])
    inputs = states(12, 2, 1)
    places = torch.arange(5, 8)  # the first prompt's second completion
    changed = each(lambda values: values.index_fill(2, places, 7.0), inputs)
    before, after = attend(packed, inputs), attend(packed, changed)
    kept = [0, 1, 2, 3, 4, 8, 9, 10, 11]
    assert torch.equal(before[:, kept], after[:, kept])
    assert not torch.allclose(before[:, 5:8], after[:, 5:8])


@pytest.mark.parametrize("name", ["softcap", "position_bias", "s_aux"])
def test_what_would_change_the_scores_is_refused(name: str) -> None:
    packed, inputs = pack([(3, [2])]), states(5, 2, 2)
    assert attend(packed, inputs, None, **{name: None}).shape == (1, 5, 2, 3)
    with pytest.raises(NotImplementedError, match=name):
        attend(packed, inputs, None, **{name: 30.0})


# --- which models it serves


class Config:
    """What `supports_grouped_attention` asks of a model's config."""

    def __init__(self, attention: str, **settings: Any) -> None:
        self._attn_implementation = attention
        self.__dict__.update(settings)

    def get_text_config(self) -> Config:
        return self


@dataclass
class WithConfig:
    """What it asks of a model."""

    config: Config
    can_set: bool = True

    def _can_set_attn_implementation(self) -> bool:
        return self.can_set


@pytest.mark.parametrize(
    ("config", "can"),
    [
        (Config("sdpa"), True),
        (Config("sdpa", sliding_window=None), True),
        (Config("sdpa", sliding_window=4096), True),
        (Config("sdpa", layer_types=["full_attention"] * 2, sliding_window=4096), True),
        (Config("sdpa", layer_types=["full_attention", "sliding_attention"]), True),
        (Config("sdpa", layer_types=["full_attention", "linear_attention"]), False),
        (Config("sdpa", layer_types=["full_attention", "chunked_attention"]), False),
        (Config("sdpa", attn_logit_softcapping=50.0), False),
        (Config("sdpa", attn_logit_softcapping=None, final_logit_softcapping=30.0), True),
        (Config("sdpa", alibi=True), False),
        (Config("sdpa", alibi=False), True),
        (Config("sdpa", use_bidirectional_attention=True), False),
        (Config("eager"), False),
        (Config("flash_attention_2"), False),
        (Config(GROUPED_ATTENTION), True),
    ],
)
def test_models_that_it_serves(config: Config, can: bool) -> None:
    assert supports_grouped_attention(WithConfig(config)) is can


def test_a_model_whose_attention_cannot_be_exchanged_is_not_served() -> None:
    assert not supports_grouped_attention(WithConfig(Config("sdpa"), can_set=False))
