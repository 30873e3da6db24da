"""Whether a server has the policy that is wanted, and how it gets it while it runs.

A policy is known twice. By name: what a server calls a base model or an adapter holds its fingerprint, and so does
the `weight_version` of a whole model. And by substance, since a folder may have been rewritten under a server's feet:
its log-probabilities of a fixed text are compared with the policy's own. Names tell policies apart that are as near
to each other as bfloat16 rounds; the text tells what is behind a name.

The text can't tell which of two near policies a server has: rounding of 0.05 nats per token is not independent from
token to token, and was seen to put a server nearer to the next policy than to its own.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.sampling.served_names import PREFIX
from pipeline.sampling.served_policy import ServedPolicy
from pipeline.sampling.server_answers import LogProb, first_problem
from pipeline.sampling.server_api import ServerApi, ServerFault

WHOLE_DISTRIBUTION = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Said in every request, so that no default of a server or a model truncates or bends the distribution."""

N_TOP = 5
"""Tokens whose log-probabilities at two temperatures are compared."""


class _Reply(BaseModel):
    model_config = ConfigDict(frozen=True)


class _ModelCard(_Reply):
    id: str
    max_model_len: int | None = None
    parent: str | None = None


class _Models(_Reply):
    data: list[_ModelCard]


class _Version(_Reply):
    version: str


class _WeightInfo(_Reply):
    weight_version: str


class _PromptLogProb(_Reply):
    logprob: LogProb


class _Top(_Reply):
    top_logprobs: Annotated[list[dict[str, LogProb]], Field(min_length=1)]


class _ProbeChoice(_Reply):
    logprobs: _Top
    prompt_logprobs: list[dict[str, _PromptLogProb] | None] | None = None


class _ProbeAnswer(_Reply):
    choices: Annotated[list[_ProbeChoice], Field(min_length=1, max_length=1)]


_ReplyT = TypeVar("_ReplyT", bound=_Reply)


async def admit(api: ServerApi, policy: ServedPolicy, max_difference: float) -> None:
    """Return when the server is alive, has the policy, and gives log-probabilities of the right kind.

    Raises:
        ServerFault: it is not, has not, or does not.
    """
    await api.check_health()
    models = _read(api, _Models, await api.get("/v1/models"))
    if policy.base_name is None:
        _find_model(api, models, policy.name, policy)
        await _give_weights(api, policy)
    else:
        _find_model(api, models, policy.base_name, policy)
        await _give_adapter(api, models, policy)
    await check_logprobs(api, policy, max_difference)


async def read_vllm_version(api: ServerApi) -> str:
    """Which vLLM the server runs."""
    return _read(api, _Version, await api.get("/version")).version


async def check_version(api: ServerApi, policy: ServedPolicy) -> None:
    """Return if a whole model's weights are still those of the policy: its name would not tell."""
    if policy.base_name is None:
        version = await _weight_version(api)
        if version != policy.fingerprint:
            raise ServerFault(api.url, f"its weights became those of {version!r} while it sampled", False)


async def check_logprobs(api: ServerApi, policy: ServedPolicy, max_difference: float) -> None:
    """Compare the server's log-probabilities of the probe with the policy's, and at two temperatures."""
    plain = await _ask_probe(api, policy, {"temperature": 1.0, **WHOLE_DISTRIBUTION, "prompt_logprobs": 0})
    hot = await _ask_probe(api, policy, {"temperature": 2.0, **WHOLE_DISTRIBUTION})
    default = await _ask_probe(api, policy, {})
    found, halved, usual = (each.logprobs.top_logprobs[0] for each in (plain, hot, default))
    tokens = found.keys() & halved.keys() & usual.keys()  # those at the top are in all; a drawn one may be beside them
    # Log-probabilities of two tokens are half as far apart at temperature 2, and as far as before if it is left out.
    if _spread(halved, tokens) > 0.75 * _spread(found, tokens):
        problem = "its log-probabilities don't follow the temperature: it runs without "
        raise ServerFault(api.url, f"{problem}`--logprobs-mode processed_logprobs`", False)
    _check_difference(api, _prompt_logprobs(api, plain, policy), policy, max_difference)
    if not tokens or sum(abs(found[token] - usual[token]) for token in tokens) > max_difference * len(tokens):
        problem = "by default it samples from another distribution than the policy's own: it runs without "
        raise ServerFault(api.url, f"{problem}`--generation-config vllm`", False)


