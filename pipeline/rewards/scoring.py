"""Completions -> verdicts and rewards. N rows in, N rows out, in the order they came."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import polars as pl

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, ScoreParams
from pipeline.rewards.completion import Completion, Verdict
from pipeline.rewards.terms import Term, TermValue, apply_term, load_terms
from pipeline.rewards.verification import NO_VERIFIER, answer_questions, judge_at_once, make_verifiers
from pipeline.rewards.verifier import Prompt, Question, Verifier
from pipeline.rewards.workers import Workers, start_workers
from pipeline.tables import REWARDS

ROLLOUT_COLUMNS = ["completion_id", "prompt_id", "completion_text", "finish_reason"]
PROMPT_COLUMNS = ["prompt_id", "messages", "answer", "verifier", "metadata"]

_PROMPTS_FILE = "data/prompts.parquet"
_ROLLOUTS_FILE = "data/rollouts.parquet"


def score_completions(
    rollouts: pl.DataFrame,
    prompts: pl.DataFrame,
    params: ScoreParams,
    on_progress: Callable[[int], None] = lambda _n: None,
) -> pl.DataFrame:
    """Verdict, terms and reward of each row of `rollouts`, in their order.

    Args:
        rollouts: at least `ROLLOUT_COLUMNS`.
        prompts: at least `PROMPT_COLUMNS`, one row per prompt.
        params: which verifier settings and terms; `reward` is the sum of weight x term.
        on_progress: gets, again and again, how many more completions have their verdict.

    Returns:
        completion_id, reward, is_correct, extracted_answer, `reward_<term>` of each term, score_error. `reward` is
        null where a term is, and `score_error` then says why.

    Raises:
        BadInput: a prompt is missing or names an unknown verifier, a term can't be used as params.yaml says, or a
            term needs a verdict where the prompts have no verifier.
    """
    terms = load_terms(params.terms)
    known = _prompts_by_id(rollouts, prompts)
    verifiers = make_verifiers(params)
    _check_verifiers(list(known.values()), verifiers, terms)

    rows = list(rollouts.select(ROLLOUT_COLUMNS).iter_rows())
    judged = [judge_at_once(text, known[prompt_id], verifiers) for _, prompt_id, text, _ in rows]
    with _workers(judged, terms, params.n_workers) as workers:
        verdicts = answer_questions(judged, workers, on_progress)
        completions = [_completion(row, known[row[1]], verdict) for row, verdict in zip(rows, verdicts, strict=True)]
        values = [apply_term(term, completions, workers) for term in terms]
    return _frame(completions, verdicts, terms, values)


def _prompts_by_id(rollouts: pl.DataFrame, prompts: pl.DataFrame) -> dict[str, Prompt]:
    """The prompts that `rollouts` refer to."""
    used = prompts.select(PROMPT_COLUMNS).join(rollouts, on="prompt_id", how="semi")
    known = {row[0]: Prompt(row[0], tuple(row[1]), *row[2:]) for row in used.iter_rows()}
    for row, prompt_id in enumerate(rollouts["prompt_id"]):
        if prompt_id not in known:
            problem = f"prompt_id {prompt_id!r} is not in {_PROMPTS_FILE}"
            raise BadInput(f"{_ROLLOUTS_FILE}: row {row}", problem, "Run `dvc repro rollout`, so that the two fit")
    return known


def _check_verifiers(prompts: Sequence[Prompt], verifiers: Mapping[str, Verifier], terms: Sequence[Term]) -> None:
    for prompt in prompts:
        if prompt.verifier not in verifiers and prompt.verifier != NO_VERIFIER:
            problem = f"there is no verifier {prompt.verifier!r}"
            remedy = f"Set prompts.verifier to one of {', '.join(verifiers)} or {NO_VERIFIER}"
            raise BadInput(f"{_PROMPTS_FILE}: prompt {prompt.prompt_id}", problem, remedy)
    unverified = next((prompt for prompt in prompts if prompt.verifier == NO_VERIFIER), None)
    needy = next((term for term in terms if term.needs_verdict), None)
    if unverified and needy:
        problem = f"it needs a verdict, and prompt {unverified.prompt_id} of {_PROMPTS_FILE} has the verifier none"
        remedy = "Remove the term, or give the prompts a verifier with prompts.verifier"
        raise BadInput(f"{PARAMS_FILE}: score.terms.{needy.name}", problem, remedy)


def _workers(
    judged: Sequence[Verdict | Question], terms: Sequence[Term], n_workers: int
) -> AbstractContextManager[Workers | None]:
    """The worker processes, or None where there is nothing for them to do: they take a while to start."""
    warm_up = list(dict.fromkeys(each.warm_up for each in judged if isinstance(each, Question)))
    modules = [term.module for term in terms if term.is_users_own]
    return start_workers(n_workers, modules, warm_up) if warm_up or modules else nullcontext()


def _completion(row: tuple[str, str, str, str], prompt: Prompt, verdict: Verdict) -> Completion:
    return Completion(
        completion_id=row[0],
        messages=prompt.messages,
        completion_text=row[2],
        finish_reason=row[3],
        answer=prompt.answer,
        metadata=prompt.metadata,
        is_correct=verdict.is_correct,
        partial_score=verdict.partial_score,
        extracted_answer=verdict.extracted_answer,
    )


def _frame(
    completions: Sequence[Completion],
    verdicts: Sequence[Verdict],
    terms: Sequence[Term],
    values: Sequence[Sequence[TermValue]],
) -> pl.DataFrame:
    """One row per completion; `values` has one entry per term, each with one value per completion."""
    by_completion = list(zip(*values, strict=True))
    rewards = [_reward(each, terms) for each in by_completion]
    errors = [
        [verdict.error, *(error for _, error in (*each, reward))]
        for verdict, each, reward in zip(verdicts, by_completion, rewards, strict=True)
    ]
    columns: dict[str, list[Any]] = {
        "completion_id": [each.completion_id for each in completions],
        "reward": [reward for reward, _ in rewards],
        "is_correct": [verdict.is_correct for verdict in verdicts],
        "extracted_answer": [verdict.extracted_answer for verdict in verdicts],
        **{f"reward_{term.name}": [value for value, _ in column] for term, column in zip(terms, values, strict=True)},
        "score_error": ["; ".join(filter(None, each)) or None for each in errors],
    }
    schema = {name: REWARDS.schema.get(name, pl.Float64) for name in columns}
    return pl.DataFrame(columns, schema=schema)


def _reward(values: Sequence[TermValue], terms: Sequence[Term]) -> TermValue:
    """The sum of weight x value; null where a value is null, or where the sum is beyond floating point."""
    reward = 0.0
    for term, (value, _) in zip(terms, values, strict=True):
        if value is None:
            return None, None
        reward += term.weight * value
    return (reward, None) if math.isfinite(reward) else (None, "reward: the weighted sum is not finite")
