"""The same work for every side: prompts, lengths, rewards and rollouts of each step, drawn from its number."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.policy import load_tokenizer
from tests.benchmarks.trl.task import Task

WORDS = ["the", "sum", "of", "two", "numbers", "is", "how", "many", "more", "than", "one", "and", "what", "you", "get"]
MIN_COMPLETION_TOKENS = 2
"""No completion ends at once: the first token of all of a group's comes from one forward of its prompt."""


@dataclass(frozen=True)
class Rollout:
    """A completion to train on: token ids, and the advantage of its reward in its group."""

    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    advantage: float


class Workload:
    """Lists of a step come group by group; drawing one twice gives the same."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.sizes = task.sizes
        self.tokenizer: Any = load_tokenizer(Path(task.base))
        self.end_token_id: int = self.tokenizer.eos_token_id

    def prompts(self, step: int) -> list[str]:
        """Texts, one per group, whose lengths in tokens differ by up to a tenth from the shape's."""
        draw = self._draw("prompts", step)
        target = self.sizes.prompt_tokens
        return [
            self._text(draw, draw.randint(round(0.9 * target), round(1.1 * target)))
            for _ in range(self.sizes.n_prompts)
        ]

    def prompt_token_ids(self, step: int) -> list[list[int]]:
        """The prompts as tokens."""
        ids: list[list[int]] = self.tokenizer(self.prompts(step))["input_ids"]
        return ids

    def lengths(self, step: int) -> list[int]:
        """Tokens of each completion, the end token included."""
        draw = self._draw("lengths", step)
        limit = self.sizes.max_completion_tokens
        n_at_limit = round(self.task.limit_fraction * self.sizes.n_completions)
        others = [draw.randint(MIN_COMPLETION_TOKENS, limit - 1) for _ in range(self.sizes.n_completions - n_at_limit)]
        lengths = [limit] * n_at_limit + others
        draw.shuffle(lengths)
        return lengths

    def rewards(self, step: int, equal_fraction: float) -> list[float]:
        """0 and 1 in turn, but in `equal_fraction` of the groups all 1 or all 0: nothing to learn from."""
        draw = self._draw("rewards", step)
        n_prompts, size = self.sizes.n_prompts, self.sizes.group_size
        equal = set(draw.sample(range(n_prompts), round(equal_fraction * n_prompts)))
        return [
            float(group % 2 if group in equal else index % 2) for group in range(n_prompts) for index in range(size)
        ]

    def completion_token_ids(self, step: int) -> list[list[int]]:
        """Tokens at random, of the step's lengths: what they say changes nothing in what they cost."""
        draw = self._draw("completions", step)
        limit, vocabulary = self.sizes.max_completion_tokens, len(self.tokenizer)
        completions = [[draw.randrange(3, vocabulary) for _ in range(length)] for length in self.lengths(step)]
        return [ids if len(ids) == limit else [*ids[:-1], self.end_token_id] for ids in completions]

    def rollouts(self, step: int) -> list[Rollout]:
        """The completions of a step in which no group's rewards are equal."""
        prompts, rewards, size = self.prompt_token_ids(step), self.rewards(step, 0.0), self.sizes.group_size
        return [
            Rollout(prompts[place // size], ids, advantage(rewards, place, size))
            for place, ids in enumerate(self.completion_token_ids(step))
        ]

    def _text(self, draw: random.Random, n_tokens: int) -> str:
        words = " ".join(draw.choices(WORDS, k=n_tokens))
        ids: list[int] = self.tokenizer(words)["input_ids"]
        text: str = self.tokenizer.decode(ids[:n_tokens])
        return text

    def _draw(self, what: str, step: int) -> random.Random:
        return random.Random(f"{what} {step}")


def advantage(rewards: list[float], place: int, group_size: int) -> float:
    """(reward - mean of the group) / standard deviation of the group, for the completion at `place`.

    >>> round(advantage([1.0, 0.0, 0.0, 1.0], 2, 2), 6)
    -0.707107
    """
    start = place - place % group_size
    group = rewards[start : start + group_size]
    return (rewards[place] - statistics.mean(group)) / statistics.stdev(group)
