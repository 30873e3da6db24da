"""A sampler with a policy loaded, and a progress bar around it: shared by the stages `rollout` and `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.params import SamplingParams
from pipeline.policy import end_token_ids, load_model, resolve_device
from pipeline.sampling import SampledCompletion, Sampler, SampleRequest
from pipeline.sampling.transformers_sampler import TransformersSampler
from stages import paths
from stages.progress import progress


def load_sampler(policy: Path, tokenizer: Any, params: SamplingParams) -> Sampler:
    """The engine that `params` name, with the policy in the folder `policy`."""
    model = load_model(policy, paths.BASE, resolve_device(params.device))
    return TransformersSampler(model, end_token_ids(model, tokenizer), params)


def sample_with_progress(
    sampler: Sampler, requests: Sequence[SampleRequest], title: str
) -> list[list[SampledCompletion]]:
    """Sample, showing completions and tokens/s."""
    with progress(title, sum(len(request.seeds) for request in requests), "tokens") as advance:
        return sampler.sample(requests, advance)
