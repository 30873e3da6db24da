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

LOSSES = ("grpo", "dapo", "dr_grpo", "gspo", "cispo")

Rows = list[list[float]]


def params_of(loss: str = "grpo", **changes: Any) -> TrainingParams:
    """Settings without a correction of the sampling engine's probabilities."""
    return TrainingParams(**{"learning_rate": 1.0, "loss": loss, "sampling_ratio_cap": None, **changes})


def binding(loss: str, **changes: Any) -> TrainingParams:
    """As `params_of`, with clips that ratios spread as `draw_micro_batch` does often reach: for all but `gspo`, 0.2."""
    clips = {"gspo": {"clip_low": 0.03, "clip_high": 0.05}}.get(loss, {"clip_low": 0.2, "clip_high": 0.28})
    return params_of(loss, **{**clips, **changes})


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
    entropy: Rows
    advantages: list[float]
    mask: list[list[bool]]

    @property
    def size(self) -> StepSize:
        """That of a step of this micro-batch alone."""
        return StepSize(sum(map(any, self.mask)), sum(map(sum, self.mask)), 9)

    @property
    def logprobs(self) -> TokenLogprobs:
        """In float64."""
        return TokenLogprobs(*map(double, (self.current, self.old, self.sampling, self.reference, self.entropy)))

    @property
    def rows(self) -> list[MicroBatch]:
        """Micro-batches of one completion each."""
        return [MicroBatch(*([part] for part in row)) for row in zip(*vars(self).values(), strict=True)]

    def arranged(self, order: Sequence[int], n_padding: int = 0) -> MicroBatch:
        """The rows in `order`, each with `n_padding` masked tokens more."""
        fillers = {"advantages": None, "mask": False}
        parts: dict[str, Any] = {}
        for name, values in vars(self).items():
            padding = [fillers.get(name, -1.5)] * n_padding
            parts[name] = [values[i] if name == "advantages" else [*values[i], *padding] for i in order]
        return MicroBatch(**parts)

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
    current, sampling, reference = around(old), around(old), around(old, far)
    entropy = [[draw.uniform(0, 3) for _ in range(n_tokens)] for _ in range(n_rows)]
    return MicroBatch(current, old, sampling, reference, entropy, [draw.gauss(0, 1) for _ in range(n_rows)], mask)


def slow_kl(logprob: float, reference: float, estimator: str) -> float:
    """k2 or k3 at one token."""
    difference = reference - logprob
    if estimator == "k2":
        return 0.5 * difference * difference
    if difference <= 20.0:
        return math.exp(difference) - difference - 1
    return math.exp(20.0) - 20.0 - 1 + (math.exp(20.0) - 1) * (difference - 20.0)


def slow_ratio(above: Rows, below: Rows, mask: list[list[bool]], i: int, j: int, loss: str) -> float:
    """exp(above - below) at token j of completion i, or with `gspo` the geometric mean over i's unmasked tokens."""
    places = [k for k, is_unmasked in enumerate(mask[i]) if is_unmasked] if loss == "gspo" else [j]
    product = math.prod(math.exp(above[i][k] - below[i][k]) for k in places)
    return float(product ** (1 / len(places)))


def slow_objective(
    ratio: float, frozen_ratio: float, logprob: float, advantage: float, params: TrainingParams
) -> float:
    """The objective of a token; `frozen_ratio` is the ratio where it carries no gradient."""
    if params.loss == "cispo":
        return min(frozen_ratio, 1 + params.clip_high) * advantage * logprob
    inside = min(max(ratio, 1 - params.clip_low), 1 + params.clip_high)
    objective = min(ratio * advantage, inside * advantage)
    if params.dual_clip is not None and advantage < 0:
        objective = max(objective, params.dual_clip * advantage)
    return objective


def slow_loss(batch: MicroBatch, params: TrainingParams, frozen: MicroBatch | None = None) -> float:
    """The loss, token by token. `frozen` gives the ratios that carry no gradient: of `cispo`, and the KL's weights."""
    size, mask = batch.size, batch.mask
    frozen = frozen or batch
    total = 0.0
    for i, advantage in enumerate(batch.advantages):
        tokens = []
        for j, is_unmasked in enumerate(mask[i]):
            if not is_unmasked:
                continue
            ratio = slow_ratio(batch.current, batch.old, mask, i, j, params.loss)
            frozen_ratio = slow_ratio(frozen.current, frozen.old, mask, i, j, params.loss)
            objective = slow_objective(ratio, frozen_ratio, batch.current[i][j], advantage, params)
            if params.sampling_ratio_cap is not None:
                weight = slow_ratio(batch.old, batch.sampling, mask, i, j, params.loss)
                objective *= min(weight, params.sampling_ratio_cap)
            loss = -objective - params.entropy_coefficient * batch.entropy[i][j]
            if params.kl_in == "loss":
                kl = slow_kl(batch.current[i][j], batch.reference[i][j], params.kl_estimator)
                loss += params.kl_coefficient * math.exp(frozen.current[i][j] - frozen.old[i][j]) * kl
            tokens.append(loss)
        if params.loss in ("grpo", "gspo") and tokens:
            total += sum(tokens) / len(tokens) / size.n_completions
        elif params.loss in ("dapo", "cispo"):
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
                ratio = slow_ratio(batch.current, batch.old, batch.mask, i, j, params.loss)
                sums["kl_sum"] += slow_kl(batch.current[i][j], batch.reference[i][j], params.kl_estimator)
                sums["sampling_kl_sum"] += slow_kl(batch.sampling[i][j], batch.old[i][j], "k3")
                low, high = slow_clip(ratio, advantage, params)
                sums["clip_low_sum"] += low
                sums["clip_high_sum"] += high
                sums["ratio_max"] = max(sums["ratio_max"], ratio)
    return sums


def slow_clip(ratio: float, advantage: float, params: TrainingParams) -> tuple[bool, bool]:
    """Whether the ratio of a token is held from below, and from above."""
    if params.loss == "cispo":
        return False, ratio > 1 + params.clip_high
    if advantage > 0:
        return False, ratio > 1 + params.clip_high
    return ratio < 1 - params.clip_low, params.dual_clip is not None and ratio > params.dual_clip
