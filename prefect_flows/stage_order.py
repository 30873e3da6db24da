"""The stages of `dvc.yaml` in the order in which they can run."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import Any

from ruamel.yaml import YAML


def read_stage_order(worktree: Path) -> list[str]:
    """The stages of the pipeline in `worktree`, each after those whose outputs it reads."""
    text = (worktree / "dvc.yaml").read_text(encoding="utf-8")
    return stage_order(YAML(typ="safe", pure=True).load(text)["stages"])


def stage_order(stages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of `stages`, as `dvc.yaml` has them, sorted by what they read; where that leaves a choice, as listed.

    >>> stage_order({"train": {"deps": ["data/raw.csv"]}, "make": {"outs": [{"data": {"cache": False}}]}})
    ['make', 'train']
    """
    writers = [(path, name) for name, stage in stages.items() for path in _outputs(stage)]
    sorter = TopologicalSorter(
        {
            name: [writer for path, writer in writers if any(_overlap(path, read) for read in stage.get("deps", []))]
            for name, stage in stages.items()
        }
    )
    sorter.prepare()
    listed = list(stages)
    ready: list[str] = []
    order: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=listed.index)
        order.append(ready.pop(0))
        sorter.done(order[-1])
    return order


def _outputs(stage: Mapping[str, Any]) -> list[str]:
    """Paths that the stage writes; `dvc.yaml` has them plain, or as a mapping from the path to options."""
    entries = [entry for kind in ("outs", "metrics", "plots") for entry in stage.get(kind, [])]
    return [path for entry in entries for path in ([entry] if isinstance(entry, str) else entry)]


def _overlap(written: str, read: str) -> bool:
    one, other = PurePosixPath(written), PurePosixPath(read)
    return one.is_relative_to(other) or other.is_relative_to(one)
