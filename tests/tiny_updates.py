"""Rows to train on, and updates of a tiny model: what the tests of the trainer have in common."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch

from pipeline.params import TrainingParams
from pipeline.policy import Model, load_model
from pipeline.training.batching import Step, TrainingRow
from pipeline.training.distributed import ALONE, Ranks
from pipeline.training.forward import plan_update, prepare_model
from pipeline.training.recording import Logprobs, record_logprobs
from pipeline.training.state import TrainerState, make_optimizer
from pipeline.training.trainer import Trainer

CPU = torch.device("cpu")
TEMPERATURE = 0.8
MAX_COMPLETION_TOKENS = 8
VOCABULARY = 99
"""That of `build_tiny_model`."""


FREE = {"kl_coefficient": 0.0, "sampling_ratio_cap": None, "max_grad_norm": 1e9}
"""Settings under which the loss is the policy term alone, and the gradient is left as it is."""


def training_params(**changes: Any) -> TrainingParams:
    """Settings under which a tiny model moves visibly in one step."""
    return TrainingParams(**{"learning_rate": 3e-2, "max_tokens_per_microbatch": 64, **changes})


def random_rows(n_groups: int = 4, group_size: int = 3, seed: int = 0) -> list[TrainingRow]:
    """Groups of random tokens, 2 to 8 of the prompt and 1 to 6 of each completion, whose advantages sum to 0."""
    draw = random.Random(seed)
    rows: list[TrainingRow] = []
    for group in range(n_groups):
        prompt = [draw.randrange(VOCABULARY) for _ in range(draw.randint(2, 8))]
        rewards = [draw.gauss(0, 1) for _ in range(group_size)]
        for index in range(group_size):
            completion = [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 6))]
            rows.append(
                TrainingRow(
                    completion_id=f"0000/{group:04d}/{index}",
                    group_id=f"0000/{group:04d}",
                    prompt_token_ids=prompt,
                    completion_token_ids=completion,
                    sampling_logprobs=[draw.uniform(-6, -3) for _ in completion],
                    advantage=rewards[index] - sum(rewards) / group_size,
                )
            )
    return rows


def plan(model: Model, rows: Sequence[TrainingRow], params: TrainingParams) -> list[Step]:
    """The steps of an update, as the stage plans them."""
    return plan_update(model, rows, params, 0)


def record(
    model: Model, rows: Sequence[TrainingRow], steps: Sequence[Step], mode: Any = None, ranks: Ranks = ALONE
) -> Logprobs:
    """Log-probabilities of `rows` under `model`."""
    mode = mode or contextlib.nullcontext()
    return record_logprobs(model, rows, steps, TEMPERATURE, lambda *_: None, mode, ranks)


@dataclass
class Update:
    """An update of a model, ready to run."""

    trainer: Trainer
    steps: list[Step]

    def run(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The tables `train_steps` and `token_logprobs`."""
        return self.trainer.run(self.steps)

    @property
    def gradients(self) -> dict[str, torch.Tensor]:
        """Of the last step, by the parameter's name."""
        named = self.trainer.model.named_parameters()
        return {name: value.grad.clone() for name, value in named if value.grad is not None}

    def then(self, rows: Sequence[TrainingRow]) -> Update:
        """The next iteration, with the same model and optimizer."""
        trainer = self.trainer
        params, first_step = trainer.params, trainer.first_step + len(self.steps)
        return prepare(trainer.model, rows, params, optimizer=trainer.optimizer, state=TrainerState(step=first_step))


def prepare(
    model: Model,
    rows: Sequence[TrainingRow],
    params: TrainingParams,
    *,
    state: TrainerState | None = None,
    optimizer: torch.optim.AdamW | None = None,
    reference: Logprobs | None = None,
    ranks: Ranks = ALONE,
) -> Update:
    """An update of `model` on `rows`, as the stage prepares it; `reference` is given or there is none."""
    state = state or TrainerState()
    optimizer = optimizer or make_optimizer(model, state, params)
    steps = plan(model, rows, params)
    trainer = Trainer(
        model=model,
        optimizer=optimizer,
        rows=rows,
        params=params,
        temperature=TEMPERATURE,
        max_completion_tokens=MAX_COMPLETION_TOKENS,
        iteration=0,
        first_step=state.step,
        old=record(model, rows, steps[1:], ranks=ranks),
        reference=reference,
        on_progress=lambda *_: None,
        ranks=ranks,
    )
    return Update(trainer, steps)


def load_trainable(policy: Path, base: Path, dtype: torch.dtype = torch.float32) -> Model:
    """The policy in `policy` to be trained on the CPU."""
    return ready(load_model(policy, base, CPU, dtype, is_trainable=True))


def ready(model: Model) -> Model:
    """`model`, made ready for `row_statistics`."""
    prepare_model(model)
    return model


def weights_of(model: Model) -> dict[str, torch.Tensor]:
    """Copies of the trainable parameters."""
    return {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}


def with_own_sampling(rows: Sequence[TrainingRow], logprobs: Logprobs) -> list[TrainingRow]:
    """The rows as though the sampling engine had given exactly `logprobs`."""
    return [replace(row, sampling_logprobs=logprobs[index]) for index, row in enumerate(rows)]


def distance(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Norm of the difference of two sets of tensors, in units of the norm of `theirs`."""
    assert ours.keys() == theirs.keys()
    off = math.fsum((ours[name] - theirs[name]).double().square().sum().item() for name in theirs)
    return math.sqrt(off / math.fsum(value.double().square().sum().item() for value in theirs.values()))
