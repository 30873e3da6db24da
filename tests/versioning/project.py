"""A repository whose iteration takes a moment: the project's params.yaml, and one stage under real Git and DVC."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.versioning.iterations import advance, commit_iteration
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import Iteration
from tests.stage_runs import PARAMS_FILE

STAGE = """
import json, pathlib, re
text = pathlib.Path("params.yaml").read_text()
iteration = int(re.search(r"^iteration: (\\d+)", text, re.M)[1])
data = pathlib.Path("data")
for folder in ("metrics", "next_trainer_state", "trainer_state"):
    (data / folder).mkdir(parents=True, exist_ok=True)
(data / "table.txt").write_text(f"{iteration}\\n" + CONTENT)
(data / "trainer_state/state").write_text(f"state before {iteration}")
(data / "next_trainer_state/state").write_text(f"state before {iteration + 1}")
row = {"iteration": iteration, "pass_rate": iteration / 8, "eval_pass_at_1": None, "reward_mean": 0.5, "kl": 0.01}
(data / "metrics/report.json").write_text(json.dumps(row))
(data / "history.csv").write_text("iteration,n_steps,pass_rate,reward_mean,kl\\n" + "".join(
    f"{number},2,{number / 8},0.5,0.01\\n" for number in range(iteration + 1)))
(data / "health.json").write_text(json.dumps({"iteration": iteration, "level": "ok", "n_warnings": 0, "findings": []}))
"""
PIPELINE = """
stages:
  make:
    cmd: python make.py
    params: [iteration, parent, score]
    deps: [make.py]
    outs:
      - data/table.txt
      - data/trainer_state
      - data/next_trainer_state
      - data/health.json: {cache: false}
      - data/history.csv: {cache: false}
    metrics: [{data/metrics/report.json: {cache: false}}]
"""
ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "someone",
    "GIT_AUTHOR_EMAIL": "someone@example.org",
    "GIT_COMMITTER_NAME": "someone",
    "GIT_COMMITTER_EMAIL": "someone@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


class Project:
    """The repository in the folder `root`, on the branch `main`, with everything committed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PARAMS_FILE, root / "params.yaml")
        (root / "make.py").write_text(STAGE.replace("CONTENT", "'first'"), encoding="utf-8")
        (root / "dvc.yaml").write_text(PIPELINE, encoding="utf-8")
        (root / ".gitignore").write_text(".rollbook/\n.*.tmp\n", encoding="utf-8")
        (root / ".dvcignore").write_text(".rollbook\n", encoding="utf-8")
        (root / "data").mkdir()
        (root / "data/.gitignore").write_text("/table.txt\n/trainer_state\n/next_trainer_state\n", encoding="utf-8")
        self.git("init", "--quiet", "--initial-branch", "main")
        run(root, sys.executable, "-m", "dvc", "init", "--quiet")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "the project")

    def copy(self, root: Path) -> Project:
        """A copy in the folder `root`, whose worktrees are its own."""
        shutil.copytree(self.root, root, symlinks=True)
        for link in (root / ".git/worktrees").glob("*/gitdir"):
            worktree = root / Path(link.read_text().strip()).relative_to(self.root)
            link.write_text(f"{worktree}\n")
            worktree.write_text(f"gitdir: {link.parent}\n")
        return Project.at(root)

    @classmethod
    def at(cls, root: Path) -> Project:
        """The one that is in `root` already."""
        project = object.__new__(cls)
        project.root = root
        return project

    @property
    def repository(self) -> Repository:
        return Repository(self.root)

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        return run(cwd or self.root, "git", *arguments)

    def repro(self, worktree: Path) -> str:
        """`dvc repro` in `worktree`."""
        return run(worktree, sys.executable, "-m", "dvc", "repro")


def run(folder: Path, *command: str, changes: Mapping[str, str] | None = None) -> str:
    """What `command` prints in `folder`; an AssertionError with its output where it fails.

    `changes` are to the environment.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **ENVIRONMENT, "PATH": path, **(changes or {})}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def make_iterations(project: Project, worktree: Path, n_iterations: int) -> list[Iteration]:
    """Reproduce and commit `n_iterations`, advancing between them."""
    made = []
    for number in range(n_iterations):
        if number:
            advance(worktree)
        project.repro(worktree)
        made.append(commit_iteration(worktree))
    return made


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
