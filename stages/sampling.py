"""Sampling from a policy on disk, with a progress bar: shared by the stages `rollout` and `evaluate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.params import SamplingParams
from pipeline.policy import policy_fingerprint, resolve_device
from pipeline.sampling import Engine, FinishReason, Sampler, SampleRequest
from pipeline.sampling.engines import describe_engine, open_sampler
from pipeline.sampling.shards import Sampled, sample_in_shards
from stages import paths
from stages.progress import progress


@dataclass(frozen=True)
class Origin:
    """What sampled: the policy's fingerprint, the engine and its version, what its seeds are for, what it promises."""

    policy_fingerprint: str
    engine: str
    engine_version: str
    seed_scope: str
    is_repeatable: bool


def sample_policy(
    policy: Path, tokenizer: Any, requests: Sequence[SampleRequest], params: SamplingParams, name: str
) -> tuple[Sampled, Origin]:
    """Sample `requests` from the policy in the folder `policy`; `name` titles the bar and the folder of shards."""
    engine = describe_engine(params)
    origin = _origin(policy_fingerprint(policy, paths.BASE), engine)
    longest = max((len(request.prompt_token_ids) for request in requests), default=0)

    def load_sampler() -> Sampler:
        return open_sampler(policy, paths.BASE, tokenizer, params, longest)

    device = resolve_device(params.device).type
    key_parts = [list(vars(origin).values()), params.model_dump(mode="json", exclude={"server"}), device]
    ended: Counter[FinishReason] = Counter()
    with progress(name, sum(len(request.seeds) for request in requests), "tokens") as advance:

        def on_progress(reasons: Sequence[FinishReason], n_tokens: int) -> None:
            ended.update(reasons)
            advance(len(reasons), n_tokens, f"{ended['stop']} stopped, {ended['length']} cut off")

        sampled = sample_in_shards(
            requests, params.completions_per_shard, load_sampler, paths.SAMPLES / name, key_parts, on_progress
        )
    return sampled, origin


def _origin(fingerprint: str, engine: Engine) -> Origin:
    return Origin(fingerprint, engine.name, engine.version, engine.seed_scope, engine.is_repeatable)
