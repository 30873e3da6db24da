"""The example of prompts with hidden tests: each can be passed, and not by any solution of another prompt."""

from __future__ import annotations

import json

import pytest

from pipeline.rewards.code.hidden_tests import read_tests
from tests.rewards.code.trials import needs_sandbox, tried
from tests.stage_runs import ROOT
from tests.test_docs import code_blocks, section

ROWS = [json.loads(line) for line in (ROOT / "data/sources/example_functions.jsonl").read_text().splitlines()]
SOLUTIONS = [
    "def add(a, b): return a + b",
    "def double(x): return 2 * x",
    "def square(x): return x * x",
    "def is_even(n): return n % 2 == 0",
    "maximum = max",
    "def reverse(s): return s[::-1]",
    "def count_vowels(s): return sum(letter in 'aeiou' for letter in s)",
    "total = sum",
    "def mean(xs): return sum(xs) / len(xs)",
    "from math import factorial",
    "def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    "def min_max(xs): return min(xs), max(xs)",
    "unique = set",
    "def word_lengths(words): return {word: len(word) for word in words}",
    "def sort_in_place(xs): xs.sort()",
    "class Solution:\n    def is_palindrome(self, s): return s == s[::-1]",
    "print(int(input()) + int(input()))",
    "print(int(input()) ** 2)",
    "print(input().upper())",
    "for i in range(int(input())): print(i + 1)",
    "print(float(input()) ** 0.5)",
    "class Stack(list):\n    push = list.append\n    def is_empty(self): return not self",
    "def divide(a, b):\n    if not b: raise ValueError('b is 0')\n    return a / b",
    "def countdown(n):\n    while n > 0:\n        yield n\n        n -= 1",
]


def test_the_readme_shows_hidden_tests_of_each_kind() -> None:
    (block,) = code_blocks(section("### Code"), "json")
    shown = [read_tests(json.dumps(json.loads(line)["tests"])).kind for line in block.splitlines()]
    assert sorted(shown) == ["asserts", "calls", "program"]


@needs_sandbox
@pytest.mark.parametrize("number", range(len(ROWS)))
def test_hidden_tests_of_the_example_take_the_right_solution_alone(number: int) -> None:
    assert tried(SOLUTIONS[number], ROWS[number]["tests"]).status == "pass"
    assert tried(SOLUTIONS[number - 1], ROWS[number]["tests"]).status == "fail"
