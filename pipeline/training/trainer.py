"""The update loop: optimizer steps over micro-batches, metrics per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import torch

from pipeline.errors import BadInput
from pipeline.params import TrainingParams
from pipeline.policy import Model
from pipeline.sampling.stopping import Stops
from pipeline.tables import TOKEN_LOGPROBS, TRAIN_STEPS
from pipeline.training.batching import Step, TrainingRow, completion_mask, count_completion_tokens
from pipeline.training.distributed import ALONE, Ranks
from pipeline.training.forward import row_statistics
from pipeline.training.heap import trim_heap
from pipeline.training.logprobs import Entropy
from pipeline.training.loss import Loss, StepSize, TokenLogprobs, grpo_loss
from pipeline.training.memory import micro_batch_named
from pipeline.training.recording import Logprobs, OnProgress, pad, unpad
from pipeline.training.schedule import learning_rate_at


@dataclass
class Trainer:
    """What an update needs, and what it records while it goes on.

    `first_step` is the number of optimizer steps that the run took before. `metrics` are those of the steps that this
    update has taken, where it goes on from a checkpoint with what that holds. `stops` are those of sampling, needed
    where it had a minimum of tokens.
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
    metrics: list[dict[str, Any]] = field(default_factory=list)
    ranks: Ranks = ALONE
    stops: Stops | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    def run(
        self, steps: Sequence[Step], on_step: Callable[[], None] = lambda: None
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Take the optimizer steps that are not taken yet; return the tables `train_steps` and `token_logprobs`.

        `on_step` is called after each.

        Raises:
            MicroBatchTooLarge: the memory is used up; `metrics` says how many steps were taken.
        """
        for number in range(len(self.metrics), len(steps)):
            self.metrics.append(self._take_step(self.first_step + number, steps[number]))
            on_step()
        return pl.DataFrame(self.metrics, schema=TRAIN_STEPS.schema), self._token_logprobs(steps)

    def _take_step(self, number: int, step: Step) -> dict[str, Any]:
        n_tokens = count_completion_tokens(self.rows, step.rows)
        size = StepSize(len(step.rows), n_tokens, self.max_completion_tokens)
        losses: list[Loss] = []
        entropy = 0.0
        self.optimizer.zero_grad(set_to_none=True)
        for turn in self.ranks.share(step.micro_batches):
            with micro_batch_named([self.rows[row] for row in turn.rows]):
                loss, entropy_sum = self._run_micro_batch(turn.rows, size)
                self._save_memory()
                (turn.weight * loss.loss).backward()  # type: ignore[no-untyped-call]
                self._save_memory()
            if turn.weight:
                losses.append(loss)
                entropy += entropy_sum
            self.on_progress(len(turn.rows_of_all), count_completion_tokens(self.rows, turn.rows_of_all))
        if not self.metrics:
            self.old = self.ranks.merge(self.old)
        own = {**summarize(losses, n_tokens, self.reference is not None), "entropy": entropy / n_tokens}
        learning_rate = learning_rate_at(self.params, number)
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
            **combine(self.ranks.gather(own)),
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
        }

    def _run_micro_batch(self, indices: list[int], size: StepSize) -> tuple[Loss, float]:
        rows = [self.rows[index] for index in indices]
        is_entropy_trained = self.params.entropy_coefficient > 0
        wanted: Entropy = "trained" if is_entropy_trained else "measured"
        current, entropy = row_statistics(self.model, rows, self.temperature, wanted, self.stops)
        if indices[0] not in self.old:
            # The first step's own forward pass, before it changes anything, gives `old`.
            self.old.update(unpad(current, indices, self.rows))
        logprobs = TokenLogprobs(
            current=current,
            old=pad(self.old, indices, current),
            sampling=pad({index: self.rows[index].sampling_logprobs for index in indices}, indices, current),
            reference=None if self.reference is None else pad(self.reference, indices, current),
            entropy=entropy if is_entropy_trained else None,
        )
        advantages = torch.tensor([row.advantage for row in rows], dtype=torch.float32, device=self.device)
        mask = completion_mask(rows, self.device)
        loss = grpo_loss(logprobs, advantages, mask, size, self.params)
        return loss, float(entropy.detach()[mask].sum())

    def _save_memory(self) -> None:
        """Between passes, where memory is wanted more than time."""
        if self.params.gradient_checkpointing:
            trim_heap()

    def _clip_gradients(self, number: int) -> float:
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for parameter in parameters:
            if parameter.grad is None:
                # No token reached it (an expert, say). Adam would skip it, and its count of steps would fall behind.
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.sum_gradients(parameters)
        norm = self.ranks.clip_gradients(parameters, self.params.max_grad_norm)
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


def summarize(losses: Sequence[Loss], n_tokens: int, has_reference: bool) -> dict[str, float | None]:
    """What the losses of some micro-batches give to the metrics of their step, which has `n_tokens` tokens."""

    def total(name: str) -> float:
        return float(sum(getattr(loss, name).double() for loss in losses))

    return {
        "loss": float(sum(loss.loss.detach().double() for loss in losses)),
        "policy_loss": total("policy_loss"),
        "kl": total("kl_sum") / n_tokens if has_reference else None,
        "clip_fraction_low": total("clip_low_sum") / n_tokens,
        "clip_fraction_high": total("clip_high_sum") / n_tokens,
        "ratio_max": max((float(loss.ratio_max) for loss in losses), default=0.0),
        "sampling_kl": total("sampling_kl_sum") / n_tokens,
    }


def combine(parts: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    """The metrics of a step from what each rank gives to them: sums, but for the largest ratio.

    >>> combine([{"kl": 0.25, "ratio_max": 1.5}, {"kl": 0.5, "ratio_max": 1.25}])
    {'kl': 0.75, 'ratio_max': 1.5}
    """
    combined: dict[str, float | None] = {}
    for name in parts[0]:
        values = [value for part in parts if (value := part[name]) is not None]
        combined[name] = (max(values) if name == "ratio_max" else sum(values)) if values else None
    return combined
