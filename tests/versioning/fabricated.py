"""Histories of any length without a run: `git fast-import`, locks as DVC writes them, objects in its cache."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from ruamel.yaml import YAML

from pipeline.table_io import write_table
from pipeline.tables import Table
from pipeline.versioning.lockfile import Output
from pipeline.versioning.objects import object_path
from tests.stage_runs import ROOT
from tests.versioning.project import run

PIPELINE = (ROOT / "dvc.yaml").read_text(encoding="utf-8")
OLD_STATE, STATE, POLICY = "data/trainer_state", "data/next_trainer_state", "data/next_policy"
REWARDS_PATH = "data/rewards.parquet"


def init(root: Path, remote: Path | None = None) -> None:
    """A repository under Git and DVC in the folder `root`, with one commit on `main`; its `remote` is a folder."""
    (root / ".dvc").mkdir(parents=True)
    lines = ["[core]", "analytics = false", "check_update = false"]
    if remote:
        lines += ["remote = store", "['remote \"store\"']", f"url = {remote}"]
    (root / ".dvc/config").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (root / ".gitignore").write_text("/.dvc\n/data\n", encoding="utf-8")
    run(root, "git", "init", "--quiet", "--initial-branch", "main")
    run(root, "git", "add", "--all")
    run(root, "git", "commit", "--quiet", "--message", "the project")


def add_object(cache_dir: Path, content: bytes, suffix: str = "") -> str:
    """Put `content` into DVC's cache, read-only; return its md5."""
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() + suffix
    path = object_path(cache_dir, md5)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o444)
    return md5


def add_file(cache_dir: Path, path: str, content: bytes) -> Output:
    """The file `path` as an output in DVC's cache."""
    return Output(path, add_object(cache_dir, content), len(content))


def add_folder(cache_dir: Path, path: str, files: Mapping[str, bytes]) -> Output:
    """The folder `path` as an output in DVC's cache."""
    entries = [{"md5": add_object(cache_dir, content), "relpath": name} for name, content in sorted(files.items())]
    md5 = add_object(cache_dir, json.dumps(entries).encode(), ".dir")
    return Output(path, md5, sum(map(len, files.values())), len(files))


def add_table(cache_dir: Path, path: str, rows: pl.DataFrame, table: Table, folder: Path) -> Output:
    """A table as an output in DVC's cache; `folder` is for a file in between."""
    write_table(rows, folder / "table.parquet", table)
    return add_file(cache_dir, path, (folder / "table.parquet").read_bytes())


def lock_text(outputs: Sequence[Output], pipeline: str = PIPELINE) -> str:
    """A dvc.lock as long as a real one, in which the stages of `pipeline` have those of `outputs` that are theirs."""
    by_path = {output.path: output for output in outputs}
    stages: dict[str, Any] = {}
    for name, stage in YAML(typ="safe").load(pipeline)["stages"].items():
        listed = [*stage.get("outs", []), *stage.get("metrics", [])]
        own = sorted(path for item in listed for path in (item if isinstance(item, dict) else [item]))
        deps = [_entry(by_path.get(path) or Output(path, _md5_of(path), 1)) for path in sorted(stage.get("deps", []))]
        outs = [_entry(by_path[path]) for path in own if path in by_path]
        stages[name] = {"cmd": stage["cmd"], "deps": deps, **({"outs": outs} if outs else {})}
    text = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump({"schema": "2.0", "stages": stages}, text)
    return text.getvalue()


def _md5_of(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _entry(output: Output) -> dict[str, Any]:
    files = {} if output.n_files is None else {"nfiles": output.n_files}
    return {"path": output.path, "hash": "md5", "md5": output.md5, "size": output.size, **files}


def import_run(
    root: Path,
    name: str,
    locks: Sequence[str],
    *,
    start: str = "refs/heads/main",
    first: int = 0,
    pipeline: str = PIPELINE,
    texts: Sequence[Mapping[str, str]] = (),
) -> list[str]:
    """Make the branch of the run `name` in the repository `root`, a tagged commit per lock; return the commits.

    It leaves `start`, if that exists, and its iterations are numbered from `first`. A commit has the files of its
    entry of `texts`, path -> content, beside `dvc.yaml` and `dvc.lock`.
    """
    stream = io.BytesIO()
    has_start = (
        subprocess.run(["git", "rev-parse", "-q", "--verify", start], cwd=root, capture_output=True).returncode == 0
    )
    for number, lock in enumerate(locks):
        origin = f"from :{number}\n" if number else f"from {start}^0\n" if has_start else ""
        message = f"{name}/{first + number:04d}"
        stream.write(
            f"commit refs/heads/runs/{name}\nmark :{number + 1}\n"
            f"committer someone <someone@example.org> {1_700_000_000 + number} +0000\n"
            f"data {len(message)}\n{message}\n{origin}".encode()
        )
        others = texts[number] if texts else {}
        for file, text in {"dvc.yaml": pipeline, "dvc.lock": lock, **others}.items():
            stream.write(f"M 100644 inline {file}\ndata {len(text.encode())}\n{text}\n".encode())
        stream.write(f"reset refs/tags/{message}\nfrom :{number + 1}\n\n".encode())
    subprocess.run(["git", "fast-import", "--quiet"], cwd=root, input=stream.getvalue(), check=True)
    names = [f"{name}/{first + number:04d}" for number in range(len(locks))]
    listed = subprocess.run(["git", "rev-parse", *names], cwd=root, capture_output=True, text=True, check=True)
    return listed.stdout.split()
