"""Kill training at random moments until it is done, and compare with training that was left alone.

`python -m tests.end_to_end.kill_runs --kills 100` trains a tiny model in a repository of its own, kills it again and
again, each time in another way and at another moment, starts the same command anew, and in the end compares every
artifact, tag, parameter and metric with a run of the same command that nobody killed.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from ruamel.yaml import YAML

from tests.end_to_end.checkout import Checkout, make_model, person_environment

RUN = "tiny"
TIMINGS = (
    "seconds",
    "peak_memory_mb",
    "tokens_per_second",
    "flops_per_second",
    "matmul_peak",
    "peak_fraction",
    "n_tokens_run",  # of the steps that were not taken from a checkpoint, as is the next
    "padding_fraction",
    "n_steps_resumed",
)
NOT_COMPARED = ("data/report.html",)
"""It shows timings."""


class Trained:
    """A checkout in which `train` can be started, stopped, and looked at."""

    def __init__(self, folder: Path, model: Path, n_iterations: int) -> None:
        self.checkout = Checkout(folder, model)
        self.folder = folder
        self.n_iterations = n_iterations
        for key, value in (("user.name", "test"), ("user.email", "test@example.org")):
            self.checkout.git("config", key, value)

    def start(self) -> subprocess.Popen[bytes]:
        """Start training in a process group of its own; what it prints goes to `train.log` beside the checkout."""
        command = [sys.executable, "-m", "prefect_flows.train", RUN, "--iterations", str(self.n_iterations)]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=person_environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def outcome(self) -> dict[str, Any]:
        """Everything about the run that has to be the same, however often it was killed."""
        tags = self.checkout.git("tag", "--list", f"{RUN}/*").split()
        branch = self.checkout.git("log", "--format=%D", "--decorate=full", f"main..runs/{RUN}").split("\n")
        names = [re.sub(r"HEAD -> |refs/heads/\S+?(, |$)", "", line) for line in branch]
        found: dict[str, Any] = {"tags": tags, "branch": names}
        for tag in tags:
            lock = YAML(typ="safe", pure=True).load(self.checkout.git("show", f"{tag}:dvc.lock"))
            outputs = {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage.get("outs", [])}
            for path, md5 in outputs.items():
                if path in NOT_COMPARED:
                    continue
                is_metrics = path.startswith("data/metrics/")
                found[f"{tag}:{path}"] = self._metrics(tag, path, md5) if is_metrics else md5
            params = YAML(typ="safe", pure=True).load(self.checkout.git("show", f"{tag}:params.yaml"))
            found[f"{tag}:params"] = {key: value for key, value in params.items() if key != "parent"}
        return found

    def _metrics(self, tag: str, path: str, md5: str) -> dict[str, Any]:
        cached = self.folder / ".dvc/cache/files/md5" / md5[:2] / md5[2:]
        text = cached.read_text() if cached.is_file() else self.checkout.git("show", f"{tag}:{path}")
        return {key: value for key, value in json.loads(text).items() if key not in (*TIMINGS, "parent")}


# Ways to die ----------------------------------------------------------------------------------------------------------


def kill_everything(trainer: psutil.Process) -> None:
    """As a power loss does, or a container that is stopped."""
    for process in [trainer, *trainer.children(recursive=True)]:
        _send(process, signal.SIGKILL)


def kill_trainer(trainer: psutil.Process) -> None:
    """The trainer alone: what it started lives on, and may still be at work when training starts again."""
    _send(trainer, signal.SIGKILL)


def terminate_trainer(trainer: psutil.Process) -> None:
    """As a scheduler does before it kills."""
    _send(trainer, signal.SIGTERM)


def interrupt(trainer: psutil.Process) -> None:
    """Ctrl-C, which a terminal sends to all in the foreground."""
    _send(trainer, signal.SIGINT)


def kill_dvc(trainer: psutil.Process) -> None:
    """DVC alone: its stage lives on, and the trainer goes on too."""
    _kill_one(trainer, lambda words: "prefect_flows.dvc_host" in words)


def kill_stage(trainer: psutil.Process) -> None:
    """The stage alone, as the kernel does when memory runs out."""
    _kill_one(trainer, lambda words: any(word.startswith("stages.") for word in words))


WAYS = [kill_everything, kill_trainer, terminate_trainer, interrupt, kill_dvc, kill_stage]


def _kill_one(trainer: psutil.Process, is_wanted: Callable[[list[str]], bool]) -> None:
    for process in reversed(trainer.children(recursive=True)):  # the one that was started last
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if is_wanted(words):
            _send(process, signal.SIGKILL)
            return
    kill_everything(trainer)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


# The trial ------------------------------------------------------------------------------------------------------------


def train_undisturbed(trained: Trained) -> float:
    """Train to the end; return the seconds it took."""
    started = time.monotonic()
    assert trained.start().wait(timeout=1800) == 0, trained.log.read_text()[-5000:]
    return time.monotonic() - started


def train_with_kills(trained: Trained, seconds: float, n_kills: int, chance: random.Random) -> Iterator[str]:
    """Train to the end through up to `n_kills` kills, each within `seconds` of a start; yield what was killed, and how.

    Half of the kills come some moments after a line that the training printed, so that the short steps between the
    stages are met as often as the long stages.
    """
    n_killed = 0
    while True:
        n_before = trained.log.stat().st_size if trained.log.exists() else 0
        process = trained.start()
        was_killed = False
        if n_killed < n_kills:
            moment = chance.uniform(0.5, seconds) if chance.random() < 0.5 else None
            n_lines = None if moment else chance.randrange(1, 20)
            reached = _wait_for_moment(process, trained.log, n_before, moment, n_lines, chance)
            was_killed = bool(reached) and process.poll() is None
            if was_killed:
                way = chance.choice(WAYS)
                way(psutil.Process(process.pid))
                n_killed += 1
                yield f"{way.__name__} after {reached}"
        code = process.wait(timeout=900)
        if code == 0:
            return
        said = trained.log.read_bytes()[n_before:].decode(errors="replace")
        assert was_killed, f"training ended by itself with {code}:\n{said[-5000:]}"


def _wait_for_moment(
    process: subprocess.Popen[bytes],
    log: Path,
    n_before: int,
    moment: float | None,
    n_lines: int | None,
    chance: random.Random,
) -> str:
    """Wait for `moment` seconds, or for the `n_lines`-th line and a bit; the last line then, "" if it ended before."""
    deadline = time.monotonic() + (moment or 300)
    while process.poll() is None and time.monotonic() < deadline:
        lines = log.read_bytes()[n_before:].decode(errors="replace").splitlines()
        if n_lines is not None and len(lines) >= n_lines:
            time.sleep(chance.choice([0.0, 0.05, 0.2, 0.5, 1.0, 1.5]))
            return lines[-1]
        time.sleep(0.02)
    if process.poll() is not None:
        return ""
    return (log.read_bytes()[n_before:].decode(errors="replace").splitlines() or ["the start"])[-1]


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What differs between two outcomes."""
    return [
        f"{key}: {one.get(key)} and {other.get(key)}"
        for key in sorted(one.keys() | other.keys())
        if one.get(key) != other.get(key)
    ]


