"""What is measured: a shape, a method, a part of the iteration. Imported by the process that hands out turns too."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum


class Method(StrEnum):
    """What is trained: every weight, or an adapter."""

    FULL = "full"
    LORA = "lora"


class Part(StrEnum):
    """What is measured: the update on given rollouts, or a whole step (rollout, reward, update)."""

    UPDATE = "update"
    WHOLE = "whole"


@dataclass(frozen=True)
class Shape:
    """How many groups of which size, the tokens of a prompt (to a tenth), and the most tokens of a completion."""

    n_prompts: int
    group_size: int
    prompt_tokens: int
    max_completion_tokens: int

    @property
    def n_completions(self) -> int:
        """Those of a step."""
        return self.n_prompts * self.group_size


SHAPES = {
    "1": Shape(16, 8, 45, 16),
    "1-long": Shape(16, 8, 45, 64),  # four times the completions of shape 1
    "2": Shape(8, 8, 150, 200),
    "2-long": Shape(8, 8, 150, 800),
    "tiny": Shape(2, 2, 12, 4),
}


@dataclass(frozen=True)
class Task:
    """What every side of a comparison is told.

    Attributes:
        base: folder of the base model.
        shape: a key of `SHAPES`.
        method: full fine-tuning, or LoRA of rank 16 on all linear layers but the head.
        part: the update alone, or a whole step.
        n_steps: how many steps a side takes.
        kl_coefficient: 0 needs no reference.
        limit_fraction: share of completions that run to the limit of tokens; the others end before it, anywhere.
        equal_fraction: share of groups whose rewards are all equal, where the filter is on.
        rows_per_microbatch: completions in a micro-batch of the padded sides (8 is the default of TRL).
    """

    base: str
    shape: str
    method: Method
    part: Part
    n_steps: int
    kl_coefficient: float = 0.0
    limit_fraction: float = 0.5
    equal_fraction: float = 0.5
    rows_per_microbatch: int = 8

    @property
    def sizes(self) -> Shape:
        """The numbers of its shape."""
        return SHAPES[self.shape]

    @property
    def micro_batch(self) -> int:
        """`rows_per_microbatch`, or all completions of a step where those are fewer."""
        return min(self.rows_per_microbatch, self.sizes.n_completions)

    def to_json(self) -> str:
        """What `from_json` reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Task:
        """The task that `to_json` wrote."""
        values = json.loads(text)
        return Task(**{**values, "method": Method(values["method"]), "part": Part(values["part"])})


LEARNING_RATE = 1e-6
MAX_GRAD_NORM = 1.0
CLIP = 0.2
LORA_RANK = 16
LORA_ALPHA = 32.0
"""The same on every side, so that all of them compute the same gradient of the same loss."""
