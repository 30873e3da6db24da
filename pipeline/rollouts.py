"""Prompts -> sample requests -> completions as rows: what rollouts and evaluation have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import polars as pl
from jinja2 import TemplateError

from pipeline.errors import BadInput
from pipeline.sampling import SampledCompletion, SampleRequest
from pipeline.seeds import stable_seed
from pipeline.tables import ROLLOUTS, FinishReason


def group_id(iteration: int, prompt_id: str) -> str:
    """The id of the group of a prompt in an iteration.

    >>> group_id(3, "00ff")
    '0003/00ff'
    """
    return f"{iteration:04d}/{prompt_id}"


def tokenize_prompts(
    prompts: pl.DataFrame, tokenizer: Any, chat_template_kwargs: Mapping[str, Any] = MappingProxyType({})
) -> list[list[int]]:
    """Each row's `messages` through the chat template, with its own switches, up to where the completion begins.

    A template may end this with the opening of a reasoning block, inside which the completion then begins.
    """
    if not tokenizer.chat_template:
        raise BadInput("data/base", "its tokenizer has no chat template", "Run `dvc repro base`, or `dvc checkout`")
    for name in chat_template_kwargs:
        # A template takes no notice of a name that it doesn't know.
        if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
            where = f"params.yaml: sampling.chat_template_kwargs.{name}"
            problem = "the chat template in data/base has no such switch"
            raise BadInput(where, problem, "Look at the template, or leave it out")
    rows = zip(prompts["prompt_id"], prompts["messages"].to_list(), strict=True)
    return [_tokenize(prompt_id, messages, tokenizer, chat_template_kwargs) for prompt_id, messages in rows]


def _tokenize(
    prompt_id: str, messages: list[dict[str, str]], tokenizer: Any, chat_template_kwargs: Mapping[str, Any]
) -> list[int]:
    remedy = "Look at the chat template in data/base, and at prompts.system and prompts.template in params.yaml"
    try:
        ids: list[int] = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **chat_template_kwargs
        )
    except TemplateError as error:  # templates refuse, say, a system message
        problem = f"the chat template refuses prompt_id {prompt_id!r} ({error})"
        raise BadInput("data/prompts.parquet", problem, remedy) from error
    if not ids:
        raise BadInput("data/prompts.parquet", f"prompt_id {prompt_id!r} becomes no token", remedy)
    return ids


def make_requests(
    prompt_ids: Sequence[str], token_ids: Sequence[list[int]], n_completions: int, *seed_parts: object
) -> list[SampleRequest]:
    """A request per prompt, whose completions' seeds are hashes of `seed_parts`, the prompt and their index."""
    return [
        SampleRequest(ids, [stable_seed(*seed_parts, prompt_id, index) for index in range(n_completions)])
        for prompt_id, ids in zip(prompt_ids, token_ids, strict=True)
    ]


def completion_rows(
    prompt_ids: Sequence[str],
    requests: Sequence[SampleRequest],
    completions: Sequence[Sequence[SampledCompletion]],
    tokenizer: Any,
    iteration: int,
) -> pl.DataFrame:
    """The table `rollouts` of what was sampled for the requests."""
    rows = [
        {
            "iteration": iteration,
            "prompt_id": prompt_id,
            "group_id": group_id(iteration, prompt_id),
            "completion_id": f"{group_id(iteration, prompt_id)}/{index}",
            "completion_index": index,
            "seed": completion.seed,
            "prompt_token_ids": request.prompt_token_ids,
            "completion_token_ids": completion.token_ids,
            "completion_text": tokenizer.decode(completion.token_ids, skip_special_tokens=True),
            "sampling_logprobs": completion.logprobs,
            "finish_reason": completion.finish_reason,
        }
        for prompt_id, request, group in zip(prompt_ids, requests, completions, strict=True)
        for index, completion in enumerate(group)
    ]
    return pl.DataFrame(rows, schema=ROLLOUTS.schema)


def rollout_metrics(rollouts: pl.DataFrame, seconds: float) -> dict[str, Any]:
    """Counts, lengths and speed, for the metrics of a stage; `seconds` is the time that sampling took."""
    lengths = rollouts["completion_token_ids"].list.len()
    n_tokens = int(lengths.sum())
    is_truncated = rollouts["finish_reason"].cast(FinishReason) == "length"
    return {
        "n_groups": rollouts["group_id"].n_unique(),
        "n_completions": rollouts.height,
        "n_prompt_tokens": int(rollouts["prompt_token_ids"].list.len().sum()),
        "n_completion_tokens": n_tokens,
        "completion_tokens_mean": lengths.mean(),
        "truncated_fraction": is_truncated.mean(),
        "tokens_per_second": round(n_tokens / max(seconds, 1e-9), 1),
        "sampling_logprob_mean": rollouts["sampling_logprobs"].explode().mean(),
    }
