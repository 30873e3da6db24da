"""The engines by name: what each is, and how it is opened. An engine is imported only where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.errors import BadInput
from pipeline.params import SamplingParams
from pipeline.policy import end_token_ids, load_config, load_model, resolve_device, whole_model
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
    """The engine of `params` with the policy of the folder `policy`, for prompts of up to `longest_prompt` tokens.

    Raises:
        BadInput: the model lacks a stop token or the positions, or the engine can't do what `params` ask for.
    """
    check_limits(load_config(whole_model(policy, base)), params, longest_prompt)
    if params.engine == "vllm":
        from pipeline.sampling.vllm_sampler import VllmSampler

        return VllmSampler(policy, base, tokenizer, params, longest_prompt)
    if params.engine == "server":
        from pipeline.sampling.server_sampler import ServerSampler

        return ServerSampler(policy, base, tokenizer, params, longest_prompt)
    from pipeline.sampling.transformers_sampler import TransformersSampler

    model = load_model(policy, base, resolve_device(params.device))
    return TransformersSampler(model, end_token_ids(model, tokenizer), params, tokenizer)


def check_limits(config: Any, params: SamplingParams, longest_prompt: int) -> None:
    """Raise `BadInput` where a model of `config` lacks stop tokens of `params`, or positions for the longest prompt."""
    text = config.get_text_config()
    unknown = [token_id for token_id in params.stop_token_ids if token_id >= text.vocab_size]
    if unknown:
        problem = f"{unknown[0]} is no token of the model, which has {text.vocab_size}"
        raise BadInput("params.yaml: sampling.stop_token_ids", problem, "Look it up in the tokenizer of data/base")
    n_positions = getattr(text, "max_position_embeddings", None)
    needed = longest_prompt + params.max_completion_tokens
    if n_positions is not None and needed > n_positions:
        problem = f"a prompt of {longest_prompt} tokens and {params.max_completion_tokens} new "
        problem += f"ones make {needed}, and the model has {n_positions} positions"
        raise BadInput("params.yaml: sampling.max_completion_tokens", problem, "Lower it, or drop long prompts")
