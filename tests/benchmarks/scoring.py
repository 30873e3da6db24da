"""Scoring beside a plain loop, in completions per second, and what the stage `score` needs for 100,000 completions.

`python -m tests.benchmarks.scoring` runs it alone; it makes its own completions.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from math_verify import parse, verify
from rich.console import Console
from rich.table import Table

from pipeline.params import ScoreParams
from pipeline.rewards.scoring import score_completions
from pipeline.table_io import write_table
from pipeline.tables import PROMPTS, ROLLOUTS
from tests.benchmarks.compare import command, in_turn
from tests.stage_runs import write_params

WORDS = "Let us see. We add the two numbers, then we take half of the sum, and so the result is found at last. "
FORMAT = r"(?s)<think>.*?</think>\s*<answer>.*?</answer>"
GROUP_SIZE = 8


def main(rounds: int = 3) -> None:
    """Peak memory by number of completions, then completions per second on the two cores of two workers."""
    memory = Table("completions", "seconds", "peak memory, MB", title="the stage score", title_justify="left")
    for n_completions in (1_000, 10_000, 100_000):
        memory.add_row(f"{n_completions:,}", *_stage(n_completions))
    Console().print(memory)
    table = Table("what", "Rollbook, completions/s", "plain loop", "ratio", title="scoring", title_justify="left")
    for name, n_completions, answer in (("math, numbers", 4000, _number), ("math, algebra", 800, _algebra)):
        prompts, rollouts = _tables(n_completions, answer, n_repeats=3)
        scored = _scorer(rollouts, prompts, {"correct": {"weight": 1.0}})
        _add_row(table, name, n_completions, {"rollbook": scored, "loop": _math_loop(rollouts, prompts)}, rounds)
    prompts, rollouts = _tables(20_000, _number, n_repeats=3)
    term = {"format": {"weight": 1.0, "params": {"pattern": FORMAT}}}
    scored = _scorer(rollouts, prompts.with_columns(verifier=pl.lit("none")), term)
    _add_row(table, "format", 20_000, {"rollbook": scored, "loop": _format_loop(rollouts)}, rounds)
    Console().print(table)


def _add_row(
    table: Table, name: str, n_completions: int, functions: dict[str, Callable[[], object]], rounds: int
) -> None:
    seconds = {each: statistics.median(values) for each, values in in_turn(functions, rounds).items()}
    rates = [n_completions / seconds[each] for each in ("rollbook", "loop")]
    table.add_row(name, *(f"{rate:,.0f}" for rate in rates), f"{rates[0] / rates[1]:.1f}")


def _number(i: int) -> str:
    return rf"\frac{{{i + 1}}}{{8}}"


def _algebra(i: int) -> str:
    return rf"\frac{{{i + 1}x^2+\sqrt{{3}}}}{{x+1}}"


def _tables(n_completions: int, answer: Callable[[int], str], n_repeats: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Prompts, and groups of `GROUP_SIZE` completions of some words and a box, of which every other one is right."""
    n_prompts = n_completions // GROUP_SIZE
    prompt_ids = [f"{i:016x}" for i in range(n_prompts)]
    prompts = pl.DataFrame(
        {
            "prompt_id": prompt_ids,
            "split": ["train"] * n_prompts,
            "source": ["file"] * n_prompts,
            "messages": [[{"role": "user", "content": f"question {i}"}] for i in range(n_prompts)],
            "answer": [answer(i) for i in range(n_prompts)],
            "verifier": ["math"] * n_prompts,
            "metadata": [None] * n_prompts,
        },
        schema=PROMPTS.schema,
    )
    which = [(i, k) for i in range(n_prompts) for k in range(GROUP_SIZE)]
    rows = pl.DataFrame(
        {
            "iteration": [0] * len(which),
            "prompt_id": [prompt_ids[i] for i, _ in which],
            "group_id": [f"0000/{prompt_ids[i]}" for i, _ in which],
            "completion_id": [f"0000/{prompt_ids[i]}/{k}" for i, k in which],
            "completion_index": [k for _, k in which],
            "seed": [0] * len(which),
            "prompt_token_ids": [[1, 2]] * len(which),
            "completion_text": [_text(answer(i + k % 2), k, n_repeats) for i, k in which],
            "finish_reason": ["stop"] * len(which),
        },
        schema={name: ROLLOUTS.schema[name] for name in _WITHOUT_TOKENS},
    )
    n_tokens = len(WORDS) * n_repeats // 4
    tokens = pl.lit(list(range(n_tokens)), dtype=ROLLOUTS.schema["completion_token_ids"])
    logprobs = pl.lit([-0.5] * n_tokens, dtype=ROLLOUTS.schema["sampling_logprobs"])
    rollouts = rows.with_columns(completion_token_ids=tokens, sampling_logprobs=logprobs)
    return prompts, rollouts.select(list(ROLLOUTS.schema))


_WITHOUT_TOKENS = [name for name in ROLLOUTS.schema if name not in ("completion_token_ids", "sampling_logprobs")]


def _text(answer: str, k: int, n_repeats: int) -> str:
    return f"<think>{WORDS * n_repeats}{k}</think> <answer>\\boxed{{{answer}}}</answer>"


def _scorer(rollouts: pl.DataFrame, prompts: pl.DataFrame, terms: dict[str, dict[str, Any]]) -> Callable[[], object]:
    params = ScoreParams.model_validate({"terms": terms})
    return lambda: score_completions(rollouts, prompts, params)


def _math_loop(rollouts: pl.DataFrame, prompts: pl.DataFrame) -> Callable[[], Sequence[bool]]:
    """math-verify on one completion after the other, as its own documentation has it."""
    answers = dict(prompts.select("prompt_id", "answer").iter_rows())
    pairs = [
        (text, answers[prompt_id]) for prompt_id, text in rollouts.select("prompt_id", "completion_text").iter_rows()
    ]
    return lambda: [bool(verify(parse(f"${answer}$"), parse(text))) for text, answer in pairs]


def _format_loop(rollouts: pl.DataFrame) -> Callable[[], Sequence[bool]]:
    texts = rollouts["completion_text"].to_list()
    return lambda: [re.fullmatch(FORMAT, text) is not None for text in texts]


def write_tables(n_completions: int) -> None:
    """What the stage reads, under the current directory."""
    prompts, rollouts = _tables(n_completions, _number, n_repeats=20)
    write_table(prompts, Path("data/prompts.parquet"), PROMPTS)
    write_table(rollouts, Path("data/rollouts.parquet"), ROLLOUTS)


def _stage(n_completions: int) -> tuple[str, str]:
    """Seconds and peak memory of the stage, as it reports them, on completions of 2,100 characters and 520 tokens."""
    with TemporaryDirectory() as folder:
        # In a process of its own: the memory of one counts as that of the processes that it starts.
        make = f"from tests.benchmarks import scoring; scoring.write_tables({n_completions})"
        command(folder, "-c", make)()
        write_params(Path(folder), {"score": {"terms": {"correct": {"weight": 1.0}}}})
        command(folder, "-m", "stages.score")()
        metrics = json.loads((Path(folder) / "data/metrics/score.json").read_text())
    return f"{metrics['seconds']:.1f}", f"{metrics['peak_memory_mb']:,}"


if __name__ == "__main__":
    main()
