"""Solutions that mean no harm, right and wrong, in the styles that people and models write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from math import factorial
from typing import Any

Tests = dict[str, Any]


@dataclass(frozen=True)
class Honest:
    """A solution, its hidden tests, and whether it passes them all."""

    name: str
    code: str
    tests: Tests
    is_correct: bool


def honest_solutions(n: int) -> list[Honest]:
    """`n` of them, right and wrong ones in turn, no two the same."""
    return list(islice(_all(), n))


def _all() -> Iterator[Honest]:
    for k in count(2):
        for name, (tests, right, wrong) in {**_calls(k), **_programs(k), **_asserts(k)}.items():
            yield Honest(f"{name}_{k}", f"{right}\n# {name} {k}\n", tests, True)
            yield Honest(f"{name}_{k}_wrong", f"{wrong}\n# {name} {k}\n", tests, False)


def _call_tests(*cases: tuple[list[Any], Any], function: str = "f", **more: Any) -> Tests:
    return {
        "kind": "calls",
        "function": function,
        "cases": [{"args": args, "expected": expected} for args, expected in cases],
        **more,
    }


def _python(value: object) -> dict[str, str]:
    return {"python": repr(value)}


def _calls(k: int) -> dict[str, tuple[Tests, str, str]]:
    """By name: the tests, a right solution and a wrong one."""
    primes = [n for n in range(2, 10 * k) if all(n % d for d in range(2, n))]
    return {
        "add": (_call_tests(([1], 1 + k), ([-5], k - 5)), f"def f(x):\n    return x + {k}", f"f = lambda x: x - {k}"),
        "sort": (
            _call_tests(([[3, 1, k]], sorted([3, 1, k]))),
            "def f(xs):\n    return sorted(xs)",
            "def f(xs):\n    return tuple(sorted(xs))",
        ),
        "fibonacci": (
            _call_tests(([10], 55), ([90], 2880067194370816120)),
            "from functools import lru_cache\n@lru_cache(None)\ndef f(n):\n"
            "    return n if n < 2 else f(n - 1) + f(n - 2)",
            "def f(n):\n    a, b = 0, 1\n    for _ in range(n + 1):\n        a, b = b, a + b\n    return a",
        ),
        "reverse": (
            _call_tests((["aé漢🙂" * k], ("aé漢🙂" * k)[::-1]), ([""], "")),
            "def f(s):\n    return s[::-1]",
            "def f(s):\n    return s",
        ),
        "counter": (
            _call_tests((["a" * k + "b"], {"a": k, "b": 1})),
            "from collections import Counter\ndef f(s):\n    return Counter(s)",
            "from collections import Counter\ndef f(s):\n    return dict(Counter(s[1:]))",
        ),
        "primes": (
            _call_tests(([10 * k], _python(set(primes)))),
            "def f(n):\n    return {x for x in range(2, n) if all(x % d for d in range(2, int(x ** 0.5) + 1))}",
            "def f(n):\n    return [x for x in range(2, n) if all(x % d for d in range(2, x))]",
        ),
        "named_tuple": (
            _call_tests(([[4, k, 9]], _python((min(4, k), max(9, k))))),
            "from typing import NamedTuple\nclass Range(NamedTuple):\n    low: int\n    high: int\n"
            "def f(xs):\n    return Range(min(xs), max(xs))",
            "def f(xs):\n    return [min(xs), max(xs)]",
        ),
        "method": (
            _call_tests(([[2, 7, 11, k + 20], 9], [0, 1]), function="Solution.twoSum"),
            "from typing import List\nclass Solution:\n    def twoSum(self, nums: List[int], target) -> List[int]:\n"
            "        seen = {}\n        for i, n in enumerate(nums):\n            if target - n in seen:\n"
            "                return [seen[target - n], i]\n            seen[n] = i",
            "class Solution:\n    def twoSum(self, nums, target):\n        return [1, 0]",
        ),
        "mean": (
            _call_tests(([[1.0, 2.0, k + 0.1]], (3.0 + k + 0.1) / 3), tolerance=1e-9),
            "import statistics\ndef f(xs):\n    return statistics.fmean(xs)",
            "def f(xs):\n    return sum(xs) // len(xs)",
        ),
        "factorial": (
            _call_tests(([30 * k], factorial(30 * k))),
            "import math\nf = math.factorial",
            "import math\ndef f(n):\n    return round(math.exp(math.lgamma(min(n, 100) + 1)))",
        ),
        "none_and_bool": (
            _call_tests(([k, []], None), ([k, [k]], True)),
            "def f(x, xs):\n    return x in xs if xs else None",
            "def f(x, xs):\n    return x in xs",
        ),
        "bytes": (
            _call_tests(([_python(b"\x00" * k)], _python(b"\xff" * k))),
            "def f(data):\n    return bytes(255 - byte for byte in data)",
            "def f(data):\n    return [255 - byte for byte in data]",
        ),
        "deep_recursion": (
            _call_tests(([5000 + k], 5000 + k)),
            "import sys\nsys.setrecursionlimit(10 ** 6)\ndef f(n):\n    return 0 if n == 0 else 1 + f(n - 1)",
            "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)",
        ),
        "transpose": (
            _call_tests(([[[1, 2, k], [4, 5, 6]]], [[1, 4], [2, 5], [k, 6]])),
            "def f(m):\n    return [list(row) for row in zip(*m)]",
            "def f(m):\n    return list(zip(*m))",
        ),
        "in_place": (
            _call_tests(([[3, 2, k + 3]], [2, 3, k + 3]), in_place=0),
            "def f(xs):\n    xs.sort()",
            "def f(xs):\n    return sorted(xs)",
        ),
        "dataclass": (
            _call_tests(([k], k * k)),
            "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Square:\n"
            "    side: int\n    def area(self) -> int:\n        return self.side ** 2\n"
            "def f(x):\n    return Square(x).area()\nif __name__ == '__main__':\n    print(f(int(input())))",
            "def f(x):\n    print(x * x)",
        ),
    }


def _program_tests(*cases: tuple[str, str], **more: Any) -> Tests:
    return {"kind": "program", "cases": [{"stdin": stdin, "stdout": stdout} for stdin, stdout in cases], **more}


def _programs(k: int) -> dict[str, tuple[Tests, str, str]]:
    return {
        "sum": (
            _program_tests((f"3\n1 2 {k}\n", f"{3 + k}\n"), ("0\n\n", "0\n")),
            "n = int(input())\nprint(sum(map(int, input().split())))",
            "n = int(input())\nprint(n)",
        ),
        "whole_stdin": (
            _program_tests((f"1\n2\n{k}", f"{3 + k}  \n\n"), ("", "0")),
            "import sys\nprint(sum(int(line) for line in sys.stdin))\nsys.exit()",
            "import sys\nprint(sum(int(line) for line in sys.stdin))\nsys.exit(1)",
        ),
        "main": (
            _program_tests((f"{k}\n", "".join(f"{i}\n" for i in range(k)))),
            "import sys\ndef main():\n    n = int(sys.stdin.buffer.readline())\n"
            "    sys.stdout.write('\\n'.join(map(str, range(n))))\nif __name__ == '__main__':\n    main()",
            "for i in range(int(input())):\n    print(i, end=' ')",
        ),
        "deep_thread": (
            _program_tests((f"{20_000 + k}\n", f"{20_000 + k}\n")),
            "import sys, threading\nsys.setrecursionlimit(1 << 25)\nthreading.stack_size(1 << 26)\n"
            "def depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)\n"
            "def main():\n    print(depth(int(input())))\n"
            "thread = threading.Thread(target=main)\nthread.start()\nthread.join()",
            "def depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)\nprint(depth(int(input())))",
        ),
        "tolerance": (
            _program_tests((f"{k}\n", f"root {k**0.5:.12f}\n"), tolerance=1e-6),
            "import math\nprint('root', math.sqrt(int(input())))",
            "print('root', int(input()) / 2 + 0.01)",
        ),
        "files": (
            _program_tests((f"{k}\n", f"{k}\n")),
            "import tempfile\nwith tempfile.TemporaryFile('w+') as file:\n    file.write(input())\n    file.seek(0)\n"
            "    print(file.read())",
            "print(open('answer.txt').read())",
        ),
        "asyncio": (
            _program_tests((f"{k}\n", f"{2 * k}\n")),
            "import asyncio\nasync def double(x):\n    await asyncio.sleep(0)\n    return 2 * x\n"
            "print(asyncio.run(double(int(input()))))",
            "async def double(x):\n    return 2 * x\nprint(double(int(input())))",
        ),
        "exact": (
            _program_tests(("", "*" * k + "\n"), compare="exact"),
            f"print('*' * {k})",
            f"print('*' * {k}, end='')",
        ),
    }


def _asserts(k: int) -> dict[str, tuple[Tests, str, str]]:
    stack = (
        f"s = Stack()\ns.push({k})\ns.push(2)\nassert s.pop() == 2\nassert len(s) == 1 and list(s) == [{k}]\n"
        f"assert s.top == {k}"
    )
    raises = (
        f"try:\n    f(-{k})\nexcept ValueError as error:\n    assert 'negative' in str(error)\nelse:\n    assert False"
    )
    check = f"def check(g):\n    assert g({k}) == {k * k}\n    assert abs(g(0.5) - 0.25) < 1e-9\ncheck(f)"
    return {
        "stack": (
            {"kind": "asserts", "classes": ["Stack"], "tests": [stack]},
            "class Stack:\n    def __init__(self):\n        self.items = []\n    def push(self, item):\n"
            "        self.items.append(item)\n    def pop(self):\n        return self.items.pop()\n"
            "    def __len__(self):\n        return len(self.items)\n    def __iter__(self):\n"
            "        return iter(self.items)\n    @property\n    def top(self):\n        return self.items[-1]",
            "class Stack(list):\n    push = list.append\n    def pop(self):\n        return list.pop(self, 0)",
        ),
        "raises": (
            {"kind": "asserts", "functions": ["f"], "tests": [raises]},
            "def f(x):\n    if x < 0:\n        raise ValueError('it is negative')",
            "def f(x):\n    if x < 0:\n        raise TypeError('it is negative')",
        ),
        "check": (
            {"kind": "asserts", "functions": ["f"], "tests": [check]},
            "def f(x):\n    return x * x",
            "def f(x):\n    return x * 2 + 1",
        ),
        "generator": (
            {
                "kind": "asserts",
                "functions": ["f"],
                "tests": [
                    f"assert list(f({k})) == [*range({k})]",
                    "g = f(2)\nassert (next(g), next(g), next(g, -1)) == (0, 1, -1)",
                ],
            },
            "def f(n):\n    yield from range(n)",
            "def f(n):\n    yield from range(n + 1)",
        ),
        "in_place_asserts": (
            {
                "kind": "asserts",
                "functions": ["f"],
                "tests": [f"xs = [{k}, 1]\nf(xs)\nassert xs == [1, {k}]"],
                "in_place": True,
            },
            "def f(xs):\n    xs.reverse()",
            "def f(xs):\n    return xs[::-1]",
        ),
    }
