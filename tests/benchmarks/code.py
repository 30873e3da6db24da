"""Solutions against hidden tests in sandboxes, beside a bare `python -I` for each that keeps nothing in.

`python -m tests.benchmarks.code` runs it alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import polars as pl

from pipeline.params import ScoreParams
from pipeline.rewards.scoring import score_completions
from pipeline.tables import PROMPTS, ROLLOUTS
from tests.benchmarks.compare import in_turn, show

N_COMPLETIONS = 200
N_WORKERS = 2
KINDS = {
    "program": {"kind": "program", "cases": [{"stdin": "3 4\n", "stdout": "7\n"}]},
    "calls": {"kind": "calls", "function": "add", "cases": [{"args": [3, 4], "expected": 7}]},
    "asserts": {"kind": "asserts", "functions": ["add"], "tests": ["assert add(3, 4) == 7"]},
}
CODES = {
    "program": "print(sum(map(int, input().split())))",
    "calls": "def add(a, b):\n    return a + b",
    "asserts": "def add(a, b):\n    return a + b",
}


def main(rounds: int = 5) -> None:
    """Each function judges the same number of completions, no two of them the same; a line is N_WORKERS processes."""
    functions = {"python -I": run_bare} | {f"sandbox, {kind}": partial(run_in_sandboxes, kind) for kind in KINDS}
    seconds = in_turn(functions, rounds)
    show(f"code, {N_COMPLETIONS} completions", seconds, "python -I")
    for name, values in seconds.items():
        print(f"{name}: {N_COMPLETIONS / min(values):.0f} to {N_COMPLETIONS / max(values):.0f} completions/s")


def run_bare() -> None:
    """A Python for each completion, N_WORKERS at a time, whose exit code is all that is looked at."""
    script = "def add(a, b):\n    return a + b\nassert add(3, 4) == 7"
    for _ in range(N_COMPLETIONS // N_WORKERS):
        processes = [subprocess.Popen([sys.executable, "-I", "-c", script]) for _ in range(N_WORKERS)]
        assert not any(process.wait() for process in processes)


def run_in_sandboxes(kind: str) -> None:
    """The whole of scoring, workers and canary included."""
    prompts = {
        "prompt_id": ["p"],
        "messages": [[{"role": "user", "content": "?"}]],
        "answer": [None],
        "verifier": ["code"],
        "metadata": [json.dumps(KINDS[kind])],
        "source": ["benchmark"],
    }
    rollouts = {
        "completion_id": [f"c{number}" for number in range(N_COMPLETIONS)],
        "prompt_id": ["p"] * N_COMPLETIONS,
        "completion_text": [f"```python\n{CODES[kind]}\n# {number}\n```" for number in range(N_COMPLETIONS)],
        "finish_reason": ["stop"] * N_COMPLETIONS,
        "group_id": ["g"] * N_COMPLETIONS,
        "completion_token_ids": [[1]] * N_COMPLETIONS,
    }
    params = ScoreParams.model_validate({"terms": {"correct": {"weight": 1.0}}, "n_workers": N_WORKERS})
    scores = score_completions(
        pl.DataFrame(rollouts, schema={name: ROLLOUTS.schema[name] for name in rollouts}),
        pl.DataFrame(prompts, schema={name: PROMPTS.schema[name] for name in prompts}),
        params,
    )
    assert scores["reward"].to_list() == [1.0] * N_COMPLETIONS


if __name__ == "__main__":
    main()
