"""What each term gives each completion: a finite number, or null and why there is none."""

from __future__ import annotations

import importlib
import math
import numbers
from collections.abc import Sequence
from itertools import groupby

from pipeline.errors import RollbookError
from pipeline.params import Section
from pipeline.rewards.completion import Completion, Unscored
from pipeline.rewards.registry import FUNCTIONS, Scope, Term
from pipeline.rewards.workers import Call, Outcome, Workers, describe

USER_TIME_LIMIT_SECONDS = 5.0
"""For each completion that a call of a term in a worker is about."""

TermValue = tuple[float | None, str | None]
"""The value, or None and why there is none."""


def apply_term(term: Term, completions: Sequence[Completion], workers: Workers | None) -> list[TermValue]:
    """The term's value for each completion; a term that runs in workers needs them.

    Completions of a group come one after another.
    """
    units = _units(term.scope, completions)
    if term.runs_in_worker:
        assert workers is not None
        outcomes = workers.run([_call(term, unit) for unit in units], lambda _n: None)
    else:
        outcomes = [_call_here(term, unit) for unit in units]
    pairs = zip(units, outcomes, strict=True)
    return [value for unit, outcome in pairs for value in _values(term, outcome, len(unit))]


def score_unit(module: str, scope: Scope, completions: Sequence[Completion], params: Section) -> list[TermValue]:
    """What the term in `module` gives the completions of one call: each a value, or None and what is wrong with it.

    Raises:
        ValueError: there is not one value for each completion.
    """
    function = getattr(importlib.import_module(module), FUNCTIONS[scope])
    values = [function(completions[0], params)] if scope == "completion" else list(function(completions, params))
    if len(values) != len(completions):
        raise ValueError(f"it returned {len(values)} values for {len(completions)} completions")
    return [_checked(value) for value in values]


def _units(scope: Scope, completions: Sequence[Completion]) -> list[list[Completion]]:
    """The completions that each call is about."""
    if scope == "completion":
        return [[completion] for completion in completions]
    if scope == "group":
        return [list(group) for _, group in groupby(completions, lambda completion: completion.group_id)]
    return [list(completions)] if completions else []


def _call(term: Term, unit: Sequence[Completion]) -> Call:
    limit = USER_TIME_LIMIT_SECONDS * len(unit)
    return Call(f"{__name__}:score_unit", (term.module, term.scope, unit, term.params), limit)


def _call_here(term: Term, unit: Sequence[Completion]) -> Outcome:
    try:
        return Outcome(score_unit(term.module, term.scope, unit, term.params))
    except RollbookError:  # what a person has to mend first, such as a model that isn't there
        raise
    except Exception as error:  # whatever it is, it is these completions' score_error
        return Outcome(failure="exception", reason=describe(error))


def _checked(value: object) -> TermValue:
    if value is None:
        return None, None
    if isinstance(value, Unscored):
        return None, value.reason
    if not isinstance(value, numbers.Real):
        return None, f"TypeError: it returned {value!r:.100}, which is no number"
    try:
        number = float(value)
    except OverflowError:
        return None, "OverflowError: it returned a number beyond floating point"
    return (number, None) if math.isfinite(number) else (None, f"ValueError: it returned {number}, which is not finite")


def _values(term: Term, outcome: Outcome, n_completions: int) -> list[TermValue]:
    if outcome.failure:
        return [(None, f"{term.name}: {outcome.reason}")] * n_completions
    # A term that only lacks a verdict has its reason in the verdict's.
    no_reason = None if term.needs_verdict else f"{term.name}: it can't judge this completion"
    return [
        (value, None if value is not None else f"{term.name}: {error}" if error else no_reason)
        for value, error in outcome.value
    ]
