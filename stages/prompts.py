"""Stage `prompts`: a prompt source -> chats, deduplicated and split."""

from __future__ import annotations

import os
import sys

from pipeline.params import Params
from pipeline.prompt_sources import read_prompts
from pipeline.prompts import build_prompts
from pipeline.table_io import write_table
from pipeline.tables import PROMPTS
from stages import paths
from stages.progress import progress
from stages.runner import Result, run_stage


def make_prompts(params: Params) -> Result:
    """Read the source, write `prompts`."""
    with progress("prompts", total=params.prompts.source.size or 0) as advance:
        rows = read_prompts(params.prompts, advance)
    prompts = build_prompts(rows, params.prompts)
    write_table(prompts.table, paths.PROMPTS, PROMPTS)
    metrics = {
        "n_rows": prompts.n_rows,
        "n_duplicates": prompts.n_duplicates,
        "n_unused": prompts.n_unused,
        "n_train": params.prompts.train_size,
        "n_eval": params.prompts.eval_size,
    }
    n_distinct = prompts.n_rows - prompts.n_duplicates
    line = f"{metrics['n_train']} train and {metrics['n_eval']} eval prompts of {n_distinct} distinct ones"
    return Result(f"{line}, {prompts.n_duplicates} duplicates dropped", metrics)


if __name__ == "__main__":
    if sys.flags.hash_randomization:
        # Some generators walk through sets of strings, whose order is that of Python's hash, random in each process.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "stages.prompts", *sys.argv[1:]])
    run_stage("prompts", make_prompts)
