"""Sampling from a policy on disk, with a progress bar: shared by the stages `rollout` and `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.params import SamplingParams
from pipeline.policy import end_token_ids, load_model, policy_fingerprint, resolve_device
from pipeline.sampling import Sampler, SampleRequest
from pipeline.sampling.shards import Sampled, sample_in_shards
from pipeline.sampling.transformers_sampler import TransformersSampler
from stages import paths
from stages.progress import progress


@dataclass(frozen=True)
class Engine:
    """What sampled: the policy's fingerprint, the engine and its version."""

    policy_fingerprint: str
    engine: str
    engine_version: str


def sample_policy(
    policy: Path, tokenizer: Any, requests: Sequence[SampleRequest], params: SamplingParams, name: str
) -> tuple[Sampled, Engine]:
    """Sample `requests` from the policy in the folder `policy`; `name` titles the bar and the folder of shards."""
    device = resolve_device(params.device)
    engine = Engine(policy_fingerprint(policy, paths.BASE), TransformersSampler.engine, TransformersSampler.version)

    def load_sampler() -> Sampler:
        model = load_model(policy, paths.BASE, device)
        return TransformersSampler(model, end_token_ids(model, tokenizer), params)

    key_parts = [list(vars(engine).values()), params.model_dump(mode="json"), device.type]
    with progress(name, sum(len(request.seeds) for request in requests), "tokens") as advance:
        sampled = sample_in_shards(
            requests, params.max_batch_completions, load_sampler, paths.SAMPLES / name, key_parts, advance
        )
    return sampled, engine
