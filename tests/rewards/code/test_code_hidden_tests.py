"""Hidden tests as a prompt brings them: what is read, and what is refused with which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.rewards.code.hidden_tests import CallTests, ProgramTests, read_tests


def test_python_literals_are_read_where_json_has_no_word() -> None:
    case = {"args": [{"python": "(1, {2})"}, {"a": {"python": "b'x'"}}], "expected": [{"python": "{1: None}"}]}
    tests = read_tests(json.dumps({"kind": "calls", "function": "f", "cases": [case]}))
    assert isinstance(tests, CallTests)
    assert tests.cases[0].args == [(1, {2}), {"a": b"x"}]
    assert tests.cases[0].expected == [{1: None}]


def test_defaults() -> None:
    tests = read_tests('{"kind": "program", "cases": [{"stdout": "1"}]}')
    assert isinstance(tests, ProgramTests)
    assert (tests.cases[0].stdin, tests.compare, tests.tolerance) == ("", "lines", None)


CASE = {"args": [1], "expected": 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "metadata: it is no JSON"),
        ("[" * 100_000, "metadata: it is no JSON"),
        (None, "metadata: None"),
        ({}, "its `kind` has to be program, calls or asserts"),
        ({"kind": "unit"}, "its `kind` has to be program, calls or asserts"),
        ({"kind": "calls", "function": "f", "cases": []}, r"metadata.cases: \[\]"),
        ({"kind": "calls", "function": "f(x)", "cases": [CASE]}, "metadata.function: 'f"),
        ({"kind": "calls", "function": "f", "cases": [{"args": 1, "expected": 2}]}, "metadata.cases.0.args: 1"),
        ({"kind": "calls", "function": "f", "cases": [{"args": [1]}]}, "metadata.cases.0.expected"),
        ({"kind": "calls", "function": "f", "cases": [CASE], "in_place": 1}, "case 0 has no argument 1"),
        ({"kind": "calls", "function": "f", "cases": [CASE], "tolerance": 0}, "metadata.tolerance: 0"),
        ({"kind": "calls", "function": "f", "cases": [CASE], "typo": 0}, "metadata.typo"),
        (
            {"kind": "calls", "function": "f", "cases": [{"expected": {"python": "open(1)"}}]},
            r"metadata.cases.0.expected: .*'open\(1\)' is no Python literal",
        ),
        (
            {"kind": "calls", "function": "f", "cases": [{"expected": {"python": "..."}}]},
            "it holds a ellipsis, which is no plain value",
        ),
        ({"kind": "program", "cases": [{"stdin": 1, "stdout": "1"}]}, "metadata.cases.0.stdin: 1"),
        ({"kind": "program", "cases": [{"stdout": "\ud800"}]}, "half of a surrogate pair at character 1"),
        ({"kind": "asserts", "tests": ["assert f(1)"]}, "it names neither functions nor classes"),
        ({"kind": "asserts", "functions": ["f"], "tests": []}, "metadata.tests"),
    ],
)
def test_bad_hidden_tests_are_named(content: Any, message: str) -> None:
    metadata = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(ValueError, match=message):
        read_tests(metadata)
