"""The sampler beside `generate` of transformers: the same base model, prompts and numbers of tokens, in turn.

`generate` has what makes it fast, bfloat16 and its cache, and returns token ids alone; `generate-logprobs` returns the
log-probabilities too, as the sampler does, where they fit into the memory.
"""

from __future__ import annotations

import json
import os
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated

import polars as pl
import typer
from rich.console import Console
from rich.table import Table

import stages  # noqa: F401  (sets how OpenMP waits)
from pipeline.policy import load_tokenizer
from pipeline.rollouts import tokenize_prompts
from tests.benchmarks.compare import in_turn, need
from tests.benchmarks.sampling_sides import SIDES, Side, Work, can_run

SEVERAL = "may be given several times"


def main(
    prompts: Annotated[list[int] | None, typer.Option(help=f"numbers of prompts; {SEVERAL}; 16 where left out")] = None,
    tokens: Annotated[list[int] | None, typer.Option(help=f"new tokens; {SEVERAL}; 16 where left out")] = None,
    side: Annotated[list[str] | None, typer.Option(help=f"of {', '.join(SIDES)}; {SEVERAL}; all if left out")] = None,
    completions: Annotated[int, typer.Option(help="of each prompt")] = 8,
    rounds: Annotated[int, typer.Option(help="in which each side runs once, after one that does not count")] = 3,
    baseline: Annotated[str, typer.Option(help="the side that the others are compared with")] = "generate",
    out: Annotated[Path, typer.Option(help="where all numbers go, as JSON")] = Path(".rollbook/bench_sampling.json"),
) -> None:
    """Measure each size with each side, and print tokens/s and ratios."""
    need(["data/base/tokenizer.json", "data/prompts.parquet"])
    base = Path("data/base")
    tokenizer = load_tokenizer(base)
    sizes = list(product(prompts or [16], tokens or [16]))
    chosen = pl.read_parquet("data/prompts.parquet").head(max(n for n, _ in sizes))
    token_ids = tokenize_prompts(chosen, tokenizer)
    sides = {name: SIDES[name](base) for name in side or SIDES}
    results = []
    for n_prompts, n_tokens in sizes:
        work = Work(token_ids[:n_prompts], completions, n_tokens)
        able = {name: run for name, run in sides.items() if can_run(name, work, len(tokenizer))}
        seconds = measure(able, work, rounds)
        Console(width=None if os.isatty(1) else 100).print(make_table(work, seconds, baseline))
        results.append({"prompts": n_prompts, "completions": completions, "tokens": n_tokens, "seconds": seconds})
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1), encoding="utf-8")


def measure(sides: dict[str, Side], work: Work, rounds: int) -> dict[str, list[float]]:
    """Seconds of each side in each round; each must have sampled all the tokens that were asked for."""

    def run(name: str) -> None:
        n_sampled = sides[name](work)
        assert n_sampled == work.n_rows * work.n_tokens, f"{name} sampled {n_sampled} tokens"

    return in_turn({name: partial(run, name) for name in sides}, rounds)


def make_table(work: Work, seconds: dict[str, list[float]], baseline: str) -> Table:
    """Tokens/s of each side, and how many times those of `baseline` in the same round: median and extremes."""
    title = f"{len(work.prompts)} prompts x {work.n_completions} completions x {work.n_tokens} tokens"
    table = Table("side", "tokens/s", f"times {baseline}", "min", "max", title=title, title_justify="left")
    for name, values in seconds.items():
        speed = work.n_rows * work.n_tokens / median(values)
        ratios = [base / own for own, base in zip(values, seconds.get(baseline, values), strict=True)]
        table.add_row(name, f"{speed:.0f}", *(f"{each:.2f}" for each in (median(ratios), min(ratios), max(ratios))))
    return table


if __name__ == "__main__":
    typer.run(main)
