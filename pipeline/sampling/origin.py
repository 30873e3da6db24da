"""What samples, and on what: it is on record of rollouts, and all of it has to be the same for them to come out so."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from pipeline.params import SamplingParams
from pipeline.policy import policy_fingerprint, resolve_device
from pipeline.sampling.engines import describe_engine


@dataclass(frozen=True)
class Origin:
    """What sampled: the policy's fingerprint, the engine and its version, what its seeds are for, what it promises."""

    policy_fingerprint: str
    engine: str
    engine_version: str
    seed_scope: str
    is_repeatable: bool


def describe_origin(policy: Path, base: Path, params: SamplingParams) -> Origin:
    """What samples from the policy in the folder `policy` under `params`; loads no weights."""
    engine = describe_engine(params)
    fingerprint = policy_fingerprint(policy, base)
    return Origin(fingerprint, engine.name, engine.version, engine.seed_scope, engine.is_repeatable)


def sampling_key(origin: Origin, params: SamplingParams) -> list[object]:
    """What determines samples beside the requests and the code."""
    place = [resolve_device(params.device).type, torch.get_num_threads()]
    return [*asdict(origin).values(), params.model_dump(mode="json", exclude={"server"}), *place]


def describe_device(device: torch.device) -> str:
    """`device` with what decides how it rounds: the model of a GPU, the instructions and threads of a CPU.

    To be called once sampling is over: engines that fork want a process that has not begun to use the GPU.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads)"


def rollouts_metadata(origin: Origin, params: SamplingParams) -> dict[str, str]:
    """The metadata of a table of rollouts that `origin` just sampled here under `params`."""
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in asdict(origin).items()}
    return values | {
        "device": describe_device(resolve_device(params.device)),
        "temperature": repr(params.temperature),
        "batching": f"max_batch_completions={params.max_batch_completions}"
        f" shard_completions={params.completions_per_shard}",
    }
