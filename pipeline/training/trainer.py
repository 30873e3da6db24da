"""The update loop: log-probabilities on record, optimizer steps over micro-batches, metrics per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch

from pipeline.errors import BadInput
from pipeline.params import TrainingParams
from pipeline.policy import Model
from pipeline.tables import TOKEN_LOGPROBS, TRAIN_STEPS
from pipeline.training.batching import Batch, Step, TrainingRow, collate
from pipeline.training.logprobs import TokenStatistics, completion_statistics
from pipeline.training.loss import Loss, StepSize, TokenLogprobs, grpo_loss
from pipeline.training.packing import can_pack, pack_rows, packed_statistics

Logprobs = dict[int, list[float]]
"""Log-probabilities of the completion tokens of a row, by the row's index."""

OnProgress = Callable[[int, int], None]
"""Called with the number of completions and of completion tokens that were just run."""


@dataclass
class Trainer:
    """What an update needs, and what it records while it goes on.

    `first_step` is the number of optimizer steps that the run took before.
    """

    model: Model
    optimizer: torch.optim.AdamW
    rows: Sequence[TrainingRow]
    params: TrainingParams
    temperature: float
    max_completion_tokens: int
    iteration: int
    first_step: int
    old: Logprobs
    reference: Logprobs | None
    on_progress: OnProgress

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    def run(self, steps: Sequence[Step]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Take the optimizer steps; return the tables `train_steps` and `token_logprobs`."""
        metrics = [self._take_step(self.first_step + number, step) for number, step in enumerate(steps)]
        return pl.DataFrame(metrics, schema=TRAIN_STEPS.schema), self._token_logprobs(steps)

    def _take_step(self, number: int, step: Step) -> dict[str, Any]:
        n_tokens = sum(len(self.rows[row].completion_token_ids) for row in step.rows)
        size = StepSize(len(step.rows), n_tokens, self.max_completion_tokens)
        losses: list[Loss] = []
        entropy = 0.0
        self.optimizer.zero_grad(set_to_none=True)
        for indices in step.micro_batches:
            loss, entropy_sum = self._run_micro_batch(indices, size)
            loss.loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss)
            entropy += entropy_sum
            self.on_progress(len(indices), sum(len(self.rows[row].completion_token_ids) for row in indices))
        learning_rate = warm_up(self.params, number)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        grad_norm = self._clip_gradients(number)
        self.optimizer.step()
        return {
            "iteration": self.iteration,
            "step": number,
            "epoch": step.epoch,
            "n_completions": size.n_completions,
            "n_tokens": size.n_tokens,
            **summarize(losses, n_tokens, has_reference=self.reference is not None),
            "entropy": entropy / n_tokens,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
        }

    def _run_micro_batch(self, indices: list[int], size: StepSize) -> tuple[Loss, float]:
        rows = [self.rows[row] for row in indices]
        batch = collate(rows, self.device)
        current, entropy = row_statistics(self.model, rows, batch, self.temperature)
        mask = batch.completion_mask
        if indices[0] not in self.old:
            # The first use of these rows in an update of one step: its own forward pass gives `old`.
            _record(self.old, indices, current, mask)
        logprobs = TokenLogprobs(
            current=current,
            old=_padded(self.old, indices, current),
            sampling=batch.sampling_logprobs,
            reference=None if self.reference is None else _padded(self.reference, indices, current),
        )
        loss = grpo_loss(logprobs, batch.advantages, mask, size, self.params)
        return loss, float(entropy[mask].sum())

    def _clip_gradients(self, number: int) -> float:
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for parameter in parameters:
            if parameter.grad is None:
                # No token reached it (an expert, say). Adam would skip it, and its count of steps would fall behind.
                parameter.grad = torch.zeros_like(parameter)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.params.max_grad_norm))
        if not norm < float("inf"):
            problem = f"the gradient of step {number} is not finite ({norm}); the policy stays as it was"
            raise BadInput("data/training_set.parquet", problem, "Lower training.learning_rate, or look at its rows")
        return norm

    def _token_logprobs(self, steps: Sequence[Step]) -> pl.DataFrame:
        used: dict[int, list[int]] = {}
        for number, step in enumerate(steps):
            for row in step.rows:
                used.setdefault(row, []).append(self.first_step + number)
        records = [
            {
                "iteration": self.iteration,
                "completion_id": self.rows[row].completion_id,
                "steps": numbers,
                "old_logprobs": self.old[row],
                "ref_logprobs": None if self.reference is None else self.reference[row],
            }
            for row, numbers in used.items()
        ]
        return pl.DataFrame(records, schema=TOKEN_LOGPROBS.schema)


def row_statistics(model: Model, rows: Sequence[TrainingRow], batch: Batch, temperature: float) -> TokenStatistics:
    """Statistics [B, C] of the rows of `batch`, packed where the model allows it, padded elsewhere."""
    if can_pack(model):
        return packed_statistics(model, pack_rows(rows, batch.input_ids.device), temperature)
    return completion_statistics(model, batch, temperature)


def record_logprobs(
    model: Model,
    rows: Sequence[TrainingRow],
    steps: Sequence[Step],
    temperature: float,
    on_progress: OnProgress,
    mode: AbstractContextManager[Any],
) -> Logprobs:
    """Log-probabilities of all rows under `model` within the context `mode`, without gradients.

    The micro-batches are those of the first epoch of `steps`, so that a first step sees a ratio of exactly 1.
    """
    recorded: Logprobs = {}
    with torch.no_grad(), mode:
        for indices in (batch for step in steps if step.epoch == 0 for batch in step.micro_batches):
            chosen = [rows[row] for row in indices]
            batch = collate(chosen, model.device)
            logprobs, _ = row_statistics(model, chosen, batch, temperature)
            _record(recorded, indices, logprobs, batch.completion_mask)
            on_progress(len(indices), int(batch.completion_mask.sum()))
    return recorded


def warm_up(params: TrainingParams, step: int) -> float:
    """The learning rate of the run's `step`, from 0: linear up to step `warmup_steps`, then constant.

    >>> [warm_up(TrainingParams(learning_rate=1.0, warmup_steps=4), step) for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """
    return params.learning_rate * min(1.0, (step + 1) / max(1, params.warmup_steps))


def summarize(losses: Sequence[Loss], n_tokens: int, has_reference: bool) -> dict[str, float | None]:
    """The metrics of a step from the losses of its micro-batches; `n_tokens` is the step's."""

    def total(name: str) -> float:
        return float(sum(getattr(loss, name).double() for loss in losses))

    return {
        "loss": float(sum(loss.loss.detach().double() for loss in losses)),
        "policy_loss": total("policy_loss"),
        "kl": total("kl_sum") / n_tokens if has_reference else None,
        "clip_fraction_low": total("clip_low_sum") / n_tokens,
        "clip_fraction_high": total("clip_high_sum") / n_tokens,
        "ratio_max": max(float(loss.ratio_max) for loss in losses),
        "sampling_kl": total("sampling_kl_sum") / n_tokens,
    }


def _record(recorded: Logprobs, indices: list[int], logprobs: torch.Tensor, mask: torch.Tensor) -> None:
    lengths = mask.sum(dim=1).tolist()
    for row, values, length in zip(indices, logprobs.detach().cpu().tolist(), lengths, strict=True):
        recorded[row] = values[:length]


def _padded(recorded: Logprobs, indices: list[int], like: torch.Tensor) -> torch.Tensor:
    padded = torch.zeros(like.shape)
    for place, row in enumerate(indices):
        padded[place, : len(recorded[row])] = torch.tensor(recorded[row])
    return padded.to(like.device)
