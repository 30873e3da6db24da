"""Editing the text of params.yaml: single keys change, comments and order stay."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, parse_params


def edit_params(text: str, changes: Mapping[str, Any], where: str = str(PARAMS_FILE)) -> str:
    """`text` with the dotted keys of `changes` set to their values, checked as a whole.

    Raises:
        BadInput: a key is unknown, or a value breaks a rule.
    """
    parse_params(text, where)
    if not changes:
        return text
    editor = _editor()
    document = editor.load(text)
    for key, value in changes.items():
        *sections, last = key.split(".")
        place = document
        for section in sections:
            if not isinstance(place.get(section), dict):
                place[section] = CommentedMap()
            place = place[section]
        if last in place or not place:
            place[last] = value
        else:  # not at the end, since the blank line before the next section belongs to the last key
            place.insert(len(place) - 1, last, value)
    edited = io.StringIO()
    editor.dump(document, edited)
    parse_params(edited.getvalue(), where)
    return edited.getvalue()


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """`key=value` pairs as changes for `edit_params`, each value read as YAML.

    >>> parse_settings(["training.learning_rate=3.0e-4", "evaluate.k=[1, 4]", "prompts.system=null"])
    {'training.learning_rate': 0.0003, 'evaluate.k': [1, 4], 'prompts.system': None}
    """
    changes: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key or not all(key.split(".")):
            raise BadInput(f"setting {setting!r}", "it is not key=value", "Write it like training.learning_rate=3e-4")
        try:
            changes[key.strip()] = _as_number(YAML(typ="safe", pure=True).load(value))
        except (YAMLError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise BadInput(f"setting {setting!r}", f"its value is not YAML ({reason})", "Quote it") from error
    return changes


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> the values of both where they differ; None stands for a key that one of them lacks.

    >>> differing_keys({"seed": 0, "a": {"b": 1, "c": 2}}, {"seed": 0, "a": {"b": 1, "c": 3}})
    {'a.c': (2, 3)}
    """
    left, right = _flatten(one), _flatten(other)
    keys = [*left, *(key for key in right if key not in left)]
    return {key: (left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)}


def _flatten(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _as_number(value: Any) -> Any:
    """A number that YAML 1.2 takes for a string because its mantissa has no point, like 3e-4."""
    if isinstance(value, str) and "e" in value.lower():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _editor() -> YAML:
    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 4096
    editor.indent(mapping=2, sequence=4, offset=2)
    editor.representer.add_representer(type(None), _represent_null)
    return editor


def _represent_null(representer: Any, _: None) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")
