"""The command `rollbook rescore`: what the reward of params.yaml would have given to rollouts that are there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.errors import BadInput
from pipeline.params import load_params
from pipeline.rescoring import CHANGES, Rescored, rescore
from pipeline.summary import MISSING, decimal, percent
from pipeline.versioning.git import git
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import select_iterations

HEADINGS = {
    "became_correct": "to right",
    "became_wrong": "to wrong",
    "lost_verdict": "to null",
    "got_verdict": "from null",
    "reward_changed": "reward only",
}
"""The changes that are counted: four of the verdict, and a reward that is another while the verdict is the same."""

SHOWN_CHARACTERS = 240
"""Of a text, from its end, where answers are."""


def rescore_iterations(
    name: Annotated[str, typer.Argument(help="A run or an iteration: demo, demo/0003 or demo/0003..0010.")],
    iterations: Annotated[str | None, typer.Option(help="Which iterations of the run: 3 or 3..10; else all.")] = None,
    examples: Annotated[int, typer.Option(min=0, help="How many examples to show of each change.")] = 2,
) -> None:
    """Score stored rollouts with the `score` section and the code that are here, and show what flips."""
    if iterations is not None and "/" in name:
        raise BadInput(f"--iterations {iterations}", f"{name} names iterations already", "Give one of the two")
    _check_code_is_here()
    wanted = f"{name}/{iterations}" if iterations is not None else name
    repository = Repository.find()
    chosen = select_iterations(repository, wanted)
    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("iteration", "pass rate", "mean reward"):
        table.add_column(heading, no_wrap=True)
    for heading in HEADINGS.values():
        table.add_column(heading, justify="right")
    found: list[dict[str, Any]] = []
    n_shown: Counter[str] = Counter()
    for each in rescore(repository, name.partition("/")[0], chosen, load_params().score, examples):
        table.add_row(*_cells(each))
        for example in each.examples.iter_rows(named=True):
            n_shown[example["change"]] += 1
            if n_shown[example["change"]] <= examples:
                found.append(example)
    for example in sorted(found, key=lambda example: CHANGES.index(example["change"])):
        console.print(_example(example))
    console.print(table)


def _check_code_is_here() -> None:
    """Raise `BadInput` where another checkout's code runs: the edits of this one would not count."""
    here, used = Path(git("rev-parse", "--show-toplevel")), Path(__file__).parent.parent
    if (here / "pipeline").exists() and not here.samefile(used):
        problem = f"the command rollbook is that of {used}, with its code and its rewards"
        raise BadInput(str(here), problem, "Run `python -m pipeline.cli rescore ...` at the root of this checkout")


def _cells(rescored: Rescored) -> list[str]:
    scores = rescored.scores
    counts = dict(scores["change"].value_counts().iter_rows())
    rates = f"{percent(scores['is_correct'].mean())} -> {percent(scores['is_correct_now'].mean())}"
    rewards = f"{_mean(scores['reward'])} -> {_mean(scores['reward_now'])}"
    number = rescored.name.rpartition("/")[2]
    return [number, rates, rewards, *(decimal(counts.get(change, 0)) for change in HEADINGS)]


def _mean(values: pl.Series) -> str:
    mean = values.mean()
    return f"{mean:.3f}" if isinstance(mean, float) else MISSING


def _example(row: dict[str, Any]) -> Text:
    title = f"{row['completion_id']}: {row['change'].replace('_', ' ')}, "
    lines = [
        f"{title}reward {decimal(row['reward'])} -> {decimal(row['reward_now'])}",
        f"  prompt      {_shown(row['messages'][-1]['content'])}",
        f"  answer      {_shown(row['answer'])}",
        f"  extracted   {_shown(row['extracted_answer'])} -> {_shown(row['extracted_answer_now'])}",
        f"  completion  {_shown(row['completion_text'])}",
    ]
    if row["score_error_now"]:
        lines.append(f"  score_error {row['score_error_now']}")
    return Text("\n".join(lines) + "\n")


def _shown(text: str | None) -> str:
    """`text` on one line, cut from the front."""
    if text is None:
        return MISSING
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"...{line[-SHOWN_CHARACTERS:]}"
