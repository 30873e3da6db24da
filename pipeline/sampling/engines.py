"""The engines by name: what each is, and how it is opened. An engine is imported only where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.params import SamplingParams
from pipeline.policy import end_token_ids, load_model, resolve_device
from pipeline.sampling import Engine, Sampler


def describe_engine(params: SamplingParams) -> Engine:
    """What will sample under `params`; loads no weights."""
    if params.engine == "vllm":
        from pipeline.sampling import vllm_sampler

        return vllm_sampler.describe(params)
    if params.engine == "server":
        from pipeline.sampling import server_sampler

        return server_sampler.describe(params)
    from pipeline.sampling.transformers_sampler import ENGINE

    return ENGINE


def open_sampler(policy: Path, base: Path, tokenizer: Any, params: SamplingParams, longest_prompt: int) -> Sampler:
    """The engine of `params` with the policy of the folder `policy`, for prompts of up to `longest_prompt` tokens."""
    if params.engine == "vllm":
        from pipeline.sampling.vllm_sampler import VllmSampler

        return VllmSampler(policy, base, tokenizer, params, longest_prompt)
    if params.engine == "server":
        from pipeline.sampling.server_sampler import ServerSampler

        return ServerSampler(policy, base, tokenizer, params, longest_prompt)
    from pipeline.sampling.transformers_sampler import TransformersSampler

    model = load_model(policy, base, resolve_device(params.device))
    return TransformersSampler(model, end_token_ids(model, tokenizer), params, tokenizer)
