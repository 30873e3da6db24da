"""The terms of `score.terms`: found by kind, their params checked before anything is scored.

A kind is a module: a built-in one of `pipeline.rewards.terms`, or a user's own of `pipeline.rewards.user`. Which
one of `FUNCTIONS` it has says what it is called with.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from pydantic import ValidationError

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, Section, TermParams
from pipeline.rewards import terms, user
from pipeline.rewards.workers import describe

USER_FOLDER = "pipeline/rewards/user"

Scope = Literal["completion", "group", "groups", "batch"]
FUNCTIONS: dict[Scope, str] = {
    "completion": "score",
    "group": "score_group",
    "groups": "score_groups",
    "batch": "score_batch",
}
"""What a term is called with, by the name of its function.

A completion; a group, whole; many groups at a time, for models and services that take many, where a completion's value
depends on its group alone; all completions of the iteration.
"""


@dataclass(frozen=True)
class Term:
    """A term of `score.terms`: `module` does its work, once for each of what `scope` says."""

    name: str
    settings: TermParams
    module: str
    params: Section
    scope: Scope
    runs_in_worker: bool
    needs_verdict: bool


def load_terms(params: Mapping[str, TermParams]) -> list[Term]:
    """The terms of `score.terms`, in order.

    Raises:
        BadInput: a kind is found nowhere or twice, its module has no function or several or can't be imported, or it
            doesn't take its params; the message names the key of params.yaml.
    """
    return [_load_term(name, settings) for name, settings in params.items()]


def _load_term(name: str, settings: TermParams) -> Term:
    where = f"{PARAMS_FILE}: score.terms.{name}"
    module, is_users_own = _find(settings.kind or name, f"{where}.kind" if settings.kind else where)
    return Term(
        name,
        settings,
        module.__name__,
        _check_params(module, settings, where),
        _scope(module, where),
        runs_in_worker=is_users_own or getattr(module, "RUNS_IN_WORKER", False),
        needs_verdict=getattr(module, "NEEDS_VERDICT", False),
    )


def _find(kind: str, where: str) -> tuple[ModuleType, bool]:
    """The module of a kind of term, and whether it is a user's own."""
    built_in, users_own = ([each.name for each in pkgutil.iter_modules(at.__path__)] for at in (terms, user))
    if kind in built_in and kind in users_own:
        raise BadInput(where, f"the kind {kind!r} is built in and also in {USER_FOLDER}/", f"Rename {kind}.py there")
    if kind in built_in:
        return _import(f"{terms.__name__}.{kind}", where), False
    if kind in users_own:
        return _import(f"{user.__name__}.{kind}", where), True
    if re.search(r"\W", kind):
        problem = f"{kind!r} is a function from elsewhere, which DVC doesn't watch: an edit of it would not score again"
        raise BadInput(where, problem, f"Put it into a module in {USER_FOLDER}/, and give that module's name")
    known = f"Built in are {', '.join(built_in)}; in {USER_FOLDER}/ there are {', '.join(users_own) or 'none'}"
    raise BadInput(where, f"there is no kind of term {kind!r}", f"{known}; a term of your own is a module there")


def _import(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a user's own code may raise anything
        problem = f"{_file(name)} can't be imported: {describe(error)}"
        raise BadInput(where, problem, f"Mend {_file(name)}") from error


def _scope(module: ModuleType, where: str) -> Scope:
    found = [scope for scope, name in FUNCTIONS.items() if callable(getattr(module, name, None))]
    if len(found) == 1:
        return found[0]
    file, names = _file(module.__name__), ", ".join(f"`{name}`" for name in FUNCTIONS.values())
    if not found:
        problem = f"{file} has none of the functions {names}"
        raise BadInput(where, problem, "Add `def score(completion, params)` to it")
    has = " and ".join(f"`{FUNCTIONS[scope]}`" for scope in found)
    raise BadInput(where, f"{file} has {has}, and a term is one function", "Make two modules of it")


def _file(module: str) -> str:
    return module.replace(".", "/") + ".py"


class NoParams(Section):
    """The params of a term that has none."""


def _check_params(module: ModuleType, settings: TermParams, where: str) -> Section:
    model = getattr(module, "Params", NoParams)
    if not (isinstance(model, type) and issubclass(model, Section)):
        problem = f"{_file(module.__name__)} has a `Params` that is no Section"
        raise BadInput(where, problem, "Derive it from `pipeline.params.Section`")
    try:
        return model.model_validate(settings.params)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join([where, "params", *map(str, first["loc"])])
        known = f"It takes {', '.join(model.model_fields) or 'no params'}"
        if first["type"] == "extra_forbidden":
            raise BadInput(key, "the term doesn't take this key", known) from error
        if first["type"] == "missing":
            raise BadInput(key, "it is missing", known) from error
        rule = str(first["msg"]).removeprefix("Value error, ")
        shown = "" if isinstance(first["input"], dict) else f"{first['input']!r}: "
        raise BadInput(key, f"{shown}{rule}", "Change it in params.yaml") from error
