"""The verifier `code` within scoring: verdicts, partial credit, what is null and why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pipeline.errors import BadInput
from pipeline.params import ScoreParams
from pipeline.rewards.code.grading import score
from pipeline.rewards.code.inside import frames
from pipeline.rewards.code.trial import BrokenTestError
from pipeline.rewards.scoring import score_completions
from tests.rewards.code.attacks import PROGRAM
from tests.rewards.code.trials import PARAMS, marked_launch, needs_sandbox, tried
from tests.rewards.frames import prompts, rollouts

pytestmark = needs_sandbox


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def scores(texts: list[str], metadata: str | None, **params: Any) -> list[dict[str, Any]]:
    """The rows of rewards for completions of one prompt."""
    correct = {"weight": 1.0, "params": {"partial_credit": True}}
    settings = ScoreParams.model_validate({"terms": {"correct": correct}, "code": params})
    asked = prompts([None], "code", [metadata])
    return score_completions(rollouts(texts, ["p0"] * len(texts)), asked, settings).to_dicts()


def asserts(*tests: str, functions: tuple[str, ...] = ("f",), classes: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"kind": "asserts", "functions": list(functions), "classes": list(classes), "tests": list(tests)}


def test_verdicts_and_partial_credit() -> None:
    codes = "n = int(input())\nprint(n * n)", "print(9)", "print(0)", "while True: pass"
    rows = scores([*map(fenced, codes), "9"], json.dumps(PROGRAM), time_limit_seconds=1.0)
    assert [row["is_correct"] for row in rows] == [True, False, False, False, False]
    assert [row["reward"] for row in rows] == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert [row["extracted_answer"] for row in rows] == [*(f"{code}\n" for code in codes), None]
    assert [row["score_error"] for row in rows] == [None, None, None, "timeout: test 1: no answer came in time", None]


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        (None, "metadata: None"),
        ("{}", "metadata"),
        (json.dumps(asserts("assert f(1) =")), "metadata.tests.0: it can't be compiled: SyntaxError"),
        (json.dumps(asserts("assert f(1) == 1", "assert 1")), "metadata.tests.1: it passes without a call"),
        (
            json.dumps(asserts("import nowhere\nassert f(1) == 1")),
            "metadata.tests.0: it fails before it calls the solution: ModuleNotFoundError",
        ),
    ],
)
def test_broken_hidden_tests_are_null_and_never_wrong(metadata: str | None, error: str) -> None:
    (row,) = scores([fenced("def f(x):\n    return x")], metadata)
    assert (row["is_correct"], row["reward"]) == (None, None)
    assert row["score_error"].startswith(error)


def test_a_sandbox_that_never_starts_is_null_and_never_zero() -> None:
    broken = replace(marked_launch(), command=("false",), is_root=False)
    value, error = score("print(9)", json.dumps(PROGRAM), PARAMS, broken)
    assert value is None
    assert str(error).startswith("infra_error: the sandbox did not start: it ended with exit code 1")


def test_where_there_is_no_sandbox_nothing_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadInput, match=r"params.yaml: score.code.isolation: it is bubblewrap, and there is no `bwrap`"):
        scores([fenced("print(9)")], json.dumps(PROGRAM))


def test_objects_of_the_solution_go_back_to_it() -> None:
    code = """
class Node:
    def __init__(self, value, next=None):
        self.value, self.next = value, next
def total(node):
    return 0 if node is None else node.value + total(node.next)
"""
    test = "n = Node(1, Node(2))\nassert total(n) == 3 and n.next.value == 2 and total(node=n) == 3"
    assert tried(code, asserts(test, functions=("total",), classes=("Node",))).status == "pass"


def test_a_test_may_change_an_object() -> None:
    code = """
class Node:
    def __init__(self, value):
        self.value, self.next, self.notes = value, None, {}
    def __setitem__(self, key, note):
        self.notes[key] = note
    def __repr__(self):
        return f"Node({self.value})"
    def total(self):
        return self.value + (self.next.total() if self.next else 0) + sum(self.notes.values())
"""
    test = "a, b = Node(1), Node(2)\na.next = b\nb.value = 5\na['x'] = 10\nassert a.total() == 16"
    assert tried(code, asserts(f"{test} and repr(a) == 'Node(1)'", functions=(), classes=("Node",))).status == "pass"


def test_what_a_function_returns_may_be_called_and_iterated_over() -> None:
    code = "def adder(n):\n    return lambda x: x + n\ndef evens(n):\n    return range(0, n, 2)"
    tests = "assert adder(5)(1) == 6", "r = evens(5)\nassert list(r) == [0, 2, 4] and sum(r) == 6 and max(r) == 4"
    assert tried(code, asserts(*tests, functions=("adder", "evens"))).status == "pass"


def test_an_error_of_its_own_is_that_of_its_base() -> None:
    code = "class TooSmall(ValueError):\n    pass\ndef f(x):\n    raise TooSmall(f'{x} is too small')"
    test = "try:\n    f(1)\nexcept ValueError as error:\n    assert str(error) == '1 is too small'\nelse:\n    assert 0"
    assert tried(code, asserts(test)).status == "pass"
    assert tried(code).reason == "test 1: it raised TooSmall: 3 is too small"


def test_an_object_has_its_own_methods_whatever_its_base() -> None:
    code = """
