"""Rows of named columns -> raw prompts: which cell is a prompt, which an answer, and what is wrong with the others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, get_args

from pipeline.errors import BadInput, first_line
from pipeline.params import PromptSource, VerifierName
from pipeline.prompt_sources.raw import SOURCE_KEY, Message, RawPrompt, Rows, nearest

ROLES = ("system", "user", "assistant")
VERIFIERS = get_args(VerifierName)
MAX_WRITTEN_DIGITS = 400


def check_answers_named(source: PromptSource, needs_answer: bool) -> None:
    """A `BadInput` where the verifier needs answers and `source` names no column of them."""
    if needs_answer and source.answer is None and source.verifier is None:
        remedy = "Name the column that holds the answers, or set prompts.verifier to none"
        raise BadInput(f"{SOURCE_KEY}.answer", "it is missing, and the verifier math needs an answer", remedy)


def columns_of(source: PromptSource) -> dict[str, str]:
    """The columns that `source` names, by the key of `prompts.source` that names each."""
    named = {key: getattr(source, key) for key in ("prompt", "answer", "metadata", "verifier")}
    return {key: name for key, name in named.items() if name is not None}


def check_columns(columns: Iterable[str], source: PromptSource, where: str) -> None:
    """A `BadInput` unless `columns` has those that `source` names; `where` names the table or the row."""
    there = list(columns)
    for key, name in columns_of(source).items():
        if name not in there:
            remedy = nearest(name, there, f"Set prompts.source.{key} to one of them")
            raise BadInput(where, f"it has no column {name!r} (prompts.source.{key}), only {there}", remedy)


def raw_prompts(rows: Rows, source: PromptSource, label: str, needs_answer: bool) -> list[RawPrompt]:
    """A raw prompt for each of `rows`, with `label` as its source; a `BadInput` names the row, column and value."""
    assert source.prompt is not None
    prompts = []
    for where, row in rows:
        prompt = _prompt(row[source.prompt], f"{where}: {source.prompt}")
        metadata = verifier = None
        if source.verifier is not None:
            verifier = _verifier(row[source.verifier], f"{where}: {source.verifier}")
        if source.metadata is not None:
            metadata = _metadata(row[source.metadata], f"{where}: {source.metadata}")
        is_needed = verifier == "math" if verifier else needs_answer
        answer = _answer(row.get(source.answer or ""), f"{where}: {source.answer or 'answer'}", is_needed)
        prompts.append(RawPrompt(prompt, answer, label, metadata, where, verifier))
    return prompts


def number_text(value: int | float | Decimal) -> str:
    """A finite number as people write it: every digit, no exponent, no trailing zeros.

    >>> number_text(5.0), number_text(Decimal("0.10")), number_text(12_000), number_text(1e-7)
    ('5', '0.1', '12000', '0.0000001')
    """
    exact = Decimal(str(value))
    if abs(exact.adjusted()) > MAX_WRITTEN_DIGITS:  # no float is that large; written out, 1e999999999 fills the memory
        return str(exact)
    text = format(exact, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _prompt(value: Any, where: str) -> str | list[Message]:
    if isinstance(value, list):
        return _chat(value, where)
    return _text(value, where)


def _text(value: Any, where: str) -> str:
    if value is None:
        raise BadInput(where, "it is null", "Give it a text, or remove the row")
    if not isinstance(value, str):
        problem = f"{_shown(value)} is {_kind(value)}, not a text or a list of messages"
        raise BadInput(where, problem, "Write it as a text, or name another column")
    if not value.strip():
        raise BadInput(where, f"{value!r} is empty", "Give it a text, or remove the row")
    _check_unicode(value, where)
    return value


def _chat(messages: list[Any], where: str) -> list[Message]:
    """A chat of messages, each of a known role and some content, the last of them the user's."""
    if not messages:
        raise BadInput(where, "the list of messages is empty", "Give it a message, or remove the row")
    chat = []
    for position, message in enumerate(messages):
        here = f"{where}[{position}]"
        given = {key: value for key, value in message.items() if value is not None} if isinstance(message, dict) else {}
        if given.keys() != {"role", "content"}:
            raise BadInput(here, f"{_shown(message)} is not an object of role and content", "Give it these two keys")
        if given["role"] not in ROLES:
            raise BadInput(f"{here}.role", f"{_shown(given['role'])} is none of {ROLES}", "Use one of them")
        chat.append({"role": given["role"], "content": _text(given["content"], f"{here}.content")})
    if chat[-1]["role"] != "user":
        problem = f"the last message has the role {chat[-1]['role']!r}, but the policy answers a message of the user"
        raise BadInput(where, problem, "Let the chat end with a message whose role is user")
    return chat


def _answer(value: Any, where: str, needs_answer: bool) -> str | None:
    text = _answer_text(value, where)
    if text is None and needs_answer:
        shown = "null" if value is None else f"{value!r}, which is empty"
        raise BadInput(where, f"it is {shown}, and the verifier math needs an answer", "Give one, or remove the row")
    return text


def _answer_text(value: Any, where: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        _check_unicode(value, where)
        return value.strip() or None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise BadInput(where, f"{_shown(value)} is {_kind(value)}, not a text or a number", "Write it as a text")
    try:
        is_finite = Decimal(str(value)).is_finite()
    except InvalidOperation:  # an exponent beyond what a Decimal can hold
        is_finite = False
    if not is_finite:
        raise BadInput(where, f"{value} is not a finite number", "Give the answer, or remove the row")
    return number_text(value)


def _verifier(value: Any, where: str) -> str | None:
    """The verifier that a row names, or None, which leaves it to `prompts.verifier`."""
    if value is not None and value not in VERIFIERS:
        problem = f"{_shown(value)} is no verifier"
        raise BadInput(where, problem, f"Name one of {', '.join(VERIFIERS)}, or leave it null for prompts.verifier")
    return None if value is None else str(value)


def _metadata(value: Any, where: str) -> str | None:
    """The metadata of a row as JSON, which it is already where it is a text."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            json.loads(value)
        else:  # JSON lines give a Decimal for each number with a point
            value = json.dumps(value, ensure_ascii=False, allow_nan=False, default=float)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"{_shown(value)} is not valid JSON ({first_line(error)})"
        raise BadInput(where, problem, "Write an object, or its JSON as a text") from error
    _check_unicode(value, where)
    return str(value)


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        problem = f"character {error.start + 1} ({text[error.start]!r}) is half of a surrogate pair, not a character"
        raise BadInput(where, problem, "Write the whole character") from error


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float | Decimal):
        return "a number"
    return {"dict": "an object", "list": "a list"}.get(type(value).__name__, f"a {type(value).__name__}")


def _shown(value: Any) -> str:
    return (str(value) if isinstance(value, Decimal) else repr(value))[:80]
