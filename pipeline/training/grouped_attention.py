"""Attention over a packed row: every prompt once, then all completions against their prompt and themselves.

The linear layers of a model see a packed row as it is; attention alone needs to know who sees whom. Here it
takes the row apart into padded batches, of prompts and of completions, and puts what comes out back in place. A block
mask over the whole row gives the same numbers at a cost that grows with the square of the row; on CUDA, where a kernel
skips the blocks in which nobody sees anybody, that is what is done (`block_attention.py`).

It plugs into transformers as an attention function; the layout reaches it as a keyword of the model's forward call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from transformers import AttentionInterface

from pipeline.policy import Model
from pipeline.training.block_attention import Members, attend_by_blocks
from pipeline.training.places import Places

GROUPED_ATTENTION = "rollbook_grouped"
SCORES_IN_ONE_PIECE = 1 << 21
"""On a CPU: up to so many, torch's fused kernel is slower than plain products, and their memory is no matter."""

PADDED_IN_ONE_PIECE = 1 << 12
"""Up to so many places, completions of any lengths make one batch: the padding costs less than a second call."""


@dataclass(frozen=True)
class Completions:
    """N completions up to C long that attend in one batch."""

    places: torch.Tensor  # [N, C] int64, places in the row
    prompts: torch.Tensor  # [N] int64, which of the G prompts of the layout


@dataclass(frozen=True)
class Layout:
    """Where prompts and completions are in a packed row of L tokens: G prompts up to P long, completions in batches.

    Padding, of all batches and of the row, is on the right and points at place 0; what it gives is dropped, and
    nothing real sees it.
    """

    places: Places
    prompt_places: torch.Tensor  # [G, P] int64, places in the row
    prompt_lengths: torch.Tensor  # [G] int64
    completions: list[Completions]
    restore: torch.Tensor  # [L] int64, where each token of the row is in G * P, and N * C of each batch of completions
    windows: set[int | None] = field(default_factory=set)
    """Those with which a layer attended, None where it had none."""
    masks: dict[int | None, tuple[torch.Tensor | None, list[torch.Tensor]]] = field(default_factory=dict)
    """Of `masks_for`, by window: layers share them."""

    @classmethod
    def of(cls, places: Places, device: torch.device) -> Layout:
        """The layout of the row whose prompts and completions have these places."""
        batches = batches_by_length([len(own) for own in places.completions])
        ranges = [places.prompts, *([places.completions[i] for i in batch] for batch in batches)]
        padded = [_pad_places(each) for each in ranges]
        restore = torch.zeros(places.n_tokens, dtype=torch.int64)
        first = 0
        for places_of_batch, ranges_of_batch in zip(padded, ranges, strict=True):
            for i, own in enumerate(ranges_of_batch):
                begin = first + i * places_of_batch.shape[1]
                restore[own.start : own.stop] = torch.arange(begin, begin + len(own))
            first += places_of_batch.numel()
        prompts_of = [[places.prompt_of_completion[i] for i in batch] for batch in batches]
        return cls(
            places=places,
            prompt_places=padded[0].to(device),
            prompt_lengths=torch.tensor([len(own) for own in places.prompts], device=device),
            completions=[
                Completions(own.to(device), torch.tensor(prompts, device=device))
                for own, prompts in zip(padded[1:], prompts_of, strict=True)
            ],
            restore=restore.to(device),
        )

    @cached_property
    def members(self) -> Members:
        """The same for attention by blocks, which alone needs it."""
        return Members.of(self.places, self.restore.device)

    def masks_for(self, window: int | None) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """Who sees whom, True where a query (third) sees a key (fourth).

        [1, 1, P, P] for prompts, None where that is plainly causal; [N, 1, C, P + C] for each batch of completions,
        whose keys are their prompt's and their own. A token sees `window` positions, itself among them.
        """
        if window not in self.masks:
            of_completions = [self._completion_mask(completions, window) for completions in self.completions]
            self.masks[window] = self._prompt_mask(window), of_completions
        return self.masks[window]

    def _prompt_mask(self, window: int | None) -> torch.Tensor | None:
        n_prompt = self.prompt_places.shape[1]
        if window is None or window >= n_prompt:
            return None
        at = torch.arange(n_prompt, device=self.prompt_places.device)
        return _sees(at[:, None], at, window)[None, None]

    def _completion_mask(self, completions: Completions, window: int | None) -> torch.Tensor:
        device = self.prompt_places.device
        n_prompt, n_own = self.prompt_places.shape[1], completions.places.shape[1]
        lengths = self.prompt_lengths[completions.prompts][:, None, None]
        own = lengths + torch.arange(n_own, device=device)  # [N, 1, C], positions
        prompt = torch.arange(n_prompt, device=device).expand(len(lengths), 1, n_prompt)
        query = own.transpose(1, 2)
        sees_prompt = (prompt < lengths) & _sees(query, prompt, window)
        return torch.cat([sees_prompt, _sees(query, own, window)], dim=2).unsqueeze(1)


