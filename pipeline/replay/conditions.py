"""What has to be the same for samples to come out the same, and is not: engine, version, device, batching, code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipeline.sampling.shards import CODE, code_files
from pipeline.versioning.git import git, read_blobs

PROMISES = ("seed_scope", "is_repeatable")
"""Metadata of rollouts that says nothing of how they came out, and that older ones lack."""


def changed_conditions(recorded: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """What is not as it was when the rollouts were sampled, in words, from their metadata and that of the replay.

    >>> changed_conditions({"engine": "vllm", "device": "cpu"}, {"engine": "transformers", "device": "cpu"})
    ['engine: it was vllm, and here it is transformers']
    """
    return [
        f"{key}: it was {recorded.get(key, 'not recorded')}, and here it is {value}"
        for key, value in here.items()
        if recorded.get(key) != value and (key in recorded or key not in PROMISES)
    ]


def changed_code(repository: Path, commit: str) -> list[str]:
    """The files of the code that determines samples which are others here than in `commit`, or only on one side."""
    root = Path(__file__).parents[2]
    paths = [path.relative_to(root).as_posix() for path in CODE]
    names = git("ls-tree", "-r", "--name-only", commit, "--", *paths, cwd=repository).splitlines()
    there = dict(zip(names, read_blobs([f"{commit}:{name}" for name in names], repository), strict=True))
    here = {file.relative_to(root).as_posix(): file.read_bytes() for file in code_files()}
    return sorted(name for name in {*there, *here} if there.get(name) != here.get(name))
