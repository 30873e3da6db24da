"""A whole iteration in a folder, as a checkout has it: params, tables, policies, `dvc.yaml` and `dvc.lock`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import polars as pl

from pipeline.fingerprint import fingerprint_folders
from pipeline.history_rows import append_history
from pipeline.integrity.evidence import TABLE_FILES
from pipeline.params import Params, load_params
from pipeline.table_io import table_metadata, write_json, write_table, write_text
from pipeline.versioning.lockfile import Output
from tests.sound_iteration import headline_of, sound_frames
from tests.stage_runs import write_params
from tests.versioning.fabricated import lock_text

FOLDERS = ("data/base", "data/policy", "data/next_policy", "data/trainer_state", "data/next_trainer_state")
IN_GIT = ("data/history.csv", "data/metrics/report.json")
ARTIFACTS = (*(artifact for artifact, _ in TABLE_FILES.values()), *FOLDERS, *IN_GIT)
SMALL = {"select.n_prompts": 5, "rollout.group_size": 4, "evaluate.n_prompts": 2}

_MADE = ", ".join(artifact for artifact in ARTIFACTS if artifact not in IN_GIT)
_KEPT = ", ".join(f"{{{artifact}: {{cache: false}}}}" for artifact in IN_GIT)
PIPELINE = f"""
stages:
  make: {{cmd: make, outs: [{_MADE}]}}
  report: {{cmd: report, deps: [data/rewards.parquet, data/policy], outs: [{_KEPT}]}}
"""

Edit = Callable[[pl.DataFrame], pl.DataFrame]


class Whole:
    """The iteration in the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def params(self) -> Params:
        return load_params(self.root / "params.yaml")

    def write(self, changes: dict[str, object] | None = None, stats: pl.DataFrame | None = None) -> None:
        """Write everything, with `changes` to the params of the tests; `stats` are those of the prompts before."""
        write_params(self.root, {**SMALL, **(changes or {})})
        (self.root / "dvc.yaml").write_text(PIPELINE, encoding="utf-8")
        iteration = self.params.iteration
        for folder, content in zip(FOLDERS, ("base", iteration, iteration + 1, iteration, iteration + 1), strict=True):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
            kind = folder.removeprefix("data/").removeprefix("next_")
            (self.root / folder / "model.safetensors").write_text(f"{kind} {content}", encoding="utf-8")
        frames = sound_frames(self.params, stats, first_step=iteration)
        for name, (artifact, table) in TABLE_FILES.items():
            write_table(frames[name], self.root / artifact, table, self._metadata(name))
        headline = headline_of(frames, iteration)
        write_json(headline, self.root / "data/metrics/report.json")
        write_text(append_history(None, headline), self.root / "data/history.csv")
        self.lock()

    def lock(self) -> None:
        """Write `dvc.lock` as DVC would for what is here now."""
        (self.root / "dvc.lock").write_text(self.lock_text(), encoding="utf-8")

    def lock_text(self) -> str:
        return lock_text([self.output(artifact) for artifact in ARTIFACTS], PIPELINE)

    def output(self, artifact: str) -> Output:
        """`artifact` as it is here now."""
        path = self.root / artifact
        if path.is_file():
            content = path.read_bytes()
            return Output(artifact, md5_of(content), len(content))
        files = list(path.iterdir())
        size = sum(file.stat().st_size for file in files)
        return Output(artifact, f"{md5_of(self.folder_list(artifact))}.dir", size, len(files))

    def folder_list(self, folder: str) -> bytes:
        """What DVC's cache has of a folder: the list of its files."""
        files = sorted((self.root / folder).iterdir())
        return json.dumps([{"md5": md5_of(file.read_bytes()), "relpath": file.name} for file in files]).encode()

    def read(self, name: str) -> pl.DataFrame:
        return pl.read_parquet(self.root / TABLE_FILES[name][0])

    def edit(self, name: str, change: Edit, **noted: str) -> None:
        """Change the table `name`, which stays one that its own schema allows, and what is `noted` in its metadata."""
        artifact, table = TABLE_FILES[name]
        metadata = {
            key: value for key, value in table_metadata(self.root / artifact).items() if key != "schema_version"
        }
        write_table(change(self.read(name)), self.root / artifact, table, metadata | noted)

    def _metadata(self, name: str) -> dict[str, str] | None:
        if name != "rollouts":
            return None
        policy = self.root / "data/policy"
        fingerprint = fingerprint_folders(policy)
        return {"policy_fingerprint": fingerprint, "temperature": repr(self.params.sampling.temperature)}


def md5_of(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
