"""A checkout of the project in a folder of its own, with a tiny random model, in which real `dvc` and `git` run."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.stage_runs import ROOT, write_params
from tests.tiny_model import build_tiny_model

TABLES_UP_TO_TRAINING_SET = (
    "prompts",
    "prompt_stats",
    "selection",
    "rollouts",
    "rewards",
    "advantages",
    "groups",
    "training_set",
    "next_prompt_stats",
)
COMPILES_ELSEWHERE = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
TERM = """
from pipeline.rewards.completion import Completion


def score(completion: Completion, params: object) -> float | None:
    return sum(map(ord, completion.completion_text)) % 5 / 4
"""
"""A reward that tells the completions of a random model apart, which is never right."""

SMALL: dict[str, Any] = {
    "prompts.source": {"file": "data/sources/example_word_problems.jsonl", "prompt": "question", "answer": "answer"},
    "prompts.verifier": "none",
    "prompts.train_size": 30,
    "prompts.eval_size": 10,
    "select.n_prompts": 4,
    "rollout.group_size": 4,
    "sampling.max_completion_tokens": 6,
    "evaluate.n_prompts": 6,
    "score.terms": {"checksum": {"weight": 1.0}},
    "training.minibatches": 2,
}


class Checkout:
    """The project's files in `folder`, under Git, ready for `dvc repro`."""

    def __init__(self, folder: Path, model: Path, changes: dict[str, Any] | None = None) -> None:
        self.folder = folder
        for name in _project_files():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
        (folder / "pipeline/rewards/user/checksum.py").write_text(TERM, encoding="utf-8")
        self.set_params({**SMALL, "base_model": {"path": str(model)}, **(changes or {})})
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commit("the project")

    def clone(self, folder: Path) -> Checkout:
        """A clone of what is committed, with the data of the commit out of this checkout's DVC cache."""
        self.git("clone", "--quiet", str(self.folder), str(folder))
        clone = self.at(folder)
        clone.dvc("cache", "dir", "--local", str(self.folder / ".dvc/cache"))
        clone.dvc("checkout")
        return clone

    def at(self, folder: Path) -> Checkout:
        """The checkout or worktree that is in `folder` already."""
        other = copy.copy(self)
        other.folder = folder
        return other

    def compile(self, module: str) -> list[Path]:
        """Import `module`, edited in nothing but its time; return the files of compiled code beside it."""
        source = self.folder.joinpath(*module.split(".")).with_suffix(".py")
        compiled = source.parent / "__pycache__"
        shutil.rmtree(compiled, ignore_errors=True)
        source.touch()
        self.python(f"import {module}")
        return list(compiled.glob(f"{source.stem}.*.pyc"))

    def set_params(self, changes: dict[str, Any]) -> None:
        """Write params.yaml: that of the tests with all `changes` so far, in iteration 0 where they name no other."""
        self.params = {**getattr(self, "params", {}), **changes}
        write_params(self.folder, self.params)

    def git(self, *arguments: str) -> str:
        """Run git, with an identity of its own; return what it prints."""
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        return self._run("git", *identity, *arguments).stdout

    def commit(self, message: str) -> str:
        """Commit everything; return the commit's id."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD").strip()

    def dvc(self, *arguments: str) -> str:
        """Run dvc; return what it prints."""
        return self._run(sys.executable, "-m", "dvc", *arguments).stdout

    def python(self, code: str) -> str:
        """Run lines of Python; return what they print."""
        return self._run(sys.executable, "-c", code).stdout

    def start_repro(self) -> subprocess.Popen[str]:
        """`dvc repro` in a process group of its own, to be killed as a whole."""
        return subprocess.Popen(
            [sys.executable, "-m", "dvc", "repro"],
            cwd=self.folder,
            env=person_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def digests(self, names: tuple[str, ...] = TABLES_UP_TO_TRAINING_SET) -> dict[str, str]:
        """SHA-256 of tables, by name."""
        return {name: _digest(self.folder / "data" / f"{name}.parquet") for name in names}

    def weights(self) -> dict[str, str]:
        """SHA-256 of every file of the next policy and trainer state, by path."""
        folders = (self.folder / "data" / "next_policy", self.folder / "data" / "next_trainer_state")
        return {str(file.relative_to(self.folder)): _digest(file) for folder in folders for file in folder.iterdir()}

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, cwd=self.folder, env=person_environment(), capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done


def make_model(folder: Path) -> Path:
    """The tiny random model in `folder`."""
    build_tiny_model(folder)
    return folder


def person_environment() -> dict[str, str]:
    """A person's: Python keeps compiled code beside the modules, and the project is found in the current directory."""
    kept = {name: value for name, value in os.environ.items() if name not in COMPILES_ELSEWHERE}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": ".", "PYTHONSAFEPATH": "", "GIT_CONFIG_GLOBAL": os.devnull}


def _project_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    generated = ("data/metrics/report.json", "data/health.json", "data/history.csv", "dvc.lock")
    return [name for name in listed.stdout.splitlines() if not name.startswith(generated) and (ROOT / name).is_file()]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
