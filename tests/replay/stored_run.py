"""A repository with an iteration of a tiny model that was really rolled out, and others that differ from it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from pipeline.params import load_params
from pipeline.sampling.shards import code_files
from pipeline.table_io import read_table, table_metadata, write_table
from pipeline.tables import PROMPTS, ROLLOUTS, SELECTION
from pipeline.versioning.repository import Repository
from stages.rollout import rollout
from tests.stage_runs import ROOT, write_params
from tests.tiny_model import build_tiny_model
from tests.versioning.fabricated import add_file, add_folder, import_run, init, lock_text

PROMPT_TEXTS = {"p0": "1", "p1": "What is 2 + 2?", "p2": "7 + 8 =", "p3": "3 + 4"}
SELECTED = ("p2", "p0", "p3", "p1")
"""Another order than that of the ids, in which the rollouts are sorted."""
GROUP_SIZE = 3
CHANGES = {
    "rollout.group_size": GROUP_SIZE,
    "sampling.max_batch_completions": 2 * GROUP_SIZE,  # two groups a shard: p0 and p3, the shortest, and p2 and p1
    "sampling.max_completion_tokens": 8,
    "sampling.device": "cpu",
}


class StoredRun:
    """The run `demo` has an iteration as the stage `rollout` made it; `store` adds runs that were tampered with."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made = root / "made"
        init(root)
        for name in ("base", "policy"):
            build_tiny_model(self._made / "data" / name)
        with contextlib.chdir(self._made):
            _write_inputs()
            rollout(load_params())
        self.rollouts = read_table(self._made / "data/rollouts.parquet", ROLLOUTS)
        self.metadata = table_metadata(self._made / "data/rollouts.parquet")
        self.store("demo")

    @property
    def repository(self) -> Repository:
        return Repository(self.root)

    def store(
        self,
        name: str,
        rollouts: pl.DataFrame | None = None,
        metadata: Mapping[str, str] | None = None,
        policy: Path | None = None,
        code: Mapping[str, str] | None = None,
    ) -> None:
        """Make the run `name` of one iteration, `demo/0000` but for what is given; `code` is path -> content."""
        cache = self.repository.cache_dir
        table = self.root / "table.parquet"
        own = self.metadata if metadata is None else metadata
        write_table(self.rollouts if rollouts is None else rollouts, table, ROLLOUTS, own)
        outputs = [
            add_folder(cache, "data/base", _contents(self._made / "data/base")),
            add_folder(cache, "data/policy", _contents(policy or self._made / "data/policy")),
            add_file(cache, "data/selection.parquet", (self._made / "data/selection.parquet").read_bytes()),
            add_file(cache, "data/rollouts.parquet", table.read_bytes()),
        ]
        table.unlink()
        here = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in code_files()}
        params = (self._made / "params.yaml").read_text(encoding="utf-8")
        import_run(self.root, name, [lock_text(outputs)], texts=[{**here, **(code or {}), "params.yaml": params}])


def with_tokens(rollouts: pl.DataFrame, completion_id: str, token_ids: list[int]) -> pl.DataFrame:
    """`rollouts` in which that completion has `token_ids`, and as many of its log-probabilities."""
    is_it = pl.col("completion_id") == completion_id
    return rollouts.with_columns(
        completion_token_ids=pl.when(is_it)
        .then(pl.lit(token_ids, pl.List(pl.Int32)))
        .otherwise("completion_token_ids"),
        sampling_logprobs=pl.when(is_it)
        .then(pl.col("sampling_logprobs").list.head(len(token_ids)))
        .otherwise("sampling_logprobs"),
    )


def _write_inputs() -> None:
    prompts = [
        {
            "prompt_id": prompt_id,
            "split": "train",
            "source": "made up",
            "messages": [{"role": "user", "content": text}],
            "answer": None,
            "verifier": "none",
            "metadata": None,
        }
        for prompt_id, text in PROMPT_TEXTS.items()
    ]
    drawn = [
        {"iteration": 0, "position": place, "prompt_id": prompt_id, "reason": "next of epoch 0"}
        for place, prompt_id in enumerate(SELECTED)
    ]
    write_table(pl.DataFrame(prompts, schema=PROMPTS.schema), Path("data/prompts.parquet"), PROMPTS)
    write_table(pl.DataFrame(drawn, schema=SELECTION.schema), Path("data/selection.parquet"), SELECTION)
    write_params(Path(), CHANGES)


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
