"""Groups packed into one row: the prompt of a group is run once, and each of its completions attends to it.

A packed row is prompt, completion, completion, ..., prompt, completion, ... without padding. A block mask lets a
token see its own completion up to itself and that completion's prompt; positions go on from the prompt's end in
each completion. With 8 completions of 16 tokens on a prompt of 45, that is a third of the tokens of padded rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pipeline.policy import Model
from pipeline.training.batching import TrainingRow
from pipeline.training.logprobs import TokenStatistics, token_statistics


@dataclass(frozen=True)
class PackedRow:
    """A packed row of L tokens, of which T predict a completion token.

    `lengths` has the number of completion tokens of each training row, in the order they were given; the T targets
    come in that order too. A prompt's last token predicts the first token of all its completions.
    """

    input_ids: torch.Tensor  # [1, L] int64
    position_ids: torch.Tensor  # [1, L] int64
    attention_mask: torch.Tensor  # [1, 1, L, L] bool, True where the query (third) sees the key (fourth)
    predicting: torch.Tensor  # [T] int64, places in the row
    targets: torch.Tensor  # [T] int64, token ids
    lengths: list[int]


def can_pack(model: Model) -> bool:
    """Whether a block mask says all there is to say of who sees whom in `model`.

    It does with plain attention in every layer; sliding windows, recurrent layers, and positions derived from the
    mask (alibi) need rows of their own. Of the attention kernels sdpa alone is told by a Boolean mask who sees whom:
    eager attention would add it to the scores as 0 and 1, without an error.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    has_window = getattr(config, "sliding_window", None) is not None and "layer_types" not in config.to_dict()
    is_plain = kinds == {"full_attention"} and not has_window and not getattr(config, "alibi", False)
    return config._attn_implementation == "sdpa" and is_plain


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


def pack_rows(rows: Sequence[TrainingRow], device: torch.device) -> PackedRow:
    """Pack `rows`, of which those of a group must stand side by side, on `device`."""
    ids: list[int] = []
    positions: list[int] = []
    segments: list[int] = []  # which prompt or completion a token belongs to
    parents: list[int] = []  # the segment of the prompt that it sees
    predicting: list[int] = []
    targets: list[int] = []
    prompt_segment, prompt_end, prompt = -1, -1, None
    for number, row in enumerate(rows):
        n_prompt = len(row.prompt_token_ids)
        if (row.group_id, row.prompt_token_ids) != prompt:
            prompt, prompt_segment = (row.group_id, row.prompt_token_ids), 2 * number
            ids += row.prompt_token_ids
            positions += range(n_prompt)
            segments += [prompt_segment] * n_prompt
            parents += [prompt_segment] * n_prompt
            prompt_end = len(ids) - 1
        seen = row.completion_token_ids[:-1]  # nothing is predicted from the last token
        predicting += [prompt_end, *range(len(ids), len(ids) + len(seen))]
        targets += row.completion_token_ids
        ids += seen
        positions += range(n_prompt, n_prompt + len(seen))
        segments += [2 * number + 1] * len(seen)
        parents += [prompt_segment] * len(seen)
    segment, parent = torch.tensor(segments), torch.tensor(parents)
    is_related = (segment[:, None] == segment) | (parent[:, None] == segment)
    return PackedRow(
        input_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        attention_mask=is_related.tril()[None, None].to(device),
        predicting=torch.tensor(predicting, device=device),
        targets=torch.tensor(targets, device=device),
        lengths=[len(row.completion_token_ids) for row in rows],
    )


def packed_statistics(model: Model, packed: PackedRow, temperature: float) -> TokenStatistics:
    """What `completion_statistics` gives for the same rows: [B, C], padded on the right with 0."""
    with torch.autocast(packed.input_ids.device.type, dtype=torch.bfloat16):
        output = model(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids,
            attention_mask=packed.attention_mask,
            use_cache=False,
            logits_to_keep=packed.predicting,
        )
    flat = token_statistics(output.logits[0], packed.targets, temperature)
    return TokenStatistics(
        *(
            torch.nn.utils.rnn.pad_sequence(list(torch.split(values, packed.lengths)), batch_first=True)
            for values in flat
        )
    )
