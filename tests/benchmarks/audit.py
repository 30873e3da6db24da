"""Ten questions over a run, each as a process of its own: seconds, and the most memory that it took.

`python -m tests.benchmarks.audit --iterations 1000 --completions 10000` asks them about ten million completions; that
takes about 4 GB of disk.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import polars as pl
import typer
from rich.console import Console
from rich.table import Table

from pipeline.tables import TABLES
from pipeline.versioning.lockfile import Output
from tests.benchmarks.history import others
from tests.versioning.fabricated import add_file, import_run, lock_text

QUESTIONS = (
    *("highest", "terms", "silent", "duplicates", "length"),
    *("unrewarded", "repetition", "scripts", "format", "prompts"),
)
GROUP_SIZE, N_TOKENS, PROMPTS_PER_GROUP = 8, 12, 4
"""There are so many times more prompts than an iteration shows."""
MOST_MEMORY_MB = 4_096


def main(
    iterations: Annotated[int, typer.Option(help="How many the run has.")] = 100,
    completions: Annotated[int, typer.Option(help="How many each has.")] = 10_000,
    folder: Annotated[Path | None, typer.Option(help="Where the run is made, or lies from the last time.")] = None,
) -> None:
    """Make the run, and ask the questions."""
    with TemporaryDirectory() as temporary:
        root = folder or Path(temporary)
        if not (root / ".git").exists():
            fabricate(root, iterations, completions)
        title = f"{iterations * completions:,} completions in {iterations:,} iterations"
        table = Table("question", "seconds", "peak memory, MB", title=title, title_justify="left")
        asked = {name: ask(root, name) for name in QUESTIONS}
        for name, (seconds, memory) in asked.items():
            table.add_row(name, f"{seconds:.1f}", f"{memory:,.0f}")
        slowest = max(asked, key=lambda name: asked[name][0])
        Console().print(table, f"Slowest: {slowest}, {asked[slowest][0]:.1f} s")
        if over := [name for name, (_, memory) in asked.items() if memory > MOST_MEMORY_MB]:
            sys.exit(f"more than {MOST_MEMORY_MB:,} MB: {', '.join(over)}")


def ask(root: Path, question: str) -> tuple[float, float]:
    """Seconds and peak memory in MB of `rollbook audit` on the whole run."""
    command = [sys.executable, "-c", "from pipeline.cli import app; app()", "audit", question, "--run", "run"]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"rollbook audit {question} failed")
    return time.perf_counter() - started, _megabytes(usage)


def _megabytes(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def fabricate(root: Path, n_iterations: int, n_completions: int) -> None:
    """A repository with the run `run`, whose iterations have a file of their own for each table but the prompts."""
    subprocess.run(["git", "init", "--quiet", "--initial-branch", "main", str(root)], check=True)
    names = ("prompts", "rollouts", "rewards", "groups", "prompt_stats")
    paths = {f"data/{name}.parquet" for name in names}
    template = lock_text([*(Output(path, f"MD5 {path}", 0) for path in sorted(paths)), *unasked(paths)])
    prompts = prompt_rows(n_completions // GROUP_SIZE * PROMPTS_PER_GROUP)
    locks = []
    for iteration in range(n_iterations):
        frames = {**iteration_rows(iteration, n_completions, prompts.height), "prompts": prompts}
        lock = template
        for name, frame in frames.items():
            output = add_frame(root, name, frame)
            lock = lock.replace(
                f"md5: MD5 {output.path}\n      size: 0", f"md5: {output.md5}\n      size: {output.size}"
            )
        locks.append(lock)
    import_run(root, "run", locks)


def unasked(paths: set[str]) -> list[Output]:
    """Outputs of the pipeline without an object."""
    return [output for output in others() if output.path not in paths]


def add_frame(root: Path, name: str, frame: pl.DataFrame) -> Output:
    """A table in DVC's cache, written in the quick way: without page checksums, which these questions don't verify."""
    file = root / "table.parquet"
    frame.write_parquet(file, compression="zstd")
    output = add_file(root / ".dvc/cache", f"data/{name}.parquet", file.read_bytes())
    file.unlink()
    return output


def prompt_rows(n: int) -> pl.DataFrame:
    """Sums of two numbers."""
    left, right = pl.int_range(n) % 97, pl.int_range(n) % 89
    content = pl.format("What is {} + {}? Answer with just the number.", left, right)
    return pl.select(
        prompt_id=prompt_id(pl.int_range(n)),
        split=pl.lit("train", TABLES["prompts"].schema["split"]),
        source=pl.lit("made up"),
        messages=pl.concat_list(pl.struct(role=pl.lit("user"), content=content)),
        answer=(left + right).cast(pl.String),
        verifier=pl.lit("math"),
        metadata=pl.lit(None, pl.String),
    )


def prompt_id(number: pl.Expr) -> pl.Expr:
    return number.cast(pl.String).str.zfill(16)


def draw(key: pl.Expr, seed: int, n: int) -> pl.Expr:
    """A number below `n` for each `key`, which looks drawn, so that files are as large as real ones."""
    return (key.hash(seed) % n).cast(pl.Int64)


def iteration_rows(iteration: int, n: int, n_prompts: int) -> dict[str, pl.DataFrame]:
    """The tables of an iteration of `n` completions, of which about a third is correct."""
    n_groups = n // GROUP_SIZE
    place = pl.int_range(n)
    number = (place // GROUP_SIZE + iteration * n_groups) % n_prompts
    noise = draw(place, iteration, 1009)
    group_id = pl.format("{}/{}", pl.lit(f"{iteration:04d}"), prompt_id(number))
    ids = pl.select(
        iteration=pl.repeat(iteration, n, dtype=pl.UInt32),
        prompt_id=prompt_id(number),
        group_id=group_id,
        completion_id=pl.format("{}/{}", group_id, place % GROUP_SIZE),
        completion_index=(place % GROUP_SIZE).cast(pl.UInt16),
        answer=number % 97 + number % 89,
        noise=noise,
    ).sort("completion_id")
    is_correct = pl.col("noise") % 3 == 0
    said = pl.when(is_correct).then("answer").otherwise("noise")
    key = pl.col("completion_id")
    tokens = pl.concat_list([draw(key, step, 49_152).cast(pl.Int32) for step in range(N_TOKENS)])
    logprobs = pl.concat_list([-draw(key, step, 2**24).cast(pl.Float32) / 2**22 for step in range(N_TOKENS)])
    length = pl.when(pl.col("noise") % 5 == 0).then(pl.lit(" as anyone who adds can see")).otherwise(pl.lit(""))
    rollouts = ids.select(
        *("iteration", "prompt_id", "group_id", "completion_id", "completion_index"),
        seed=pl.col("noise").cast(pl.Int64),
        prompt_token_ids=pl.concat_list([pl.lit(token, pl.Int32) for token in range(N_TOKENS)]),
        completion_token_ids=tokens,
        completion_text=pl.format("Adding the two gives {}{}, and {} more.", said, length, pl.col("noise")),
        sampling_logprobs=logprobs,
        finish_reason=pl.lit("stop", TABLES["rollouts"].schema["finish_reason"]),
    )
    rewards = ids.select(
        *("iteration", "completion_id", "group_id", "prompt_id"),
        reward=is_correct.cast(pl.Float64) + pl.col("noise") / 10_090,
        is_correct=is_correct,
        extracted_answer=said.cast(pl.String),
        reward_correct=is_correct.cast(pl.Float64),
        reward_format=pl.col("noise") / 1009,
        score_error=pl.lit(None, pl.String),
    )
    return {
        "rollouts": rollouts,
        "rewards": rewards,
        "groups": group_rows(rewards),
        "prompt_stats": stats_rows(iteration, n_prompts),
    }


def group_rows(rewards: pl.DataFrame) -> pl.DataFrame:
    """A group in four is dropped."""
    is_kept = pl.col("n_correct") % 4 != 0
    zero = pl.lit(0, pl.UInt16)
    return (
        rewards.group_by("iteration", "group_id", "prompt_id")
        .agg(
            group_size=pl.len().cast(pl.UInt16),
            n_correct=pl.col("is_correct").sum().cast(pl.UInt16),
            n_unscorable=zero,
            n_truncated=zero,
            reward_mean=pl.col("reward").mean(),
            reward_std=pl.col("reward").std(),
            outcome=pl.lit("mixed", TABLES["groups"].schema["outcome"]),
        )
        .with_columns(kept=is_kept, reason=pl.when(is_kept).then(pl.lit("mixed")).otherwise(pl.lit("all wrong")))
        .sort("group_id")
    )


def stats_rows(iteration: int, n_prompts: int) -> pl.DataFrame:
    """Every prompt was seen, with a pass rate that goes up and down."""
    correct = (pl.int_range(n_prompts) + iteration) % 9
    return pl.select(
        prompt_id=prompt_id(pl.int_range(n_prompts)),
        n_groups=pl.repeat(iteration, n_prompts, dtype=pl.UInt32),
        n_completions=pl.repeat(GROUP_SIZE, n_prompts, dtype=pl.UInt32),
        n_correct=correct.cast(pl.UInt32),
        pass_rate=correct / 8,
        recent_pass_rate=correct / 8,
        last_iteration=pl.repeat(iteration, n_prompts, dtype=pl.UInt32),
    )


if __name__ == "__main__":
    typer.run(main)