def compare_killed_runs(folder: Path, n_kills: int, n_iterations: int, seed: int, say: Callable[[str], None]) -> int:
    """Kill training `n_kills` times in as many runs as that takes; return how many runs. Raises where one differs."""
    chance = random.Random(seed)
    model = make_model(folder / "model")
    reference = Trained(folder / "reference", model, n_iterations)
    seconds = train_undisturbed(reference)
    expected = reference.outcome()
    assert len(expected["tags"]) == n_iterations
    say(f"undisturbed: {n_iterations} iterations in {seconds:.0f} s, {len(expected)} facts to compare")
    met: Counter[str] = Counter()
    n_runs = 0
    while met.total() < n_kills:
        n_runs += 1
        killed = Trained(folder / f"killed-{n_runs}", model, n_iterations)
        for what in train_with_kills(killed, seconds / 2, n_kills - met.total(), chance):
            met[what.split(" after ")[0]] += 1
            say(f"{met.total()}: {what[:140]}")
        found = differences(expected, killed.outcome())
        assert not found, f"run {n_runs} differs:\n" + "\n".join(found)
        say(f"run {n_runs}: {len(expected)} facts, no difference")
        shutil.rmtree(killed.folder)
    say(f"{met.total()} kills in {n_runs} runs, no difference: {dict(met)}")
    return n_runs


def main(
    kills: Annotated[int, typer.Option(help="How many times to kill.")] = 100,
    iterations: Annotated[int, typer.Option(help="How long each run is.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the moments and ways.")] = 0,
) -> None:
    """Kill training at random moments and compare with training that was left alone."""
    with tempfile.TemporaryDirectory() as folder:
        compare_killed_runs(Path(folder), kills, iterations, seed, lambda line: print(line, flush=True))


if __name__ == "__main__":
    typer.run(main)
