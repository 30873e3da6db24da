"""Sampling engines: token ids of prompts in, completions with the log-probability of every token out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class SampleRequest:
    """A prompt, and the seed of each completion that is wanted of it."""

    prompt_token_ids: list[int]
    seeds: list[int]


@dataclass(frozen=True)
class SampledCompletion:
    """The sampled tokens (the end token included) and the log-probability of each, in nats, after temperature.

    `seed` is the one that held: the completion's own, or that of its shard. With an engine whose `seed_scope` is "none"
    it is the completion's own, which the engine did not take.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    seed: int


OnProgress = Callable[[Sequence[FinishReason], int], None]
"""Called now and then, from any thread: how completions ended since the last call, and the tokens sampled since."""


@dataclass(frozen=True)
class Engine:
    """What samples, known before weights are loaded.

    `seed_scope` says what has a seed of its own, "none" that nothing has. `is_repeatable` promises the same bytes for
    the same shard.
    """

    name: str
    version: str
    seed_scope: Literal["completion", "shard", "none"]
    is_repeatable: bool


class Sampler(Protocol):
    """An engine with a policy loaded. `n_parallel` threads may call `sample` at once."""

    n_parallel: int

    def sample(self, requests: Sequence[SampleRequest], on_progress: OnProgress) -> list[list[SampledCompletion]]:
        """For each request, in order, a completion for each of its seeds, in order."""
        ...

    def close(self) -> None:
        """End calls under way, and let go of memory and of processes; a second time there is nothing to do."""
        ...
