"""Groups packed into one row: the prompt of a group is run once, and each of its completions attends to it.

A packed row is prompt, completion, completion, ..., prompt, completion, ..., and padding at its end alone. A token sees
its own completion up to itself and that completion's prompt; positions go on from the prompt's end in each completion.
With 8 completions of 16 tokens on a prompt of 45, that is a third of the tokens of padded rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from pipeline.training.batching import TrainingRow
from pipeline.training.buckets import padded_length
from pipeline.training.grouped_attention import Layout
from pipeline.training.places import Places


@dataclass(frozen=True)
class PackedRow:
    """A packed row of L tokens, of which T predict a completion token.

    The T targets come in the order of the training rows. A prompt's last token predicts the first token of all its
    completions.
    """

    input_ids: torch.Tensor  # [1, L] int64
    position_ids: torch.Tensor  # [1, L] int64
    layout: Layout  # who sees whom
    predicting: torch.Tensor  # [T] int64, places in the row
    targets: torch.Tensor  # [T] int64, token ids


def cut_packed_rows(rows: Sequence[TrainingRow], indices: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut `indices` into micro-batches of at most `max_tokens` packed tokens, completions of a group side by side.

    Micro-batches are filled completion by completion; a group that is cut has its prompt run again for each piece.
    A single row longer than `max_tokens` makes a micro-batch of its own.
    """
    batches: list[list[int]] = []
    n_held, group_held = 0, ""
    for index in sorted(indices, key=lambda index: (rows[index].group_id, rows[index].completion_id)):
        row = rows[index]
        n_own = len(row.completion_token_ids)
        n_added = n_own + (0 if row.group_id == group_held else len(row.prompt_token_ids))
        if batches and n_held + n_added <= max_tokens:
            batches[-1].append(index)
            n_held += n_added
        else:
            batches.append([index])
            n_held = n_own + len(row.prompt_token_ids)
        group_held = row.group_id
    return batches


def count_packed_tokens(rows: Sequence[TrainingRow]) -> int:
    """How many tokens the packed row of `rows` has: nothing is run for a completion's last one."""
    n_prompt = sum(len(next(group).prompt_token_ids) for _, group in groupby(rows, key=_prompt_of))
    return n_prompt + sum(len(row.completion_token_ids) - 1 for row in rows)


def _prompt_of(row: TrainingRow) -> tuple[str, list[int]]:
    return row.group_id, row.prompt_token_ids


def pack_rows(rows: Sequence[TrainingRow], device: torch.device) -> PackedRow:
    """Pack `rows`, of which those of a group must stand side by side, on `device`."""
    ids: list[int] = []
    positions: list[int] = []
    prompts: list[range] = []  # places in the row
    completions: list[range] = []
    prompt_of_completion: list[int] = []
    predicting: list[int] = []
    targets: list[int] = []
    previous = None
    for row in rows:
        n_prompt = len(row.prompt_token_ids)
        if _prompt_of(row) != previous:
            previous = _prompt_of(row)
            prompts.append(range(len(ids), len(ids) + n_prompt))
            ids += row.prompt_token_ids
            positions += range(n_prompt)
        seen = row.completion_token_ids[:-1]  # nothing is predicted from the last token
        completions.append(range(len(ids), len(ids) + len(seen)))
        prompt_of_completion.append(len(prompts) - 1)
        predicting += [prompts[-1][-1], *completions[-1]]
        targets += row.completion_token_ids
        ids += seen
        positions += range(n_prompt, n_prompt + len(seen))
    padding = [0] * (padded_length(len(ids)) - len(ids))
    ids += padding
    positions += padding
    return PackedRow(
        input_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        layout=Layout.of(Places(prompts, completions, prompt_of_completion, len(ids)), device),
        predicting=torch.tensor(predicting, device=device),
        targets=torch.tensor(targets, device=device),
    )
