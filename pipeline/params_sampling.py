"""The section `sampling` of params.yaml: how completions are drawn, and by which engine."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from pipeline.params_sections import Device, Natural, Positive, PositiveFloat, Section, Temperature

OF_THE_CALL = (
    *("conversation", "messages", "tools", "documents", "chat_template"),
    *("add_generation_prompt", "continue_final_message", "tokenize", "return_dict"),
)
"""Names that `chat_template_kwargs` can't have: what a chat is, and where its completion begins, is set elsewhere."""


def _check_address(url: str) -> str:
    parts = urlsplit(url)  # a ValueError says what is wrong with brackets, and with a port
    is_whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    if not is_whole or parts.query or parts.fragment or len(url.split()) != 1:
        raise ValueError("it is no address of a server, such as http://gpu1:8000")
    if url.endswith(("/", "/v1")):
        raise ValueError("an address goes without a slash at its end, and without /v1, which is added")
    return url


class VllmParams(Section):
    """The engine `vllm`: the offline `LLM` of vLLM, in processes of the stage.

    `data_parallel_size` engines take a shard each, every one on `tensor_parallel_size` GPUs. `kv_cache_gib` is the key
    and value cache of each; left out, it is what `gpu_memory_utilization` leaves of a GPU, and 4 GiB on a CPU.
    """

    tensor_parallel_size: Positive = 1
    data_parallel_size: Positive = 1
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    kv_cache_gib: PositiveFloat | None = None
    batch_invariant: bool = False
    enforce_eager: bool = False


class ServerParams(Section):
    """The engine `server`: running `vllm serve` processes, which get up to `max_batch_completions` at once each.

    `project_path` is where the servers see the folder that holds params.yaml, if that is another path than here.
    `per_completion_seeds` must be false for servers on a CPU, whose engine dies of a seed. With all servers down, work
    waits for one up to `recovery_time_limit_seconds`. `max_probe_difference` is how far a server's log-probabilities of
    a fixed text may be from the policy's, in nats per token on average. The variable of the environment called
    `api_key_variable` holds the key that servers were started with.
    """

    urls: list[Annotated[str, AfterValidator(_check_address)]] = Field(default_factory=list)
    project_path: Annotated[str, Field(pattern=r"^/")] | None = None
    per_completion_seeds: bool = True
    request_time_limit_seconds: PositiveFloat = 600.0
    recovery_time_limit_seconds: PositiveFloat = 120.0
    n_tries: Positive = 5
    max_probe_difference: PositiveFloat = 0.15
    api_key_variable: str | None = None

    @field_validator("urls")
    @classmethod
    def _are_distinct(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError("each server is named once")
        return value


class SamplingParams(Section):
    """How completions are drawn, in rollouts and evaluation alike.

    `shard_completions` is how many completions are kept together as they are finished, and what an engine that can't
    seed each one alone is seeded for; left out, it is `max_batch_completions` with transformers, 2048 elsewhere.
    `chat_template_kwargs` are the chat template's own switches, such as `enable_thinking`.
    """

    engine: Literal["transformers", "vllm", "server"] = "transformers"
    temperature: Temperature = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_completion_tokens: Positive
    min_completion_tokens: Natural = 0
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    stop_token_ids: list[Natural] = Field(default_factory=list)
    max_batch_completions: Positive = 128
    shard_completions: Positive | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    device: Device = "auto"
    vllm: VllmParams = VllmParams()
    server: ServerParams = ServerParams()

    @field_validator("chat_template_kwargs")
    @classmethod
    def _are_the_templates_own(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = [name for name in value if name in OF_THE_CALL]
        if taken:
            raise ValueError(f"{taken[0]} is none of the template's own switches: the stage gives it")
        return value

    @model_validator(mode="after")
    def _lengths_fit(self) -> SamplingParams:
        if self.min_completion_tokens > self.max_completion_tokens:
            raise ValueError(
                f"min_completion_tokens {self.min_completion_tokens} is more than "
                f"max_completion_tokens {self.max_completion_tokens}"
            )
        return self

    @model_validator(mode="after")
    def _whole_distribution(self) -> SamplingParams:
        if self.top_p != 1.0 or self.top_k not in (0, -1):
            raise ValueError(
                f"top_p {self.top_p} and top_k {self.top_k}: truncated sampling biases the ratio that the update "
                "takes against the whole distribution, so only top_p 1 and top_k 0 are allowed"
            )
        return self

    @model_validator(mode="after")
    def _servers_are_named(self) -> SamplingParams:
        if self.engine == "server" and not self.server.urls:
            raise ValueError("engine server needs server.urls, the addresses of running servers (see `rollbook serve`)")
        return self

    @property
    def completions_per_shard(self) -> int:
        """`shard_completions`, or its default for the engine."""
        return self.shard_completions or (self.max_batch_completions if self.engine == "transformers" else 2048)
