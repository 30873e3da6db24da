"""Runs of a stage in a folder of their own: in this process, which is quick, or as the process that DVC starts."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.params import Params
from stages.runner import Result, run_stage

ROOT = Path(__file__).resolve().parent.parent
PARAMS_FILE = ROOT / "tests/params.yaml"
"""The params that tests build on: a person's own are in the file at the root."""


@dataclass(frozen=True)
class Ended:
    """How a stage ended: its exit code, what it printed, and its exit record."""

    code: int
    out: str
    err: str
    record: dict[str, Any]


def write_params(folder: Path, changes: dict[str, Any]) -> None:
    """A params.yaml, `PARAMS_FILE` with `changes`, `{"prompts.train_size": 5}`, written to `folder`."""
    yaml = YAML(typ="safe")  # DVC's, which reads all that it writes
    params = copy.deepcopy(yaml.load(PARAMS_FILE.read_text(encoding="utf-8")))
    for key, value in changes.items():
        *sections, last = key.split(".")
        section = params
        for name in sections:
            section = section[name]
        section[last] = value
    with (folder / "params.yaml").open("w", encoding="utf-8") as stream:
        yaml.dump(params, stream)


def run_here(
    name: str, work: Callable[[Params], Result], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ended:
    """Run `work` as the stage `name` in the current directory, within this process."""
    monkeypatch.setattr(sys, "argv", [f"stages/{name}.py"])
    code = 0
    try:
        run_stage(name, work)
    except SystemExit as leave:
        code = int(str(leave.code))
    captured = capsys.readouterr()
    return Ended(code, captured.out, captured.err, _record(Path(), name))


def run_process(name: str, folder: Path, *, first_on_path: Path = ROOT, **environment: str) -> Ended:
    """Run `python -m stages.<name>` in `folder`; modules in `first_on_path` are found before all others."""
    done = subprocess.run(
        [sys.executable, "-m", f"stages.{name}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{first_on_path}{os.pathsep}{ROOT}", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Ended(done.returncode, done.stdout, done.stderr, _record(folder, name))


def torch_that_breaks(folder: Path) -> Path:
    """A folder for `first_on_path` whose torch can't be imported, which shows whether anything tries."""
    (folder / "broken/torch").mkdir(parents=True)
    (folder / "broken/torch/__init__.py").write_text("raise ImportError('torch was imported')", encoding="utf-8")
    return folder / "broken"


def _record(folder: Path, name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / f".rollbook/exit/{name}.json").read_text(encoding="utf-8"))
    return record
