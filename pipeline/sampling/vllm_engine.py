"""A vLLM engine in a process of its own: `python -m pipeline.sampling.vllm_engine SOCKET`, started by `EngineProcess`.

The only file that imports vLLM. The engine's core runs in this very process, where it schedules all that it was given
before its first step; in a process of vLLM's it would begin with whatever had arrived, each time another batch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from vllm import LLM, TokensPrompt
from vllm import SamplingParams as VllmSamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.utils.torch_utils import set_random_seed

from pipeline.sampling import FinishReason, OnProgress, SampledCompletion, SampleRequest
from pipeline.sampling.vllm_process import EngineSettings, serve

SECONDS_BETWEEN_REPORTS = 0.2
TOKENS_PER_OUTPUT = 16
"""vLLM makes an output of a completion's first token, then of so many together: each costs time."""


class Reseeding:
    """Added to vLLM's workers: their unseeded random streams begin anew."""

    def reseed(self, seed: int) -> None:
        """Seed torch, numpy and Python, which vLLM's samplers draw from."""
        set_random_seed(seed)


@dataclass
class _Completion:
    """A completion in the making."""

    seed: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class VllmEngine:
    """vLLM's `LLM` with a policy loaded."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.lora = LoRARequest("policy", 1, settings.adapter) if settings.adapter else None
        self.llm = LLM(
            **settings.llm,
            dtype="bfloat16",
            generation_config="vllm",  # else a model's own top_k, say, would truncate the distribution
            logprobs_mode="processed_logprobs",  # after temperature
            enable_prefix_caching=True,
            stream_interval=TOKENS_PER_OUTPUT,
            worker_extension_cls="pipeline.sampling.vllm_engine.Reseeding",
        )
        if self.lora:
            self.llm.llm_engine.add_lora(self.lora)

    def sample(
        self, requests: Sequence[SampleRequest], shard_seed: int | None, on_progress: OnProgress
    ) -> list[list[SampledCompletion]]:
        """A completion per seed of each request, by its seed, or, given `shard_seed`, by that for all together.

        What was sampled before leaves no trace: the prefix cache is emptied, since what it holds changes how prompts
        are batched.
        """
        self.llm.reset_prefix_cache()
        if shard_seed is not None:
            self.llm.collective_rpc("reseed", args=(shard_seed,))
        found = [
            [_Completion(shard_seed if shard_seed is not None else seed) for seed in each.seeds] for each in requests
        ]
        for i, request in enumerate(requests):
            for place, seed, n in _parts(request, shard_seed):
                self._add(f"{i}/{place}", request.prompt_token_ids, seed, n)
        for reasons, n_tokens in _reported(self._steps(found)):
            on_progress(reasons, n_tokens)
        return [[_finished(completion) for completion in group] for group in found]

    def _add(self, request_id: str, prompt_token_ids: list[int], seed: int | None, n: int) -> None:
        params = VllmSamplingParams(
            n=n,
            seed=seed,
            temperature=self.settings.temperature,
            max_tokens=self.settings.max_tokens,
            min_tokens=self.settings.min_tokens,
            ignore_eos=True,  # the end tokens below are all that there are
            stop_token_ids=self.settings.stop_token_ids,
            stop=self.settings.stop,
            include_stop_str_in_output=True,
            detokenize=bool(self.settings.stop),
            logprobs=0,  # that of the sampled token alone
            flat_logprobs=True,
            output_kind=RequestOutputKind.DELTA,
        )
        (prompt,) = self.llm.renderer.render_cmpl([TokensPrompt(prompt_token_ids=prompt_token_ids)])
        self.llm.llm_engine.add_request(request_id, prompt, params, lora_request=self.lora)

    def _steps(self, found: list[list[_Completion]]) -> Iterator[tuple[list[FinishReason], int]]:
        """Run the engine, adding what it samples to `found`; finish reasons and number of tokens of each step."""
        engine = self.llm.llm_engine
        while engine.has_unfinished_requests():
            reasons: list[FinishReason] = []
            n_tokens = 0
            for output in engine.step():
                i, first = map(int, output.request_id.split("/"))
                for part in output.outputs:
                    completion = found[i][first + part.index]
                    completion.token_ids += part.token_ids
                    completion.logprobs += part.logprobs.logprobs if part.logprobs else []
                    n_tokens += len(part.token_ids)
                    if part.finish_reason is not None:
                        completion.finish_reason = _finish_reason(part.finish_reason)
                        reasons.append(completion.finish_reason)
            yield reasons, n_tokens


def _parts(request: SampleRequest, shard_seed: int | None) -> Iterator[tuple[int, int | None, int]]:
    """Of each request to vLLM that `request` becomes: place of its first completion, seed, number of completions.

    To the n completions of a seeded request vLLM gives seed, seed + 1, ..., where ours are hashes.
    """
    if shard_seed is not None:
        yield 0, None, len(request.seeds)
    else:
        yield from ((place, seed, 1) for place, seed in enumerate(request.seeds))


def _finish_reason(reason: str) -> FinishReason:
    if reason == "stop":
        return "stop"
    if reason == "length":
        return "length"
    raise RuntimeError(f"vLLM ended a completion with {reason!r}")


def _finished(completion: _Completion) -> SampledCompletion:
    if completion.finish_reason is None or len(completion.token_ids) != len(completion.logprobs):
        n_tokens, n_logprobs = len(completion.token_ids), len(completion.logprobs)
        raise RuntimeError(
            f"vLLM gave {n_tokens} tokens and {n_logprobs} log-probabilities ({completion.finish_reason})"
        )
    return SampledCompletion(completion.token_ids, completion.logprobs, completion.finish_reason, completion.seed)


def _reported(steps: Iterator[tuple[list[FinishReason], int]]) -> Iterator[tuple[list[FinishReason], int]]:
    """`steps` put together, a few times a second."""
    held: list[FinishReason] = []
    n_held = 0
    last = time.monotonic()
    for reasons, n_tokens in steps:
        held += reasons
        n_held += n_tokens
        if time.monotonic() - last >= SECONDS_BETWEEN_REPORTS:
            yield held, n_held
            held, n_held, last = [], 0, time.monotonic()
    yield held, n_held


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), VllmEngine)