async def _give_adapter(api: ServerApi, models: _Models, policy: ServedPolicy) -> None:
    """Have the server load the adapter, in place of those of earlier iterations, unless it has it."""
    if policy.name in {card.id for card in models.data}:
        return
    for card in models.data:
        if card.parent is not None and card.id.startswith(PREFIX):
            await api.post("/v1/unload_lora_adapter", {"lora_name": card.id})
    try:
        await api.post("/v1/load_lora_adapter", {"lora_name": policy.name, "lora_path": policy.folder})
    except ServerFault as fault:
        if fault.is_transient and fault.status != 500:  # vLLM answers 500 to an adapter that it can't read
            raise
        raise ServerFault(api.url, f"it can't load the adapter {policy.folder}: {fault.problem}", False) from fault


async def _give_weights(api: ServerApi, policy: ServedPolicy) -> None:
    """Have the server take the weights of a whole model in place of its own, unless it has them."""
    if await _weight_version(api) == policy.fingerprint:
        return
    # The version is the last to be set, and unset before the first: whatever breaks off, it names no weights.
    await api.post("/update_weight_version", {"new_version": "unknown"})
    await api.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": policy.folder}})
    answer = await api.post("/reset_prefix_cache")
    if b"true" not in answer:
        raise ServerFault(api.url, "it kept its prefix cache, of other weights: is something else using it?", True)
    await api.post("/update_weight_version", {"new_version": policy.fingerprint})


async def _weight_version(api: ServerApi) -> str:
    try:
        return _read(api, _WeightInfo, await api.get("/weight_info")).weight_version
    except ServerFault as fault:
        if fault.status != 404:
            raise
        problem = "it takes no new weights while it runs: it was started without VLLM_SERVER_DEV_MODE=1"
        raise ServerFault(api.url, problem, False) from fault


def _find_model(api: ServerApi, models: _Models, name: str, policy: ServedPolicy) -> None:
    card = next((card for card in models.data if card.id == name), None)
    if card is None:
        served = ", ".join(card.id for card in models.data) or "nothing"
        raise ServerFault(api.url, f"it serves {served}, and not {name}, which the policy here is or needs", False)
    if card.max_model_len is not None and card.max_model_len < policy.n_positions:
        problem = f"it has room for {card.max_model_len} tokens, and prompt and completion may be {policy.n_positions}"
        raise ServerFault(api.url, problem, False)


async def _ask_probe(api: ServerApi, policy: ServedPolicy, options: dict[str, Any]) -> _ProbeChoice:
    body = {"model": policy.name, "prompt": policy.probe.token_ids, "max_tokens": 1, "logprobs": N_TOP}
    content = await api.post("/v1/completions", {**body, "return_tokens_as_token_ids": True, **options})
    try:
        return _ProbeAnswer.model_validate_json(content).choices[0]
    except ValidationError as error:
        raise _no_sense(api, error) from error


def _prompt_logprobs(api: ServerApi, choice: _ProbeChoice, policy: ServedPolicy) -> list[float]:
    """The log-probability of each token of the probe but the first."""
    ids, places = policy.probe.token_ids, choice.prompt_logprobs or []
    found = [
        place[str(token)].logprob
        for place, token in zip(places[1:], ids[1:], strict=False)
        if place and str(token) in place
    ]
    if len(found) != len(ids) - 1:
        problem = f"it gives {len(found)} log-probabilities for the {len(ids) - 1} tokens of a fixed text"
        raise ServerFault(api.url, problem, False)
    return found


def _check_difference(api: ServerApi, found: list[float], policy: ServedPolicy, max_difference: float) -> None:
    difference = sum(abs(a - b) for a, b in zip(found, policy.probe.logprobs, strict=True)) / len(found)
    if difference > max_difference:
        problem = f"what it serves as {policy.name} is another policy: log-probabilities of a fixed text differ by "
        raise ServerFault(api.url, f"{problem}{difference:.3f} nats per token (at most {max_difference:g})", False)


def _spread(logprobs: dict[str, float], tokens: set[str]) -> float:
    values = [logprobs[token] for token in tokens]
    return max(values, default=0.0) - min(values, default=0.0)


def _read(api: ServerApi, model: type[_ReplyT], value: Any) -> _ReplyT:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _no_sense(api, error) from error


def _no_sense(api: ServerApi, error: ValidationError) -> ServerFault:
    return ServerFault(api.url, f"it answers what vLLM doesn't: {first_problem(error)}", False)
