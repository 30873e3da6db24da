"""The loss token by token in plain Python floats: a second opinion, and the random micro-batches to ask it about."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.params import TrainingParams
from pipeline.training.loss import Loss, StepSize, TokenLogprobs, grpo_loss

AGGREGATIONS = ("grpo", "dapo", "dr_grpo")

Rows = list[list[float]]


def params_of(loss: str = "grpo", **changes: Any) -> TrainingParams:
    """Settings without a correction of the sampling engine's probabilities."""
    return TrainingParams(**{"learning_rate": 1.0, "loss": loss, "sampling_ratio_cap": None, **changes})


def double(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    """[B, C], padded on the right with 0."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)


def mask_of(rows: Sequence[Sequence[object]]) -> torch.Tensor:
    """[B, C], True where `rows` have an entry."""
    return double([[1.0] * len(row) for row in rows]).bool()


def size_of(mask: torch.Tensor, max_completion_tokens: int = 10) -> StepSize:
    """That of a step of a single micro-batch."""
    return StepSize(int(mask.any(dim=1).sum()), int(mask.sum()), max_completion_tokens)


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch as lists: a row per completion, unmasked tokens and others."""

    current: Rows
    old: Rows
    sampling: Rows
    reference: Rows
    advantages: list[float]
    mask: list[list[bool]]

    @property
    def size(self) -> StepSize:
        """That of a step of this micro-batch alone."""
        return StepSize(sum(map(any, self.mask)), sum(map(sum, self.mask)), 9)

    @property
    def logprobs(self) -> TokenLogprobs:
        """In float64."""
        return TokenLogprobs(*map(double, (self.current, self.old, self.sampling, self.reference)))

    @property
    def rows(self) -> list[MicroBatch]:
        """Micro-batches of one completion each."""
        parts = zip(self.current, self.old, self.sampling, self.reference, self.advantages, self.mask, strict=True)
        return [MicroBatch(*([part] for part in row)) for row in parts]

    def loss(self, params: TrainingParams, logprobs: TokenLogprobs | None = None, size: StepSize | None = None) -> Loss:
        """That of the code under test, with other `logprobs` or in a step of another `size` where they are given."""
        advantages = torch.tensor(self.advantages, dtype=torch.float64)
        mask = torch.tensor(self.mask)
        return grpo_loss(logprobs or self.logprobs, advantages, mask, size or self.size, params)


def draw_micro_batch(seed: int, spread: float = 0.4, far: float = 0.0) -> MicroBatch:
    """Completions of random lengths with random holes in their masks; `far` is how often a reference is far off."""
    draw = random.Random(seed)
    n_rows, n_tokens = draw.randint(1, 4), draw.randint(1, 6)

    def around(rows: Rows | None = None, jump: float = 0.0) -> Rows:
        return [
            [
                (rows[i][j] if rows else -3.0) + draw.gauss(0, spread) + (draw.random() < jump) * draw.choice((-30, 30))
                for j in range(n_tokens)
            ]
            for i in range(n_rows)
        ]

    old = around()
    mask = [[draw.random() < 0.7 for _ in range(n_tokens)] for _ in range(n_rows)]
    mask[0][0] = True
    return MicroBatch(around(old), old, around(old), around(old, far), [draw.gauss(0, 1) for _ in range(n_rows)], mask)


def slow_kl(logprob: float, reference: float, estimator: str) -> float:
    """k2 or k3 at one token."""
    difference = reference - logprob
    if estimator == "k2":
        return 0.5 * difference * difference
    if difference <= 20.0:
        return math.exp(difference) - difference - 1
    return math.exp(20.0) - 20.0 - 1 + (math.exp(20.0) - 1) * (difference - 20.0)


def slow_loss(batch: MicroBatch, params: TrainingParams, frozen: MicroBatch | None = None) -> float:
    """The loss, token by token. `frozen` gives the ratios that weight the KL, which carry no gradient."""
    size = batch.size
    frozen = frozen or batch
    total = 0.0
    for i, advantage in enumerate(batch.advantages):
        tokens = []
        for j, is_unmasked in enumerate(batch.mask[i]):
            if not is_unmasked:
                continue
            ratio = math.exp(batch.current[i][j] - batch.old[i][j])
            inside = min(max(ratio, 1 - params.clip_low), 1 + params.clip_high)
            objective = min(ratio * advantage, inside * advantage)
            if params.sampling_ratio_cap is not None:
                objective *= min(math.exp(batch.old[i][j] - batch.sampling[i][j]), params.sampling_ratio_cap)
            loss = -objective
            kl = slow_kl(batch.current[i][j], batch.reference[i][j], params.kl_estimator)
            loss += params.kl_coefficient * math.exp(frozen.current[i][j] - frozen.old[i][j]) * kl
            tokens.append(loss)
        if params.loss == "grpo" and tokens:
            total += sum(tokens) / len(tokens) / size.n_completions
        elif params.loss == "dapo":
            total += sum(tokens) / size.n_tokens
        elif params.loss == "dr_grpo":
            total += sum(tokens) / size.n_completions / size.max_completion_tokens
    return total


def slow_sums(batch: MicroBatch, params: TrainingParams) -> dict[str, float]:
    """The sums that the metrics average, over unmasked tokens."""
    sums = dict.fromkeys(("kl_sum", "clip_low_sum", "clip_high_sum", "sampling_kl_sum", "ratio_max"), 0.0)
    for i, advantage in enumerate(batch.advantages):
        for j, is_unmasked in enumerate(batch.mask[i]):
            if is_unmasked:
                ratio = math.exp(batch.current[i][j] - batch.old[i][j])
                sums["kl_sum"] += slow_kl(batch.current[i][j], batch.reference[i][j], params.kl_estimator)
                sums["sampling_kl_sum"] += slow_kl(batch.sampling[i][j], batch.old[i][j], "k3")
                sums["clip_low_sum"] += advantage < 0 and ratio < 1 - params.clip_low
                sums["clip_high_sum"] += advantage > 0 and ratio > 1 + params.clip_high
                sums["ratio_max"] = max(sums["ratio_max"], ratio)
    return sums
