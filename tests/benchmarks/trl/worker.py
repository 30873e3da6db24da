"""`python -m tests.benchmarks.trl.worker SIDE TASK`: one side of a comparison, taking steps as it gets its turns."""

from __future__ import annotations

import importlib
import sys

from tests.benchmarks.trl.task import Task
from tests.benchmarks.trl.turns import Turns

SIDES = {
    "rollbook": "rollbook",
    "rollbook-filtered": "rollbook",
    "rollbook-checkpointed": "rollbook",
    "trl": "grpo_trainer",
    "trl-uncheckpointed": "grpo_trainer",
    "padded": "padded",
    "matmul": "floor",
}
"""Which module has the side's `run(side, task, turns)`."""


def main(side: str, task: Task) -> None:
    """Take the steps of `side`."""
    turns = Turns()  # first, before a library prints anything
    module = importlib.import_module(f"tests.benchmarks.trl.{SIDES[side]}")
    module.run(side, task, turns)


if __name__ == "__main__":
    main(sys.argv[1], Task.from_json(sys.argv[2]))
