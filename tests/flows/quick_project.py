"""A repository whose iteration takes seconds: three stages that write a made-up iteration, under real Git and DVC.

A stage does what was ordered with `order_trouble`: fail in a chosen way, once or always.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

from pipeline.versioning.branching import new_run
from pipeline.versioning.repository import Repository
from tests.stage_runs import ROOT, write_params
from tests.versioning.project import ENVIRONMENT, run

PIPELINE = """
stages:  # listed the wrong way round
  report:
    cmd: python step.py report
    params: [seed, iteration, parent, report]
    deps: [data/eval.parquet, data/rollouts.parquet]
    outs: [data/report.html, {data/history.csv: {cache: false}}, {data/health.json: {cache: false}}]
    metrics: [{data/metrics/report.json: {cache: false}}]
  evaluate:
    cmd: python step.py evaluate
    params: [seed, iteration, parent, evaluate]
    deps: [data/prompts.parquet]
    outs: [data/eval.parquet, data/metrics/evaluate.json]
  rollout:
    cmd: python step.py rollout
    params: [seed, iteration, parent, score]
    deps: [step.py]
    outs:
      - data/prompts.parquet
      - data/selection.parquet
      - data/rollouts.parquet
      - data/rewards.parquet
      - data/advantages.parquet
      - data/groups.parquet
      - data/train_steps.parquet
      - data/metrics/rollout.json
"""
STEP = """
import os, pathlib, signal, sys, time

from pipeline.errors import BadInput, TransientError
from pipeline.health import Finding, as_json
from pipeline.history_rows import append_history, history_row
from pipeline.table_io import write_json, write_table, write_text
from pipeline.tables import TABLES
from pipeline.versioning.git import file_at_commit
from stages.runner import Result, run_stage
from tests.iteration_sample import sample_metrics
from tests.sound_iteration import headline_of, sound_frames

DATA = pathlib.Path("data")
TABLES_OF_ROLLOUT = {"prompts", "selection", "rollouts", "rewards", "advantages", "groups", "train_steps"}
name = sys.argv.pop()


def work(params):
    frames = sound_frames(params)
    if make_trouble() == "unsound":
        frames["rewards"] = frames["rewards"].with_columns(reward=frames["rewards"]["reward"] + 1)
    if name != "report":
        tables = TABLES_OF_ROLLOUT if name == "rollout" else {"eval"}
        for table in sorted(tables):
            metadata = {"temperature": repr(params.sampling.temperature)} if table == "rollouts" else None
            write_table(frames[table], DATA / f"{table}.parquet", TABLES[table], metadata)
        return Result(f"iteration {params.iteration}, n_prompts {params.evaluate.n_prompts}", {})
    older = params.parent and file_at_commit(params.parent, DATA / "history.csv").decode()
    headline = headline_of(frames, params.iteration)
    score = {key: headline[key] for key in ("reward_mean", "pass_rate")}
    rollout = {"n_completions": headline["n_completions"]}
    row = history_row(params.iteration, sample_metrics(score=score, rollout=rollout))
    write_text(append_history(older, row), DATA / "history.csv")
    action = params.report.on_health.kl_bounded
    finding = Finding("kl_bounded", "warn", 1.0, 0.5, "KL is 1, above 0.5", "Be careful", action)
    write_json(as_json(params.iteration, [finding]), DATA / "health.json")
    write_text("<html>", DATA / "report.html")
    return Result("done", row)


def make_trouble():
    order = pathlib.Path(os.environ["TROUBLE"], name)
    kind, _, how_long = order.read_text().partition(" ") if order.exists() else ("", "", "")
    if how_long == "once":
        order.unlink()
    if kind == "transient":
        raise TransientError("registry", "it does not answer", "Try again")
    if kind == "bad_input":
        raise BadInput("params.yaml: score", "it is wrong", "Mend it")
    if kind == "bug":
        raise ZeroDivisionError("a number over nothing")
    if kind == "sleep":
        print(f"{name}: asleep", flush=True)
        time.sleep(60)
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return kind


run_stage(name, work)
"""


class QuickProject:
    """The repository in the folder `root`, on the branch `main`, with everything committed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trouble = root.with_name(f"{root.name}.trouble")
        self.trouble.mkdir(parents=True)
        (root / "data/metrics").mkdir(parents=True)
        write_params(root, {})
        (root / "step.py").write_text(STEP, encoding="utf-8")
        (root / "dvc.yaml").write_text(PIPELINE, encoding="utf-8")
        (root / ".gitignore").write_text(".rollbook/\n__pycache__/\n", encoding="utf-8")
        (root / ".dvcignore").write_text(".rollbook\n__pycache__\n", encoding="utf-8")
        large = ["*.parquet", "report.html", "metrics/rollout.json", "metrics/evaluate.json"]
        (root / "data/.gitignore").write_text("".join(f"/{name}\n" for name in large), encoding="utf-8")
        self.run("git", "init", "--quiet", "--initial-branch", "main")
        self.run(sys.executable, "-m", "dvc", "init", "--quiet")
        self.commit("the project")

    @property
    def environment(self) -> dict[str, str]:
        """What a person who works here has set, the identity for Git among it."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**ENVIRONMENT, "PATH": path, "PYTHONPATH": str(ROOT), "TROUBLE": str(self.trouble)}

    @property
    def repository(self) -> Repository:
        return Repository(self.root)

    def seed(self, run: str) -> dict[str, int]:
        """A setting of its own for `run`: with equal ones DVC would take its iterations from the cache."""
        return {"seed": zlib.crc32(run.encode())}

    def begin(self, run: str) -> Path:
        """A new run; its worktree."""
        return new_run(self.repository, run, settings=self.seed(run))

    def order_trouble(self, stage: str, what: str) -> None:
        """Have `stage` fail with `what`: transient, bad_input, bug, killed, sleep; followed by " once", one time.

        With `unsound`, `rollout` writes rewards that are not the sum of their terms.
        """
        (self.trouble / stage).write_text(what, encoding="utf-8")

    def clear_trouble(self) -> None:
        """Have every stage work."""
        for order in self.trouble.iterdir():
            order.unlink()

    def git(self, *arguments: str) -> str:
        return self.run("git", *arguments)

    def tags(self, run: str) -> list[str]:
        """The iterations of `run`."""
        return self.git("tag", "--list", f"{run}/*").split()

    def commit(self, message: str) -> None:
        """Commit everything in the main checkout."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """What `command` prints; an AssertionError with its output where it fails."""
        return run(cwd or self.root, *command, changes=self.environment)
