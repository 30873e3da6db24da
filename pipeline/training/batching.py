"""Which completions an optimizer step uses, how they are cut into micro-batches, and rows as padded tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl
import torch

from pipeline.seeds import stable_hash


@dataclass(frozen=True)
class TrainingRow:
    """A row of the table `training_set`."""

    completion_id: str
    group_id: str
    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    sampling_logprobs: list[float]
    advantage: float


Cut = Callable[[Sequence[int]], list[list[int]]]
"""Indices of rows -> the indices in each micro-batch."""


@dataclass(frozen=True)
class Step:
    """An optimizer step: its epoch, and the indices of the rows in each of its micro-batches."""

    epoch: int
    micro_batches: list[list[int]]

    @property
    def rows(self) -> list[int]:
        """All its rows."""
        return [row for batch in self.micro_batches for row in batch]


@dataclass(frozen=True)
class PaddedRows:
    """B rows: prompts of up to P tokens padded on the left, completions of up to C on the right.

    What is padding is told by the masks alone; padding may have the id of a real token.
    """

    input_ids: torch.Tensor  # [B, P + C] int64
    attention_mask: torch.Tensor  # [B, P + C] int64, 1 at real tokens
    position_ids: torch.Tensor  # [B, P + C] int64, from 0 at the first real token
    completion_ids: torch.Tensor  # [B, C] int64
    completion_mask: torch.Tensor  # [B, C] bool, of `completion_mask`


def read_rows(training_set: pl.DataFrame, mask_truncated: bool) -> list[TrainingRow]:
    """The rows to train on: all, or with `mask_truncated` those that came to an end."""
    rows = training_set.filter(~pl.col("is_truncated")) if mask_truncated else training_set
    columns = list(TrainingRow.__dataclass_fields__)
    return [TrainingRow(**row) for row in rows.select(columns).iter_rows(named=True)]


def count_completion_tokens(rows: Sequence[TrainingRow], indices: Sequence[int]) -> int:
    """The completion tokens of the rows at `indices`."""
    return sum(len(rows[index].completion_token_ids) for index in indices)


def plan_steps(rows: Sequence[TrainingRow], epochs: int, minibatches: int, cut: Cut, *seed_parts: object) -> list[Step]:
    """`epochs` passes over the rows, each parted into up to `minibatches` steps of whole groups in a seeded order.

    `cut` cuts the rows of a step, given by their indices, into micro-batches.
    """
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.group_id, []).append(index)
    steps: list[Step] = []
    for epoch in range(epochs):

        def order(group: str, epoch: int = epoch) -> str:
            return stable_hash(*seed_parts, epoch, group)

        shuffled = sorted(groups, key=order)
        for part in range(min(minibatches, len(groups))):
            chosen = [index for group in shuffled[part::minibatches] for index in groups[group]]
            steps.append(Step(epoch, cut(chosen)))
    return steps


def cut_padded_rows(rows: Sequence[TrainingRow], indices: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut `indices` into micro-batches of at most `max_tokens` tokens, padding included, longest first.

    Rows come by length, so that little is padding. A row that alone is longer makes a micro-batch of its own.
    """

    def lengths(index: int) -> tuple[int, int]:
        return len(rows[index].completion_token_ids), len(rows[index].prompt_token_ids)

    batches: list[list[int]] = []
    widest = (0, 0)
    for index in sorted(indices, key=lambda index: (*lengths(index), rows[index].completion_id), reverse=True):
        own = lengths(index)
        wider = (max(widest[0], own[0]), max(widest[1], own[1]))
        if batches and sum(wider) * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
            wider = own
        widest = wider
    return batches


def completion_mask(rows: Sequence[TrainingRow], device: torch.device) -> torch.Tensor:
    """[B, C] bool, True where the loss applies: at the tokens of the completions of `rows`."""
    lengths = torch.tensor([[len(row.completion_token_ids)] for row in rows])
    return (torch.arange(int(lengths.max())) < lengths).to(device)


def pad_rows(rows: Sequence[TrainingRow], device: torch.device) -> PaddedRows:
    """The tokens of `rows` on `device`."""
    mask = completion_mask(rows, device)
    n_prompt = max(len(row.prompt_token_ids) for row in rows)
    input_ids = torch.zeros((len(rows), n_prompt + mask.shape[1]), dtype=torch.int64)
    attention_mask = torch.zeros_like(input_ids)
    for i, row in enumerate(rows):
        start, end = n_prompt - len(row.prompt_token_ids), n_prompt + len(row.completion_token_ids)
        input_ids[i, start:end] = torch.tensor(row.prompt_token_ids + row.completion_token_ids)
        attention_mask[i, start:end] = 1
    return PaddedRows(
        input_ids=input_ids.to(device),
        attention_mask=attention_mask.to(device),
        position_ids=(attention_mask.cumsum(dim=1) - 1).clamp(min=0).to(device),
        completion_ids=input_ids[:, n_prompt:].to(device),
        completion_mask=mask,
    )