from collections import OrderedDict
class Cache(OrderedDict):
    def get(self, key):
        return self[key] if key in self else -1
    def put(self, key, value):
        self[key] = value
        if len(self) > 2:
            self.popitem(last=False)
"""
    test = """
c = Cache()
for n in (1, 2, 3):
    c.put(n, n * n)
assert (c.get(1), c.get(3), len(c), 2 in c) == (-1, 9, 2, True)
"""
    assert tried(code, asserts(test, functions=(), classes=("Cache",))).status == "pass"


def test_a_test_that_compares_two_objects_is_broken() -> None:
    code = "class V:\n    def __eq__(self, other):\n        return True"
    with pytest.raises(BrokenTestError, match="it compares two objects of the solution"):
        tried(code, asserts("assert V() == V()", functions=(), classes=("V",)))


def test_a_test_that_hands_over_a_function_is_broken() -> None:
    with pytest.raises(BrokenTestError, match="it hands the solution a function"):
        tried("def f(g):\n    return g(1)", asserts("assert f(lambda x: x) == 1"))


def test_each_test_counts_by_itself() -> None:
    graded = tried("def f(x):\n    return x", asserts("assert f(1) == 1", "assert f(2) == 3", "assert f(4) == 4"))
    assert (graded.status, graded.n_passed, graded.n_tests) == ("fail", 2, 3)
    assert graded.reason == "test 2: AssertionError: "


def test_after_a_time_out_no_test_is_run() -> None:
    graded = tried("def f(x):\n    while x == 5: pass\n    return x * x", time_limit_seconds=0.5)
    assert (graded.status, graded.n_passed, graded.reason) == ("timeout", 1, "test 2: no answer came in time")


@pytest.mark.parametrize("end", ["exit()", "quit()", "exit(0)", "sys.exit()", "raise SystemExit"])
def test_a_program_may_end_itself(end: str) -> None:
    code = f"import os, sys\nos.path.dirname(__file__)\nn = int(input())\nprint(n * n)\n{end}\nprint('not this')"
    assert tried(code, PROGRAM).status == "pass"


def test_a_limit_is_one_of_computing_and_waiting_has_four_times_as_long() -> None:
    waits = "import time\ndef f(x):\n    time.sleep(0.6)\n    return x * x"
    assert tried(waits, time_limit_seconds=0.5).status == "pass"  # 0.6 s by the clock is less than 4 x 0.5 s
    assert tried(waits, time_limit_seconds=0.1).status == "timeout"
    computes = (
        "import time\ndef f(x):\n    end = time.process_time() + 1.0\n    while time.process_time() < end: pass\n"
    )
    assert tried(f"{computes}    return x * x", time_limit_seconds=0.5).status == "timeout"


def test_the_whole_trial_has_a_limit_too() -> None:
    cases = [{"args": [n], "expected": n} for n in range(50)]
    code = "import time\ndef f(x):\n    time.sleep(0.2)\n    return x"
    graded = tried(code, {"kind": "calls", "function": "f", "cases": cases}, total_time_limit_seconds=1.0)
    assert graded.status == "timeout"
    assert 1 <= graded.n_passed < 6  # 5 x 0.2 s


def test_texts_have_the_same_hash_each_time() -> None:
    code = "import sys\nsys.exit(hash('a') % 251)"
    assert len({tried(code, PROGRAM).reason for _ in range(3)}) == 1


def test_memory_is_that_of_the_params() -> None:
    code = "def f(x):\n    bytearray(200 << 20)\n    return x * x"
    assert tried(code, memory_mb=512).status == "pass"
    assert tried(code, memory_mb=128).status == "limit"


def test_no_expected_value_enters_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    pack = frames.pack_request

    def listen(message: dict[str, Any]) -> bytes:
        sent.append(json.dumps(message))
        return pack(message)

    monkeypatch.setattr(frames, "pack_request", listen)
    tried("f = str", {"kind": "calls", "function": "f", "cases": [{"args": [7], "expected": 918273}]})
    tried("print(7)", {"kind": "program", "cases": [{"stdin": "7", "stdout": "918273"}]})
    assert len(sent) == 4  # of each the task, and one request
    assert not [each for each in sent if "918273" in each or hex(918273) in each]
