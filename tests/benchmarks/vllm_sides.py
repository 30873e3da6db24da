"""Sides of the sampling benchmark that need vLLM: our engine, and a bare `LLM.generate` with the same settings.

Both give token ids and the log-probability of each token, and no token ends a completion.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.params import SamplingParams, VllmParams
from pipeline.policy import load_tokenizer
from pipeline.sampling.vllm_process import EngineProcess, EngineSettings
from pipeline.sampling.vllm_sampler import make_settings, shard_seed

if TYPE_CHECKING:
    from tests.benchmarks.sampling_sides import Side, Work

MOST_ROWS = 256
LONGEST_PROMPT = 256
MOST_TOKENS = 256
CACHE_GIB = 1.5


def open_vllm(base: Path) -> Side:
    """Our engine, which is started anew for work of another length, in the round that does not count."""
    settings = settings_of(base)
    engines: dict[int, EngineProcess] = {}

    def engine_for(n_tokens: int) -> EngineProcess:
        if n_tokens not in engines:
            while engines:
                engines.popitem()[1].close()
            engines[n_tokens] = EngineProcess(replace(settings, max_tokens=n_tokens), {}, None)
            engines[n_tokens].wait()
        return engines[n_tokens]

    def run(work: Work) -> int:
        requests = work.requests
        groups = engine_for(work.n_tokens).sample(requests, shard_seed(requests), lambda *_: None)
        return sum(len(completion.token_ids) for group in groups for completion in group)

    return run


def open_bare(base: Path) -> Side:
    """vLLM's own `LLM`, with the model, lengths and cache of ours."""
    from vllm import LLM, TokensPrompt
    from vllm import SamplingParams as VllmSamplingParams

    llm = LLM(**settings_of(base).llm, dtype="bfloat16", generation_config="vllm", logprobs_mode="processed_logprobs")

    def run(work: Work) -> int:
        params = VllmSamplingParams(
            n=work.n_completions, max_tokens=work.n_tokens, ignore_eos=True, logprobs=0, detokenize=False
        )
        prompts = [TokensPrompt(prompt_token_ids=request.prompt_token_ids) for request in work.requests]
        found = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(completion.token_ids) for each in found for completion in each.outputs)

    return run


def settings_of(base: Path) -> EngineSettings:
    """Settings with room for all rows of any size at once."""
    vllm = VllmParams(kv_cache_gib=CACHE_GIB)
    params = SamplingParams(max_completion_tokens=MOST_TOKENS, max_batch_completions=MOST_ROWS, vllm=vllm)
    settings = make_settings(base, base, load_tokenizer(base), params, LONGEST_PROMPT)
    return replace(settings, stop_token_ids=[])
