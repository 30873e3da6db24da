"""What pydantic finds wrong with params.yaml, as one message that a person can act on."""

from __future__ import annotations

import difflib
import typing
from typing import Any

from pydantic import BaseModel, ValidationError

from pipeline.errors import BadInput


def explain(error: ValidationError, model: type[BaseModel], where: str) -> BadInput:
    """The first problem of `error`, which checking a value against `model` gave, in words that name the key."""
    problems = error.errors(include_url=False)
    # A misspelled key is also a missing one, and the unknown one tells more.
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    key = _key_of(first["loc"])
    n_others = len({_key_of(problem["loc"]) for problem in problems}) - 1
    others = f" (and {n_others} more)" if n_others else ""
    if first["type"] == "extra_forbidden":
        known = _known_keys(model, first["loc"][:-1])
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1, cutoff=0.5)
        remedy = f"The nearest known key is {near[0]!r}" if near else f"Known keys here: {', '.join(known)}"
        return BadInput(f"{where}: {key}", f"unknown key{others}", remedy)
    if first["type"] == "missing":
        return BadInput(f"{where}: {key}", f"it is missing{others}", "Add it; the README shows every key")
    same_key = dict.fromkeys(problem["msg"] for problem in problems if _key_of(problem["loc"]) == key)
    rule = " or ".join(same_key).removeprefix("Value error, ")
    shown = "" if isinstance(first["input"], dict) else f"{first['input']!r}: "
    return BadInput(f"{where}: {key}" if key else where, f"{shown}{rule}{others}", "Change it in params.yaml")


def _key_of(location: tuple[int | str, ...]) -> str:
    """`location` as dotted keys, without the names of a union's alternatives, such as `list[str]`."""
    return ".".join(str(part) for part in location if "[" not in str(part))


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        if part in model.model_fields:  # a list's index or a dict's key stays within its section
            model = _section_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        found = _section_in(argument)
        if found:
            return found
    return None
