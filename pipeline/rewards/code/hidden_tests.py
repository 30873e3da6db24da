"""The hidden tests of a prompt, as its `metadata` has them in JSON: one of three kinds.

A value in `args`, `kwargs` or `expected` is JSON, or `{"python": "(1, {2, 3})"}` for what JSON has no word for.
"""

from __future__ import annotations

import ast
import json
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from pipeline.rewards.code.inside.values import NotPlainError, TooLargeError, encode

Tolerance = Annotated[float, Field(gt=0, lt=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def _value(given: Any) -> Any:
    """`given` with each Python literal in it read."""
    if isinstance(given, list):
        return [_value(each) for each in given]
    if not isinstance(given, dict):
        return given
    if given.keys() == {"python"}:
        try:
            return ast.literal_eval(given["python"])
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            raise ValueError(f"{given['python']!r:.100} is no Python literal") from error
    return {key: _value(each) for key, each in given.items()}


def _encodable(value: Any) -> Any:
    try:
        encode(value)
    except TooLargeError as error:
        raise ValueError("it holds too many values, or too deep a nesting") from error
    except NotPlainError as error:
        raise ValueError(f"it holds a {error}, which is no plain value") from error
    return value


def _unicode(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"it has half of a surrogate pair at character {error.start + 1}") from error
    return text


Value = Annotated[Any, BeforeValidator(_value), AfterValidator(_encodable)]
Text = Annotated[str, AfterValidator(_unicode)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ProgramCase(_Part):
    """What a program reads and what it then has to write."""

    stdin: Text = ""
    stdout: Text


class ProgramTests(_Part):
    """A program, run anew for each case.

    `compare` is `exact`, or `lines`: blanks at the ends of lines and empty lines at the end don't count. With a
    `tolerance`, words are compared, and numbers may be off by that much, relative to the expected one where that is
    above 1.
    """

    kind: Literal["program"]
    cases: Annotated[list[ProgramCase], Field(min_length=1)]
    compare: Literal["lines", "exact"] = "lines"
    tolerance: Tolerance | None = None


class CallCase(_Part):
    """The arguments of a call, and the value that it has to return."""

    args: list[Value] = []
    kwargs: dict[Name, Value] = {}
    expected: Value


class CallTests(_Part):
    """Calls of one function, or of a method (`Solution.two_sum`) on a new object for each call.

    Types count: 1 is not 1.0, and a tuple is not a list. With a `tolerance`, floats may be off by that much, as above.
    `in_place` is the position of an argument that the call has to change: what it is then counts, and not what the call
    returns.
    """

    kind: Literal["calls"]
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$")]
    cases: Annotated[list[CallCase], Field(min_length=1)]
    tolerance: Tolerance | None = None
    in_place: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _has_the_argument(self) -> CallTests:
        for number, case in enumerate(self.cases):
            if self.in_place is not None and self.in_place >= len(case.args):
                raise ValueError(f"case {number} has no argument {self.in_place} (in_place), only {len(case.args)}")
        return self


class AssertTests(_Part):
    """Tests as Python text, each of which raises where it fails, of `functions` and `classes` of the solution.

    Without `classes`, what comes back is a plain value, or can be called and iterated over and nothing more. With
    `in_place`, a call changes the lists, dicts and sets that it is given, as it does without a sandbox: a solution
    can then change what a test compares with.
    """

    kind: Literal["asserts"]
    functions: list[Name] = []
    classes: list[Name] = []
    tests: Annotated[list[Text], Field(min_length=1)]
    in_place: bool = False

    @model_validator(mode="after")
    def _names_something(self) -> AssertTests:
        if not (self.functions or self.classes):
            raise ValueError("it names neither functions nor classes, so no test could call the solution")
        return self


HiddenTests = ProgramTests | CallTests | AssertTests

_KINDS_RULE = "its `kind` has to be program, calls or asserts"
_ADAPTER: TypeAdapter[HiddenTests] = TypeAdapter(Annotated[HiddenTests, Field(discriminator="kind")])


@lru_cache(maxsize=256)
def read_tests(metadata: str) -> HiddenTests:
    """The hidden tests in `metadata`.

    Raises:
        ValueError: it is no JSON or breaks a rule; the message names the place, the value and the rule.
    """
    try:
        content = json.loads(metadata)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"metadata: it is no JSON ({error})") from error
    try:
        return _ADAPTER.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        inner = first["loc"][1:]  # without the kind, which pydantic names first
        place = ".".join(["metadata", *map(str, inner)])
        has_no_kind = first["type"].startswith("union_tag")
        rule = _KINDS_RULE if has_no_kind else str(first["msg"]).removeprefix("Value error, ")
        raise ValueError(f"{place}: {first['input']!r:.100}: {rule}") from error
