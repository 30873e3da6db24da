"""What a server answers when it is asked for completions, checked in full: it may be garbage, cut off, another's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.sampling import FinishReason
from pipeline.sampling.stopping import Stops

ROUNDING = 1e-3
"""By how much a log-probability may be above zero, where a GPU rounds; it is zero then."""

TokenId = Annotated[int, Field(ge=0)]
LogProb = Annotated[float, Field(le=ROUNDING, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class TokenLogProbs(_Part):
    """Of a completion: the log-probability of each of its tokens."""

    token_logprobs: list[LogProb]


class Choice(_Part):
    """A completion."""

    index: int
    token_ids: list[TokenId]
    logprobs: TokenLogProbs
    finish_reason: FinishReason
    prompt_token_ids: list[int] | None = None


class Answer(_Part):
    """The body of an answer of `/v1/completions`, as far as it is used."""

    model: str
    choices: list[Choice]


@dataclass(frozen=True)
class Expected:
    """What was asked for: `n` completions of the prompt by the model called `model`, and what ends them."""

    model: str
    prompt_token_ids: list[int]
    n: int
    n_vocabulary: int
    stops: Stops


def read_answer(content: bytes, expected: Expected) -> list[Choice]:
    """The completions in the body of an answer; a `ValueError` says what is wrong with it.

    >>> expected = Expected("m", [5], 1, 9, Stops(frozenset({2}), (), 0, 3))
    >>> body = '{"model": "m", "choices": [{"index": 0, "token_ids": [4, 2], "finish_reason": "stop", "logprobs": %s}]}'
    >>> read_answer((body % '{"token_logprobs": [-0.5, -1.5]}').encode(), expected)[0].token_ids
    [4, 2]
    >>> read_answer((body % '{"token_logprobs": [-0.5]}').encode(), expected)
    Traceback (most recent call last):
        ...
    ValueError: completion 0 has 1 log-probabilities for 2 tokens
    """
    try:
        answer = Answer.model_validate_json(content)
    except ValidationError as error:
        shown = content[:200].decode(errors="replace")
        raise ValueError(f"{first_problem(error)} (it begins with {shown!r})") from error
    if answer.model != expected.model:
        raise ValueError(f"it is from the model {answer.model!r}, and {expected.model!r} was asked")
    choices = sorted(answer.choices, key=lambda choice: choice.index)
    if [choice.index for choice in choices] != list(range(expected.n)):
        raise ValueError(f"it has {len(choices)} completions, and {expected.n} were asked for")
    for choice in choices:
        if problem := _find_problem(choice, expected):
            raise ValueError(f"completion {choice.index} {problem}")
    return choices


def _find_problem(choice: Choice, expected: Expected) -> str | None:
    """The rule that a completion breaks."""
    stops = expected.stops
    ids, n_tokens, n_logprobs = choice.token_ids, len(choice.token_ids), len(choice.logprobs.token_logprobs)
    if not 0 < n_tokens <= stops.max_tokens:
        return f"has {n_tokens} tokens, which is not between 1 and {stops.max_tokens}"
    if n_logprobs != n_tokens:
        return f"has {n_logprobs} log-probabilities for {n_tokens} tokens"
    if max(ids) >= expected.n_vocabulary:
        return f"has the token {max(ids)}, and the vocabulary ends at {expected.n_vocabulary - 1}"
    if choice.prompt_token_ids not in (None, expected.prompt_token_ids):
        return "is of another prompt than the one that was sent"
    if any(token in stops.end_token_ids for token in ids[stops.min_tokens : -1]):
        return "goes on after an end token"
    if choice.finish_reason == "length" and n_tokens < stops.max_tokens:
        return f"is cut off after {n_tokens} of {stops.max_tokens} tokens"
    if choice.finish_reason == "stop" and not stops.strings and ids[-1] not in stops.end_token_ids:
        return f"stops at the token {ids[-1]}, which is no end token"
    return None


def first_problem(error: ValidationError) -> str:
    """Where an answer is wrong first, and how."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else str(first["msg"])