def batches_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of `lengths` in batches, in each of which padding is at most half.

    All are one batch, in their order, where that is so anyway or they are few; else they come longest first.

    >>> batches_by_length([10, 20, 30]), batches_by_length([30, 9000, 20, 20])
    ([[0, 1, 2]], [[1, 0], [2, 3]])
    """
    n_padded = len(lengths) * max(lengths, default=0)
    if n_padded <= max(PADDED_IN_ONE_PIECE, 2 * sum(lengths)):
        return [list(range(len(lengths)))]
    batches: list[list[int]] = []
    longest = n_held = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batches and (len(batches[-1]) + 1) * longest <= 2 * (n_held + lengths[index]):
            batches[-1].append(index)
            n_held += lengths[index]
        else:
            batches.append([index])
            longest = n_held = lengths[index]
    return batches


def _pad_places(ranges: Sequence[range]) -> torch.Tensor:
    """[ranges, longest], padded on the right with place 0."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(places, dtype=torch.int64) for places in ranges], True)


def _sees(query: torch.Tensor, key: torch.Tensor, window: int | None) -> torch.Tensor:
    is_before = key <= query
    return is_before if window is None else is_before & (query - key < window)


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    layout: Layout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention [1, L, heads, size] of a packed row.

    `query` is [1, heads, L, size], `key` and `value` [1, key heads, L, size]. The signature, and the order of the
    dimensions of what comes out, are those of transformers' attention functions.
    """
    _refuse_bias(kwargs)
    layout.windows.add(sliding_window)
    if query.device.type == "cuda":
        return attend_by_blocks(module, query, key, value, layout.members, scaling, sliding_window), None
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))  # [L, heads, size]
    prompt_mask, completion_masks = layout.masks_for(sliding_window)
    prompt_query, prompt_key, prompt_value = (_batch(states, layout.prompt_places) for states in (query, key, value))
    attended = [_attend(prompt_query, prompt_key, prompt_value, prompt_mask, scaling)]
    for completions, mask in zip(layout.completions, completion_masks, strict=True):
        if not completions.places.numel():
            continue
        own_query, own_key, own_value = (_batch(states, completions.places) for states in (query, key, value))
        keys, values = (
            torch.cat([prompt.index_select(0, completions.prompts), own], dim=2)
            for prompt, own in ((prompt_key, own_key), (prompt_value, own_value))
        )
        attended.append(_attend(own_query, keys, values, mask, scaling))
    flat = torch.cat([states.transpose(1, 2).flatten(0, 1) for states in attended])  # [places in batches, heads, size]
    return flat.index_select(0, layout.restore).unsqueeze(0), None


def _batch(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """[rows, heads, length, size] of the tokens of `states` [L, heads, size] at `places` [rows, length]."""
    chosen = states.index_select(0, places.flatten())
    return chosen.view(*places.shape, *states.shape[1:]).transpose(1, 2)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """[rows, heads, queries, size]; causal where there is no mask."""
    if query.device.type != "cpu":
        return _attend_fused(query, key, value, mask, scaling)
    # In float32, whatever autocast says: the fused backward pass is twice as slow in bfloat16, the scores of plain
    # products would be rounded, and oneDNN would keep a kernel for each of the many shapes.
    with torch.autocast("cpu", enabled=False):
        wide = torch.promote_types(value.dtype, torch.float32)
        states = query.to(wide), key.to(wide), value.to(wide)
        if query.shape[:3].numel() * key.shape[2] <= SCORES_IN_ONE_PIECE:
            attended = _attend_in_one_piece(*states, mask, scaling or query.shape[3] ** -0.5)
        else:
            attended = _attend_fused(*states, mask, scaling)
        return attended.to(value.dtype)


def _attend_fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _attend_in_one_piece(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """The same with all scores in memory: few of them are several times faster so, backward above all."""
    rows, n_heads, n_queries, size = query.shape
    folded = (query * scaling).reshape(rows, key.shape[1], -1, size)  # the heads that share a key, one after another
    scores = (folded @ key.transpose(2, 3)).view(rows, n_heads, n_queries, key.shape[2])
    seen = torch.ones(n_queries, n_queries, dtype=torch.bool).tril() if mask is None else mask
    shares = scores.masked_fill(~seen, -torch.inf).softmax(dim=3)
    return (shares.view(rows, key.shape[1], -1, key.shape[2]) @ value).view(*scores.shape[:3], -1)


def _refuse_bias(kwargs: dict[str, Any]) -> None:
    """What some models add to the scores has no place here: they are run on padded rows."""
    for name in ("softcap", "position_bias", "s_aux"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"grouped attention knows no {name}")


def supports_grouped_attention(model: Model) -> bool:
    """Whether `grouped_attention` says all there is to say of who sees whom in `model`.

    It does where layers attend to everything before or to a window of it. Recurrent and chunked layers, scores that
    are capped, and positions derived from the mask (alibi) need rows of their own.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    has_other = any(
        getattr(config, name, None) for name in ("attn_logit_softcapping", "alibi", "use_bidirectional_attention")
    )
    is_plain = kinds <= {"full_attention", "sliding_attention"} and not has_other
    is_exchangeable = config._attn_implementation == "sdpa" and model._can_set_attn_implementation()
    return is_plain and (is_exchangeable or config._attn_implementation == GROUPED_ATTENTION)


def windows_of(model: Model) -> set[int]:
    """The sliding windows of the layers of `model`, each of which `grouped_attention` must be told.

    Some models tell them only to the mask, which a packed row does without.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    return {window} if window and "sliding_attention" in kinds else set()


AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)
