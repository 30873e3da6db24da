"""Sampling engines: token ids of prompts in, completions with the log-probability of every token out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class SampleRequest:
    """A prompt, and the seed of each completion that is wanted of it."""

    prompt_token_ids: list[int]
    seeds: list[int]


@dataclass(frozen=True)
class SampledCompletion:
    """The sampled tokens (the end token included) and the log-probability of each, in nats, after temperature."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]


OnProgress = Callable[[int, int], None]
"""Called now and then with the number of completions finished and of tokens sampled since the last call."""


class Sampler(Protocol):
    """An engine with a policy loaded."""

    engine: str
    version: str

    def sample(self, requests: Sequence[SampleRequest], on_progress: OnProgress) -> list[list[SampledCompletion]]:
        """For each request, in order, a completion for each of its seeds, in order."""
        ...
