"""Which prompts teach most: drawn by the signal that their pass rate promises.

A group of which all completions or none are correct teaches nothing (`groups.py`), and p(1 - p), the variance of a
verdict, says how far a prompt of pass rate p is from that.

Source: Efraimidis and Spirakis, Weighted random sampling with a reservoir (Information Processing Letters 97, 2006):
weighted sampling without replacement is taking the rows with the largest u^(1/w), u uniform in (0, 1). Deviations:
1. The keys are -log(u) / w, of which the smallest are taken: the same order, and no tiny weight underflows.
2. u is a hash, so that neither the order of the rows nor the number of them changes the key of a prompt.
3. Not all rows take part: prompts without a pass rate come first, and retired ones wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.params import DifficultyParams
from pipeline.seeds import stable_hash, stable_seed

MIN_WEIGHT = 0.01
"""That of any prompt that is not retired, whatever its pass rate: it is known from a few completions only."""


@dataclass(frozen=True)
class Candidate:
    """A train prompt, with what `prompt_stats` has of it; `pass_rate` is the recent one."""

    prompt_id: str
    n_groups: int = 0
    pass_rate: float | None = None
    last_iteration: int | None = None


def draw_by_difficulty(
    candidates: list[Candidate], n_prompts: int, iteration: int, seed: int, params: DifficultyParams
) -> list[tuple[str, str]]:
    """`n_prompts` of the candidates, or all where there are fewer, as prompt_id and reason, in the order of the draw.

    1. Prompts never shown, in the order of `uniform`.
    2. Retired ones, whose pass rate left [retired_below, retired_above], that were not shown for
       `revisit_after_iterations`: those that waited longest, up to `revisit_fraction` of `n_prompts`, rounded up.
    3. The others, weighted by their signal.
    4. Where these are too few, more of the retired, again by how long they waited.
    """
    unseen = [each for each in candidates if each.n_groups == 0]
    retired = [each for each in candidates if each.n_groups and is_retired(each, params)]
    active = [each for each in candidates if each.n_groups and not is_retired(each, params)]

    unseen.sort(key=lambda each: stable_hash(seed, 0, each.prompt_id))
    retired.sort(key=lambda each: (-_age(each, iteration), _clock(each, iteration, seed)))
    active.sort(key=lambda each: _clock(each, iteration, seed))

    n_due = sum(_age(each, iteration) >= params.revisit_after_iterations for each in retired)
    n_revisited = min(n_due, math.ceil(round(params.revisit_fraction * n_prompts, 6)))
    drawn = [
        *((each, "unseen") for each in unseen),
        *((each, f"revisited {_known(each, iteration)}") for each in retired[:n_revisited]),
        *((each, f"signal {_rate(each)}") for each in active),
        *((each, f"filler {_known(each, iteration)}") for each in retired[n_revisited:]),
    ]
    return [(each.prompt_id, reason) for each, reason in drawn[:n_prompts]]


def is_retired(candidate: Candidate, params: DifficultyParams) -> bool:
    """Whether its groups are expected to be all correct or all wrong."""
    rate = candidate.pass_rate
    return rate is not None and not params.retired_below <= rate <= params.retired_above


def signal(pass_rate: float | None) -> float:
    """The weight of a prompt: p(1 - p), with a floor; without a pass rate that of p = 0.5, of which least is known.

    >>> signal(0.5), signal(0.25), signal(None), signal(1.0)
    (0.25, 0.1875, 0.25, 0.01)
    """
    p = 0.5 if pass_rate is None else pass_rate
    return max(p * (1 - p), MIN_WEIGHT)


def _clock(candidate: Candidate, iteration: int, seed: int) -> float:
    """An exponential variate whose rate is the prompt's weight: the smallest of these are a weighted draw."""
    u = (stable_seed("difficulty", seed, iteration, candidate.prompt_id) + 0.5) / 2**63
    return -math.log(u) / signal(candidate.pass_rate)


def _age(candidate: Candidate, iteration: int) -> int:
    return iteration - (candidate.last_iteration or 0)


def _rate(candidate: Candidate) -> str:
    return "without a pass rate" if candidate.pass_rate is None else f"p={candidate.pass_rate:.2f}"


def _known(candidate: Candidate, iteration: int) -> str:
    age = _age(candidate, iteration)
    return f"{_rate(candidate)} after {age} {'iteration' if age == 1 else 'iterations'}"
