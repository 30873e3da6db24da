"""A group-by over the rewards of all iterations of a run, of 1,000 and of 10: `git fast-import` makes them."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

from pipeline.history import scan
from pipeline.tables import REWARDS
from pipeline.versioning.lockfile import Output
from pipeline.versioning.repository import Repository
from tests.benchmarks.compare import command, in_turn, show
from tests.versioning.fabricated import add_table, import_run, lock_text

N_COMPLETIONS = 128
MOST, FEWEST = 1_000, 10
WHOLE = """
import polars as pl
from pipeline.history import scan
means = scan("rewards", ["run{n}"]).group_by("iteration").agg(pl.col("reward").mean()).collect()
assert means.height == {n}
"""


def main(rounds: int = 5) -> None:
    """Seconds of the query in this process and of a whole process; the longest is to take less than two."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        fabricate(root)
        functions = {f"{n} iterations": partial(mean_rewards, folder, n) for n in (FEWEST, MOST)}
        show("history.scan and group-by", in_turn(functions, rounds), f"{FEWEST} iterations")
        processes = {f"{n} iterations": command(folder, "-c", WHOLE.format(n=n)) for n in (FEWEST, MOST)}
        show("the same as a process of its own", in_turn(processes, rounds), f"{FEWEST} iterations")


def mean_rewards(folder: str, n: int) -> pl.DataFrame:
    """The mean reward of each of the `n` iterations of the run of that length."""
    rewards = scan("rewards", [f"run{n}"], repo=Repository(Path(folder)))
    means = rewards.group_by("iteration").agg(pl.col("reward").mean()).collect()
    assert means.height == n
    return means


def fabricate(root: Path) -> None:
    """A repository with a run of each length, whose objects are shared."""
    subprocess.run(["git", "init", "--quiet", "--initial-branch", "main", str(root)], check=True)
    cache_dir = root / ".dvc/cache"
    tables = [add_table(cache_dir, "data/rewards.parquet", rewards(k), REWARDS, root) for k in range(MOST)]
    # A real lock names some forty outputs; just the table that is read has an object here.
    template = lock_text([Output("data/rewards.parquet", "MD5", 0), *others()])
    place = "md5: MD5\n      size: 0"
    locks = [template.replace(place, f"md5: {table.md5}\n      size: {table.size}") for table in tables]
    for n in (FEWEST, MOST):
        import_run(root, f"run{n}", locks[:n])


def others() -> list[Output]:
    """Outputs of the pipeline, of which the md5 is of no interest here."""
    names = ("policy", "trainer_state", "prompts.parquet", "rollouts.parquet", "advantages.parquet", "groups.parquet")
    return [Output(f"data/{name}", "c0ffee" + "0" * 26, 1_000) for name in names]


def rewards(iteration: int) -> pl.DataFrame:
    """The rewards of one iteration."""
    index = pl.int_range(N_COMPLETIONS, eager=True)
    group = pl.format("{}/prompt{}", pl.lit(f"{iteration:04d}"), index // 8)
    return pl.select(
        iteration=pl.lit(iteration, pl.UInt32).repeat_by(N_COMPLETIONS).explode(),
        completion_id=pl.format("{}/{}", group, index % 8),
        group_id=group,
        prompt_id=pl.format("prompt{}", index // 8),
        reward=(index * iteration % 7) / 6,
        is_correct=index % 7 == 6,
        extracted_answer=pl.lit(None, pl.String),
        score_error=pl.lit(None, pl.String),
    )


if __name__ == "__main__":
    main()
