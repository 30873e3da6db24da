"""Sampling from a policy on disk, with a progress bar: shared by the stages `rollout` and `evaluate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.params import SamplingParams
from pipeline.sampling import FinishReason, Sampler, SampleRequest
from pipeline.sampling.engines import open_sampler
from pipeline.sampling.origin import Origin, describe_origin, sampling_key
from pipeline.sampling.shards import Sampled, sample_in_shards
from stages import paths
from stages.progress import progress


def sample_policy(
    policy: Path, tokenizer: Any, requests: Sequence[SampleRequest], params: SamplingParams, name: str
) -> tuple[Sampled, Origin]:
    """Sample `requests` from the policy in the folder `policy`; `name` titles the bar and the folder of shards."""
    origin = describe_origin(policy, paths.BASE, params)
    longest = max((len(request.prompt_token_ids) for request in requests), default=0)

    def load_sampler() -> Sampler:
        return open_sampler(policy, paths.BASE, tokenizer, params, longest)

    key_parts = sampling_key(origin, params)
    ended: Counter[FinishReason] = Counter()
    with progress(name, sum(len(request.seeds) for request in requests), "tokens") as advance:

        def on_progress(reasons: Sequence[FinishReason], n_tokens: int) -> None:
            ended.update(reasons)
            advance(len(reasons), n_tokens, f"{ended['stop']} stopped, {ended['length']} cut off")

        sampled = sample_in_shards(
            requests, params.completions_per_shard, load_sampler, paths.SAMPLES / name, key_parts, on_progress
        )
    return sampled, origin
