"""Our vLLM engine beside a bare `LLM.generate`, on the same prompts and for the same work: no end token stops either.

`python -m tests.benchmarks.vllm` needs vLLM and the artifacts of `make run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.params import load_params
from pipeline.policy import load_tokenizer
from pipeline.rollouts import make_requests, tokenize_prompts
from pipeline.sampling import SampleRequest
from pipeline.sampling.vllm_process import EngineProcess, EngineSettings
from pipeline.sampling.vllm_sampler import make_settings, shard_seed
from tests.benchmarks.compare import in_turn, need, show

N_COMPLETIONS = 8
SHAPES = [(n_prompts, n_tokens) for n_tokens in (16, 64, 256) for n_prompts in (16, 32)]
CACHE_GIB = 1.0
BARE, OURS = "bare LLM.generate", "our vLLM engine"
BASE = Path("data/base")


def main(rounds: int = 3) -> None:
    """Print, for each shape, seconds and tokens per second of both."""
    need(["data/base", "data/prompts.parquet"])
    requests = first_requests(max(n_prompts for n_prompts, _ in SHAPES))
    settings = settings_for(requests)
    bare = bare_engine(settings)
    for n_tokens in dict.fromkeys(n_tokens for _, n_tokens in SHAPES):
        with our_engine(settings, n_tokens) as ours:
            for n_prompts in (n_prompts for n_prompts, n in SHAPES if n == n_tokens):
                chosen = requests[:n_prompts]
                sides = {BARE: generate_with(bare, chosen, n_tokens), OURS: sample_with(ours, chosen)}
                n_sampled = n_prompts * N_COMPLETIONS * n_tokens
                report(f"sampling {n_prompts} x {N_COMPLETIONS} x {n_tokens} tokens", in_turn(sides, rounds), n_sampled)


def first_requests(n_prompts: int) -> list[SampleRequest]:
    """Requests for completions of the first prompts."""
    prompts = pl.read_parquet("data/prompts.parquet").head(n_prompts)
    token_ids = tokenize_prompts(prompts, load_tokenizer(BASE))
    return make_requests(prompts["prompt_id"].to_list(), token_ids, N_COMPLETIONS, 0)


def settings_for(requests: list[SampleRequest]) -> EngineSettings:
    """Settings of an engine with room for all `requests` at once, and as many tokens as any shape has."""
    given = load_params().sampling
    vllm = given.vllm.model_copy(update={"kv_cache_gib": CACHE_GIB})
    n_tokens = max(n_tokens for _, n_tokens in SHAPES)
    n_rows = len(requests) * N_COMPLETIONS
    changes = {"max_batch_completions": n_rows, "max_completion_tokens": n_tokens, "stop": [], "vllm": vllm}
    longest = max(len(request.prompt_token_ids) for request in requests)
    settings = make_settings(BASE, BASE, load_tokenizer(BASE), given.model_copy(update=changes), longest)
    return replace(settings, stop_token_ids=[])


@contextmanager
def our_engine(settings: EngineSettings, n_tokens: int) -> Iterator[EngineProcess]:
    """Our engine, for completions of `n_tokens` tokens."""
    with closing(EngineProcess(replace(settings, max_tokens=n_tokens), {}, None)) as engine:
        engine.wait()
        yield engine


def sample_with(engine: EngineProcess, requests: list[SampleRequest]) -> Callable[[], object]:
    """A function that samples `requests` with our engine."""
    return lambda: engine.sample(requests, shard_seed(requests), lambda *_: None)


def bare_engine(settings: EngineSettings) -> Any:
    """vLLM's own `LLM`, with the same model, lengths and cache."""
    from vllm import LLM

    return LLM(**settings.llm, dtype="bfloat16", generation_config="vllm", logprobs_mode="processed_logprobs")


def generate_with(llm: Any, requests: list[SampleRequest], n_tokens: int) -> Callable[[], object]:
    """A function that samples `requests` with vLLM's own `generate`."""
    from vllm import SamplingParams, TokensPrompt

    prompts = [TokensPrompt(prompt_token_ids=request.prompt_token_ids) for request in requests]
    params = SamplingParams(n=N_COMPLETIONS, max_tokens=n_tokens, ignore_eos=True, logprobs=0, detokenize=False)
    return lambda: llm.generate(prompts, params, use_tqdm=False)


def report(title: str, seconds: Mapping[str, list[float]], n_tokens: int) -> None:
    """Print seconds, and tokens per second in the best round."""
    show(title, dict(seconds), BARE)
    rates = (f"{name}: {n_tokens / min(values):,.0f} tokens/s" for name, values in seconds.items())
    print(f"  best round: {', '.join(rates)}", flush=True)


if __name__ == "__main__":
    main()
