"""The term `judge`: what a language model thinks of a completion, by a rubric, on any address that speaks OpenAI's API.

Pointwise, it scores each completion, and the value is the score as a fraction of the scale. Pairwise (Zheng et al.,
Judging LLM-as-a-Judge, arXiv 2306.05685), it compares completions of a group, each pair in both orders since judges
prefer a place, and the value is the fraction of comparisons won, a tie counting a half. Several votes are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean
from typing import Annotated, Any, Literal

import httpx
from pydantic import Field, field_validator, model_validator

from pipeline.api_keys import read_api_key
from pipeline.params import Finite, Positive, PositiveFloat, Section
from pipeline.rewards.completion import Completion, Unscored
from pipeline.rewards.judging import judgements
from pipeline.rewards.judging.client import Failure, Limits, ask_all
from pipeline.rewards.judging.questions import Chat, JudgeQuestion, preference_messages, score_messages, verdict_schema
from pipeline.rewards.judging.verdicts import read_preference, read_score


class Params(Section):
    """`address` ends in `/v1`, mostly; `api_key_variable` names the environment's variable that holds the key.

    In mode `pairwise` each completion meets the next `n_rivals` of its group, and those before meet it. `format` is how
    the server is asked to hold the model to JSON.
    """

    address: Annotated[str, Field(pattern=r"^https?://\S+$")]
    model: str
    api_key_variable: str | None = None
    mode: Literal["pointwise", "pairwise"] = "pointwise"
    rubric: Annotated[str, Field(min_length=1)]
    min_score: int = 0
    max_score: int = 10
    shows_answer: bool = True
    n_votes: Positive = 1
    n_rivals: Positive = 2
    temperature: Annotated[Finite, Field(ge=0)] = 0.0
    max_tokens: Positive = 512
    format: Literal["json_schema", "json_object", "none"] = "json_schema"
    concurrency: Annotated[int, Field(gt=0, le=256)] = 8
    requests_per_minute: PositiveFloat | None = None
    timeout_seconds: PositiveFloat = 60.0
    n_tries: Positive = 5

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        try:
            httpx.URL(value)
        except httpx.InvalidURL as error:
            raise ValueError(f"it is no address ({error})") from error
        return value

    @model_validator(mode="after")
    def _is_a_scale(self) -> Params:
        if self.min_score >= self.max_score:
            raise ValueError(f"min_score {self.min_score} must be below max_score {self.max_score}")
        return self

    @property
    def scale(self) -> tuple[int, int]:
        """The lowest and the highest score."""
        return self.min_score, self.max_score


def score_groups(completions: Sequence[Completion], params: Params) -> list[float | Unscored]:
    """From 0 to 1 for each completion; unscored where one of its questions got no verdict."""
    if params.mode == "pointwise":
        return _scores(completions, params)
    groups = [list(group) for _, group in groupby(completions, lambda completion: completion.group_id)]
    won = _fractions_won([pair for group in groups for pair in pairs(group, params.n_rivals)], params)
    return [won.get(each.completion_id, Unscored("there is no other completion in its group")) for each in completions]


def pairs(group: Sequence[Completion], n_rivals: int) -> list[tuple[Completion, Completion]]:
    """Who meets whom: each completion the next `n_rivals` of its group, around its end, and nobody twice."""
    n = len(group)
    met: dict[frozenset[int], tuple[Completion, Completion]] = {}
    for step in range(1, min(n_rivals, n - 1) + 1):
        for i in range(n):
            j = (i + step) % n
            met.setdefault(frozenset((i, j)), (group[i], group[j]))
    return list(met.values())


def _scores(completions: Sequence[Completion], params: Params) -> list[float | Unscored]:
    chats = [score_messages(each, params.rubric, params.scale, params.shows_answer) for each in completions]
    return _verdicts(chats, params)


def _fractions_won(matches: Sequence[tuple[Completion, Completion]], params: Params) -> dict[str, float | Unscored]:
    """completion_id -> the fraction of its comparisons that it won."""
    ordered = [each for first, second in matches for each in ((first, second), (second, first))]
    different = [each for each in ordered if each[0].completion_text != each[1].completion_text]
    chats = [preference_messages(*each, params.rubric, params.shows_answer) for each in different]
    verdicts = iter(_verdicts(chats, params))
    won: dict[str, list[float | Unscored]] = {}
    for first, second in ordered:
        value = next(verdicts) if first.completion_text != second.completion_text else 0.5
        won.setdefault(first.completion_id, []).append(value)
        won.setdefault(second.completion_id, []).append(value if isinstance(value, Unscored) else 1 - value)
    return {completion_id: _mean(values) for completion_id, values in won.items()}


def _verdicts(chats: Sequence[Chat], params: Params) -> list[float | Unscored]:
    """The mean of the votes on each of `chats`; equal questions, and those that were answered before, aren't asked."""
    votes = [_question(chat, vote, params) for chat in chats for vote in range(params.n_votes)]
    missing = {question.key: question for question in votes if judgements.KEPT.find(question) is None}
    limits = Limits(params.concurrency, params.requests_per_minute, params.timeout_seconds, params.n_tries)
    failures: dict[str, str] = {}
    if missing:
        key = read_api_key(params.api_key_variable, "a judge's")
        answers = ask_all(
            list(missing.values()), limits, key, lambda text: _read(text, params) is not None, judgements.KEPT.keep
        )
        failures = {key: each.reason for key, each in zip(missing, answers, strict=True) if isinstance(each, Failure)}
    values = [_value(judgements.KEPT.find(question), failures.get(question.key), params) for question in votes]
    return [_mean(values[start : start + params.n_votes]) for start in range(0, len(values), params.n_votes)]


def _question(chat: Chat, vote: int, params: Params) -> JudgeQuestion:
    body: dict[str, Any] = {
        "model": params.model,
        "messages": chat,
        "temperature": params.temperature,
        "max_tokens": params.max_tokens,
        "seed": vote,
    }
    if params.format == "json_object":
        body["response_format"] = {"type": "json_object"}
    elif params.format == "json_schema":
        kind: Literal["score", "preference"] = "score" if params.mode == "pointwise" else "preference"
        schema = {"name": "verdict", "strict": True, "schema": verdict_schema(kind, params.scale)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return JudgeQuestion(params.address, body)


def _read(text: str, params: Params) -> float | None:
    return read_score(text, params.scale) if params.mode == "pointwise" else read_preference(text)


def _value(answer: str | None, failure: str | None, params: Params) -> float | Unscored:
    value = None if answer is None else _read(answer, params)
    return Unscored(failure or "the verdict that was kept is malformed") if value is None else value


def _mean(values: Sequence[float | Unscored]) -> float | Unscored:
    unscored = next((value for value in values if isinstance(value, Unscored)), None)
    return unscored or fmean(value for value in values if not isinstance(value, Unscored))
