"""Log-probabilities on record: the old policy's and the reference's, and the KL that is taken from the reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipeline.params import SamplingParams
from pipeline.policy import Model, end_token_ids, load_tokenizer
from pipeline.sampling.stopping import Stops, make_stops
from pipeline.training.batching import Step, TrainingRow, count_completion_tokens
from pipeline.training.distributed import ALONE, Ranks
from pipeline.training.forward import row_statistics
from pipeline.training.kl import completion_kl, penalize_kl
from pipeline.training.memory import micro_batch_named

Logprobs = dict[int, list[float]]
"""Log-probabilities of the completion tokens of a row, by the row's index."""

OnProgress = Callable[[int, int], None]
"""Called with the number of completions and of completion tokens that were just run."""


def stops_that_bar(params: SamplingParams, model: Model, base: Path) -> Stops | None:
    """What ended completions of `model`, whose tokenizer is in `base`, where log-probabilities depend on it."""
    if not params.min_completion_tokens:
        return None
    return make_stops(params, end_token_ids(model, load_tokenizer(base)))


def record_logprobs(
    model: Model,
    rows: Sequence[TrainingRow],
    steps: Sequence[Step],
    temperature: float,
    on_progress: OnProgress,
    mode: AbstractContextManager[Any],
    ranks: Ranks = ALONE,
    stops: Stops | None = None,
) -> Logprobs:
    """Log-probabilities under `model`, within the context `mode` and without gradients, of the rows of `steps`.

    The micro-batches are those of the first epoch, on the same ranks, so that a first step sees a ratio of exactly 1.
    """
    recorded: Logprobs = {}
    with torch.no_grad(), mode:
        for turn in (turn for step in steps if step.epoch == 0 for turn in ranks.share(step.micro_batches)):
            chosen = [rows[row] for row in turn.rows]
            with micro_batch_named(chosen):
                logprobs, _ = row_statistics(model, chosen, temperature, "left_out", stops)
            recorded |= unpad(logprobs, turn.rows, rows)
            on_progress(len(turn.rows_of_all), count_completion_tokens(rows, turn.rows_of_all))
    return ranks.merge(recorded)


def unpad(logprobs: torch.Tensor, indices: Sequence[int], rows: Sequence[TrainingRow]) -> Logprobs:
    """`logprobs` [B, C] of the rows at `indices` as lists, without padding."""
    values = logprobs.detach().cpu().tolist()
    return {
        index: padded[: len(rows[index].completion_token_ids)] for index, padded in zip(indices, values, strict=True)
    }


def pad(recorded: Logprobs, indices: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """What is recorded of the rows at `indices` as a tensor of the shape and place of `like` [B, C], padded with 0."""
    padded = torch.zeros(like.shape)
    for place, index in enumerate(indices):
        padded[place, : len(recorded[index])] = torch.tensor(recorded[index])
    return padded.to(like.device)


def take_kl_from_reward(
    rows: Sequence[TrainingRow], old: Logprobs, reference: Logprobs, coefficient: float, baseline: str
) -> list[TrainingRow]:
    """The rows with the advantages of rewards from which the KL was taken, see `penalize_kl`."""
    advantages = penalize_kl(
        advantages=[row.advantage for row in rows],
        kl=[completion_kl(old[index], reference[index]) for index in range(len(rows))],
        group_ids=[row.group_id for row in rows],
        coefficient=coefficient,
        baseline=baseline,
    )
    return [replace(row, advantage=advantage) for row, advantage in zip(rows, advantages, strict=True)]
