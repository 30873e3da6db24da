"""`dvc.lock`: what DVC recorded of the outputs of each stage, here and in any commit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.errors import BadInput, first_line
from pipeline.versioning.git import read_blobs

LOCKFILE = "dvc.lock"
PIPELINE_FILE = "dvc.yaml"

FOLDER = ".dir"
"""The end of the md5 of a folder."""


@dataclass(frozen=True)
class Output:
    """A file or folder that a stage wrote: its md5, which DVC's cache keeps it by, and its size in bytes."""

    path: str
    md5: str
    size: int
    n_files: int | None = None

    @property
    def is_folder(self) -> bool:
        return self.md5.endswith(FOLDER)


_HEAD = re.compile(r"schema: '2\.0'\nstages:\n(?=  \S)")
# They begin with "\n" in place of "^", which a search looks for eight times as fast.
_UNINDENTED = re.compile(r"\n[^ \n]")
_OUTS = re.compile(r"\n    outs:(.*)\n((?:    (?:- |  ).*\n)*)")
_ENTRY = re.compile(
    r"    - path: (?P<path>[A-Za-z_][\w./-]*)\n"
    r"      hash: md5\n"
    r"      md5: '?(?P<md5>[0-9a-f]{32}(?:\.dir)?)'?\n"  # quoted where it looks like a number
    r"      size: (?P<size>\d+)\n"
    r"(?:      nfiles: (?P<n_files>\d+)\n)?"
    r"(?:      isexec: true\n)?"
)


def parse_lock(text: str, where: str = LOCKFILE) -> dict[str, Output]:
    """Path -> output, of every stage in the `dvc.lock` whose text is given.

    History reads a thousand of these files, and a YAML parser takes a second for twenty of them. So DVC's own layout is
    read with patterns, and a file that has anything else in its outputs as YAML.

    Raises:
        BadInput: it is no such file; `where` names it.

    >>> entry = "    - path: data/policy\\n      hash: md5\\n      md5: " + "ab" * 16 + ".dir\\n"
    >>> lock = "schema: '2.0'\\nstages:\\n  start:\\n    outs:\\n" + entry + "      size: 90\\n      nfiles: 2\\n"
    >>> parse_lock(lock)["data/policy"].n_files
    2
    """
    outputs = _parse_as_dvc_writes(text)
    return _parse_as_yaml(text, where) if outputs is None else outputs


def _parse_as_dvc_writes(text: str) -> dict[str, Output] | None:
    """Path -> output, or None where the file is not, to the letter, as DVC writes it."""
    head = _HEAD.match(text)
    if head is None or not text.endswith("\n") or _UNINDENTED.search(text, head.end()):
        return None
    found: dict[str, Output] = {}
    for block in _OUTS.finditer(text):
        position, end = block.span(2)
        if block[1] or position == end:
            return None
        while position < end:
            entry = _ENTRY.match(text, position, end)
            if entry is None:
                return None
            path, md5, size, n_files = entry.groups()
            found[path] = Output(path, md5, int(size), None if n_files is None else int(n_files))
            position = entry.end()
    return found


def _parse_as_yaml(text: str, where: str) -> dict[str, Output]:
    """Path -> output, by a YAML parser."""
    remedy = "Restore it with `git checkout`, or run `dvc repro`"
    content = _load_yaml(text, where, remedy)
    try:
        entries = [entry for stage in content["stages"].values() for entry in stage.get("outs", [])]
        return {
            entry["path"]: Output(entry["path"], entry["md5"], int(entry["size"]), entry.get("nfiles"))
            for entry in entries
        }
    except (KeyError, TypeError, AttributeError, ValueError):
        raise BadInput(where, "it has not the layout of a dvc.lock of DVC 3", remedy) from None


@lru_cache(maxsize=64)
def uncached_paths(text: str) -> frozenset[str]:
    """The outputs that the `dvc.yaml` whose text is given keeps out of DVC's cache, since they are in Git.

    >>> sorted(uncached_paths("stages: {report: {outs: [page.html, {history.csv: {cache: false}}]}}"))
    ['history.csv']
    """
    return frozenset(path for path, options in declared_outputs(text).items() if options.get("cache") is False)


def declared_outputs(text: str) -> dict[str, dict[str, Any]]:
    """Path -> options of every output in the `dvc.yaml` whose text is given.

    >>> declared_outputs("stages: {report: {outs: [page.html, {history.csv: {cache: false}}]}}")
    {'page.html': {}, 'history.csv': {'cache': False}}
    """
    remedy = "Restore it with `git checkout`"
    content = _load_yaml(text, PIPELINE_FILE, remedy)
    try:
        listed = [
            item
            for stage in content["stages"].values()
            for kind in ("outs", "metrics", "plots")
            for item in stage.get(kind, ())
        ]
        return {path: options for item in listed for path, options in _with_options(item).items()}
    except (KeyError, TypeError, AttributeError):
        raise BadInput(PIPELINE_FILE, "it has not the layout of a dvc.yaml", remedy) from None


def _with_options(item: str | dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """An entry of `outs`, which is a path, or a mapping from paths to options."""
    return {item: {}} if isinstance(item, str) else dict(item)


def read_locks(commits: Sequence[str], cwd: Path | None = None) -> list[dict[str, Output]]:
    """Path -> output of each of `commits`, whose files one process of Git reads.

    Raises:
        BadInput: a commit has no `dvc.lock`, or a damaged one.
    """
    texts = _read_texts(commits, LOCKFILE, cwd)
    return [parse_lock(text, _place(LOCKFILE, commit)) for commit, text in zip(commits, texts, strict=True)]


def read_cached_outputs(commits: Sequence[str], cwd: Path | None = None) -> list[dict[str, Output]]:
    """As `read_locks`, without the outputs that Git keeps in place of DVC's cache.

    Raises:
        BadInput: a commit has no `dvc.lock` or `dvc.yaml`, or a damaged one.
    """
    pipelines = _read_texts(commits, PIPELINE_FILE, cwd)
    return [
        {path: output for path, output in lock.items() if path not in uncached_paths(text)}
        for text, lock in zip(pipelines, read_locks(commits, cwd), strict=True)
    ]


def _read_texts(commits: Sequence[str], name: str, cwd: Path | None) -> list[str]:
    texts = []
    for commit, blob in zip(commits, read_blobs([f"{commit}:{name}" for commit in commits], cwd), strict=True):
        if blob is None:
            problem = "there is no such commit here, or it has no such file, so it is no iteration"
            raise BadInput(_place(name, commit), problem, "Name an iteration, such as demo/0003")
        texts.append(blob.decode("utf-8", "replace"))
    return texts


def _place(name: str, commit: str) -> str:
    return f"{name} in commit {commit[:12]}"


def _load_yaml(text: str, where: str, remedy: str) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise BadInput(where, f"it can't be read as YAML ({first_line(error)})", remedy) from error
