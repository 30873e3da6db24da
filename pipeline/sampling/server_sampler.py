"""Sampling on running `vllm serve` processes, on this machine or others: token ids in, token ids out.

Requests go to `/v1/completions`, whose prompts may be token ids and whose answers hold token ids and the
log-probability of each where that is asked for, so that nothing is tokenized twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import httpx

from pipeline.api_keys import read_api_key
from pipeline.errors import BadInput, TransientError
from pipeline.params import SamplingParams, ServerParams
from pipeline.policy import load_config, stored_end_token_ids, whole_model
from pipeline.sampling import Engine, OnProgress, SampledCompletion, SampleRequest
from pipeline.sampling.served_policy import prepare_policy
from pipeline.sampling.server_answers import Choice, Expected, read_answer
from pipeline.sampling.server_api import START_IT, ServerApi, ServerFault
from pipeline.sampling.server_policy import WHOLE_DISTRIBUTION, admit, check_version, read_vllm_version
from pipeline.sampling.server_pool import ServerPool
from pipeline.sampling.stopping import make_stops

URLS = "params.yaml: sampling.server.urls"

ResultT = TypeVar("ResultT")


def describe(params: SamplingParams) -> Engine:
    """The vLLM that the servers run; a `TransientError` where none of them answers.

    Raises:
        BadInput: what answers is no vLLM, asks for another key, or is of several versions.
    """
    answers = asyncio.run(_ask_versions(params.server))
    faults = [answer for answer in answers if isinstance(answer, ServerFault)]
    for fault in faults:
        if not fault.is_transient:
            raise fault.as_error()
    versions = {url: answer for url, answer in zip(params.server.urls, answers, strict=True) if isinstance(answer, str)}
    if not versions:
        remedy = f"{START_IT}, and run again: shards of a rollout are kept"
        raise TransientError(URLS, f"no server answers: {'; '.join(map(str, faults))}", remedy)
    if len(set(versions.values())) > 1:
        listed = ", ".join(f"{url} runs {version}" for url, version in versions.items())
        raise BadInput(URLS, f"the servers are of several versions of vLLM: {listed}", "Run the same on all")
    version = f"vllm {next(iter(versions.values()))}"
    return Engine("server", version, "completion" if params.server.per_completion_seeds else "none", False)


async def _ask_versions(params: ServerParams) -> list[str | ServerFault]:
    """Of each server its version of vLLM, or why it is not to be had."""

    async def ask(api: ServerApi) -> str | ServerFault:
        try:
            return await read_vllm_version(api)
        except ServerFault as fault:
            return fault

    async with httpx.AsyncClient(headers=_headers(params), timeout=None) as http:
        apis = [ServerApi(url, http, params.request_time_limit_seconds) for url in params.urls]
        return await asyncio.gather(*map(ask, apis))


@dataclass(frozen=True)
class _Part:
    """What one call asks for: completions of a request, from the place `first` on."""

    request: int
    first: int
    prompt_token_ids: list[int]
    seeds: list[int]


class ServerSampler:
    """`Sampler` on the servers of `params`, which are given the policy in the folder `policy` where they lack it.

    Calls run in an event loop in a thread of its own. The next shard begins while the last completions of one are
    sampled, so that the servers stay busy.
    """

    n_parallel = 2

    def __init__(self, policy: Path, base: Path, tokenizer: Any, params: SamplingParams, longest_prompt: int) -> None:
        model = whole_model(policy, base)
        self._params = params
        self._n_vocabulary: int = load_config(model).get_text_config().vocab_size
        self._stops = make_stops(params, stored_end_token_ids(model, tokenizer))
        n_positions = longest_prompt + params.max_completion_tokens
        self._policy = prepare_policy(policy, base, tokenizer, params.server, n_positions)
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(headers=_headers(params.server), timeout=None, limits=unlimited)
        self._pool = self._make_pool()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._run(self._pool.open())
        except BaseException:  # an interrupt too: no thread may outlive this
            self.close()
            raise

    def sample(self, requests: Sequence[SampleRequest], on_progress: OnProgress) -> list[list[SampledCompletion]]:
        """For each request, in order, a completion for each of its seeds, in order."""
        return self._run(self._sample(requests, on_progress))

    def close(self) -> None:
        """End all calls, and the connections to the servers."""
        if self._loop.is_closed():
            return
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _make_pool(self) -> ServerPool:
        server = self._params.server
        return ServerPool(
            apis=[ServerApi(url, self._http, server.request_time_limit_seconds) for url in server.urls],
            admit=lambda api: admit(api, self._policy, server.max_probe_difference),
            max_completions=self._params.max_batch_completions,
            n_tries=server.n_tries,
            recovery_time_limit_seconds=server.recovery_time_limit_seconds,
        )

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # an interrupt of the waiting, say: the work is not to go on
            future.cancel()
            raise

    async def _end(self) -> None:
        self._pool.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._http.aclose()

    async def _sample(
        self, requests: Sequence[SampleRequest], on_progress: OnProgress
    ) -> list[list[SampledCompletion]]:
        found: dict[tuple[int, int], SampledCompletion] = {}

        async def sample_part(part: _Part) -> None:
            choices = await self._pool.run(len(part.seeds), lambda api: self._ask(api, part))
            for place, (choice, seed) in enumerate(zip(choices, part.seeds, strict=True), start=part.first):
                logprobs = [min(logprob, 0.0) for logprob in choice.logprobs.token_logprobs]
                found[part.request, place] = SampledCompletion(choice.token_ids, logprobs, choice.finish_reason, seed)
            on_progress([choice.finish_reason for choice in choices], sum(len(choice.token_ids) for choice in choices))

        try:
            async with asyncio.TaskGroup() as tasks:
                for part in self._parts(requests):
                    tasks.create_task(sample_part(part))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        await self._pool.check_all(lambda api: check_version(api, self._policy))
        return [[found[i, j] for j in range(len(request.seeds))] for i, request in enumerate(requests)]

    def _parts(self, requests: Sequence[SampleRequest]) -> Iterator[_Part]:
        """A completion at a time where each has its seed, else all of a prompt."""
        for i, request in enumerate(requests):
            if self._params.server.per_completion_seeds:
                yield from (_Part(i, j, request.prompt_token_ids, [seed]) for j, seed in enumerate(request.seeds))
            elif request.seeds:
                yield _Part(i, 0, request.prompt_token_ids, request.seeds)

    async def _ask(self, api: ServerApi, part: _Part) -> list[Choice]:
        content = await api.post("/v1/completions", self._body(part))
        expected = Expected(
            model=self._policy.name,
            prompt_token_ids=part.prompt_token_ids,
            n=len(part.seeds),
            n_vocabulary=self._n_vocabulary,
            stops=self._stops,
        )
        try:
            return read_answer(content, expected)
        except ValueError as error:
            raise ServerFault(api.url, f"its answer is wrong: {error}", False) from error

    def _body(self, part: _Part) -> dict[str, Any]:
        params, stops = self._params, self._stops
        body = {
            "model": self._policy.name,
            "prompt": part.prompt_token_ids,
            "n": len(part.seeds),
            "temperature": params.temperature,
            **WHOLE_DISTRIBUTION,
            "max_tokens": stops.max_tokens,
            "min_tokens": stops.min_tokens,
            "ignore_eos": True,  # the end tokens below are all that there are
            "stop_token_ids": sorted(stops.end_token_ids),
            "stop": stops.strings,
            "include_stop_str_in_output": True,
            "logprobs": 0,  # that of the sampled token alone
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        return {**body, "seed": part.seeds[0]} if params.server.per_completion_seeds else body


def _headers(params: ServerParams) -> dict[str, str]:
    key = read_api_key(params.api_key_variable, "the servers'")
    return {} if key is None else {"Authorization": f"Bearer {key}"}
