"""Terms of the reward: found by kind, their params checked at the start, then applied to completions.

A kind is a module with `score(completion, params) -> float | None` and, where it has settings, a class `Params`.
The built-in kinds are modules of this package; a user's own are modules of `pipeline.rewards.user`.
"""

from __future__ import annotations

import importlib
import math
import numbers
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from pydantic import ValidationError

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, Section, TermParams
from pipeline.rewards import user
from pipeline.rewards.completion import Completion
from pipeline.rewards.workers import Call, Outcome, Workers, describe

BUILT_IN = ("correct", "format")
USER_FOLDER = "pipeline/rewards/user"
USER_TIME_LIMIT_SECONDS = 5.0

TermValue = tuple[float | None, str | None]
"""The value, or None and why there is none."""


@dataclass(frozen=True)
class Term:
    """A term of `score.terms`: `module` does its work."""

    name: str
    weight: float
    module: str
    params: Section
    is_users_own: bool
    needs_verdict: bool


def load_terms(params: Mapping[str, TermParams]) -> list[Term]:
    """The terms of `score.terms`, in order.

    Raises:
        BadInput: a kind is found nowhere or twice, its module has no `score` or can't be imported, or it doesn't
            take its params; the message names the key of params.yaml.
    """
    return [_load_term(name, term) for name, term in params.items()]


def apply_term(term: Term, completions: Sequence[Completion], workers: Workers | None) -> list[TermValue]:
    """The term's value for each completion; a user's own term needs the workers."""
    if not term.is_users_own:
        return [_in_process(term, completion) for completion in completions]
    assert workers is not None
    function = f"{__name__}:score_one"
    calls = [Call(function, (term.module, each, term.params), USER_TIME_LIMIT_SECONDS) for each in completions]
    return [_value(term, outcome) for outcome in workers.run(calls, lambda _n: None)]


def score_one(module: str, completion: Completion, params: Section) -> float | None:
    """What the term in `module` gives `completion`.

    Raises:
        ValueError: it is not finite.
        TypeError: it is no number.
    """
    value = importlib.import_module(module).score(completion, params)
    if value is None:
        return None
    if not isinstance(value, numbers.Real):
        raise TypeError(f"it returned {value!r:.100}, which is no number")
    if not math.isfinite(value):
        raise ValueError(f"it returned {value}, which is not finite")
    return float(value)


def _in_process(term: Term, completion: Completion) -> TermValue:
    try:
        return _value(term, Outcome(score_one(term.module, completion, term.params)))
    except Exception as error:  # whatever it is, it is this completion's score_error
        return _value(term, Outcome(failure="exception", reason=describe(error)))


def _value(term: Term, outcome: Outcome) -> TermValue:
    if outcome.failure:
        return None, f"{term.name}: {outcome.reason}"
    if outcome.value is None and not term.needs_verdict:
        return None, f"{term.name}: it can't judge this completion"
    return outcome.value, None  # a term that only lacks a verdict has its reason in the verdict's


def _load_term(name: str, term: TermParams) -> Term:
    kind = term.kind or name
    where = f"{PARAMS_FILE}: score.terms.{name}"
    users_own = sorted(module.name for module in pkgutil.iter_modules(user.__path__))
    if kind not in {*BUILT_IN, *users_own}:
        key = f"{where}.kind" if term.kind else where
        known = f"Built in are {', '.join(BUILT_IN)}; in {USER_FOLDER}/ there are {', '.join(users_own) or 'none'}"
        raise BadInput(key, f"there is no kind of term {kind!r}", f"{known}; a term of your own is a module there")
    if kind in BUILT_IN and kind in users_own:
        raise BadInput(where, f"the kind {kind!r} is built in and also in {USER_FOLDER}/", f"Rename {kind}.py there")
    package = __package__ if kind in BUILT_IN else user.__name__
    module = _import(f"{package}.{kind}", where)
    return Term(
        name,
        term.weight,
        module.__name__,
        _check_params(module, term, where),
        is_users_own=kind in users_own,
        needs_verdict=getattr(module, "NEEDS_VERDICT", False),
    )


def _import(name: str, where: str) -> ModuleType:
    file = name.replace(".", "/") + ".py"
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a user's own code may raise anything
        problem = f"{file} can't be imported: {describe(error)}"
        raise BadInput(where, problem, f"Mend {file}") from error
    if not callable(getattr(module, "score", None)):
        raise BadInput(where, f"{file} has no function `score`", "Add `def score(completion, params)` to it")
    return module


class NoParams(Section):
    """The params of a term that has none."""


def _check_params(module: ModuleType, term: TermParams, where: str) -> Section:
    model: type[Section] = getattr(module, "Params", NoParams)
    try:
        return model.model_validate(term.params)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join([where, "params", *map(str, first["loc"])])
        known = f"It takes {', '.join(model.model_fields) or 'no params'}"
        if first["type"] == "extra_forbidden":
            raise BadInput(key, "the term doesn't take this key", known) from error
        if first["type"] == "missing":
            raise BadInput(key, "it is missing", known) from error
        rule = str(first["msg"]).removeprefix("Value error, ")
        raise BadInput(key, f"{first['input']!r}: {rule}", "Change it in params.yaml") from error
