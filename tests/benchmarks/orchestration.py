"""What a training run adds to `dvc repro`: stages that only copy, so that nothing but orchestration takes time.

`python -m tests.benchmarks.orchestration` trains a tiny model for one iteration, then has each stage lay out what it
made there. Per iteration it compares plain `dvc repro` with training, and training after a history of ten iterations
with training after a thousand.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table
from ruamel.yaml import YAML

from pipeline.params_edit import edit_params
from tests.end_to_end.checkout import Checkout, make_model, person_environment

COPY = """
import csv, json, pathlib, re, shutil, sys
stage, kept = sys.argv[1], pathlib.Path(sys.argv[2])
iteration = int(re.search(r"^iteration: (\\d+)", pathlib.Path("params.yaml").read_text(), re.M)[1])
for output in sys.argv[3:]:
    source, target = kept / output, pathlib.Path(output)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
metrics = pathlib.Path(f"data/metrics/{stage}.json")
metrics.write_text(json.dumps({**json.loads(metrics.read_text()), "iteration": iteration}))
if stage == "report":
    history = pathlib.Path("data/history.csv")
    heading, row = history.read_text().splitlines()[:2]
    rows = [",".join([str(number), *row.split(",")[1:]]) for number in range(iteration + 1)]
    history.write_text("\\n".join([heading, *rows]) + "\\n")
"""
N_ITERATIONS = 4
HISTORIES = (10, 1_000)


def main(rounds: int = 3) -> None:
    """Print seconds per iteration, and their ratios."""
    with TemporaryDirectory() as folder:
        checkout = make_copying_checkout(Path(folder))
        for length in HISTORIES:
            make_history(checkout, f"long{length}", length)
        seconds: dict[str, list[float]] = {"plain `dvc repro`": []}
        seconds |= {f"training, {length} iterations before": [] for length in HISTORIES}
        for number in range(rounds):
            seconds["plain `dvc repro`"].append(plain_repro(checkout, number))
            for length in HISTORIES:
                before = length + number * N_ITERATIONS
                seconds[f"training, {length} iterations before"].append(training(checkout, f"long{length}", before))
        show(seconds)


def make_copying_checkout(folder: Path) -> Checkout:
    """A checkout with a finished iteration, committed as that of the run `first`, whose stages copy what it made."""
    checkout = Checkout(folder / "checkout", make_model(folder / "model"))
    for key, value in (("user.name", "bench"), ("user.email", "bench@example.org")):
        checkout.git("config", key, value)
    checkout.dvc("repro", "--quiet")
    kept = folder / "kept"
    shutil.copytree(checkout.folder / "data", kept / "data")
    (checkout.folder / "copy_outputs.py").write_text(COPY, encoding="utf-8")
    yaml = YAML()
    yaml.width = 4096
    pipeline = yaml.load((checkout.folder / "dvc.yaml").read_text(encoding="utf-8"))
    for name, stage in pipeline["stages"].items():
        outputs = [
            next(iter(item)) if isinstance(item, dict) else item for item in [*stage["outs"], *stage.get("metrics", [])]
        ]
        stage["cmd"] = f"python -S copy_outputs.py {name} {kept} {' '.join(outputs)}"
        stage["params"] = ["iteration", "parent"]  # so that all run in each iteration
        stage["deps"] = [path for path in stage["deps"] if path.startswith("data/")]
    with (checkout.folder / "dvc.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(pipeline, file)
    checkout.dvc("repro", "--quiet")
    checkout.git("switch", "--quiet", "--create", "runs/first")
    checkout.git("add", "--all")
    checkout.git("commit", "--quiet", "--message", "first/0000")
    checkout.git("tag", "first/0000")
    return checkout


def make_history(checkout: Checkout, run: str, length: int) -> None:
    """The run `run` with `length` iterations: that of `first`, then commits that differ in nothing but their number."""
    stream = []
    for number in range(1, length - 1):
        origin = f":{number - 1}" if number > 1 else "first/0000^0"
        stream.append(
            f"commit refs/heads/runs/{run}\nmark :{number}\ncommitter b <b@example.org> {10**9 + number} +0000\n"
        )
        stream.append(f"data 0\nfrom {origin}\n\nreset refs/tags/{run}/{number:04d}\nfrom :{number}\n\n")
    subprocess.run(["git", "fast-import", "--quiet"], cwd=checkout.folder, input="".join(stream), text=True, check=True)
    # The last one is at its own number, as a commit that training goes on from has to be.
    checkout.git("switch", "--quiet", f"runs/{run}")
    file = checkout.folder / "params.yaml"
    changes = {"iteration": length - 1, "parent": checkout.git("rev-parse", "HEAD").strip()}
    file.write_text(edit_params(file.read_text(encoding="utf-8"), changes), encoding="utf-8")
    checkout.dvc("repro", "--quiet")
    checkout.git("add", "--all")
    checkout.git("commit", "--quiet", "--message", "the last")
    checkout.git("tag", f"{run}/{length - 1:04d}")
    checkout.git("switch", "--quiet", "main")


def plain_repro(checkout: Checkout, number: int) -> float:
    """Seconds of `dvc repro` alone for an iteration that was never made, in a checkout of `first`."""
    checkout.git("switch", "--quiet", "--force", "runs/first")
    file = checkout.folder / "params.yaml"
    taken = []
    for step in range(N_ITERATIONS):
        iteration = 5_000 + number * N_ITERATIONS + step
        changes = {"iteration": iteration, "parent": f"{iteration:040x}"}
        file.write_text(edit_params(file.read_text(encoding="utf-8"), changes), encoding="utf-8")
        started = time.perf_counter()
        checkout.dvc("repro")
        taken.append(time.perf_counter() - started)
    checkout.git("switch", "--quiet", "--force", "main")
    return median(taken)


def training(checkout: Checkout, run: str, n_before: int) -> float:
    """Seconds per iteration that training takes after `n_before` of them, without what it takes to start and end."""
    idle = _train(checkout, run, n_before)
    return (_train(checkout, run, n_before + N_ITERATIONS) - idle) / N_ITERATIONS


def _train(checkout: Checkout, run: str, n_iterations: int) -> float:
    command = [sys.executable, "-m", "prefect_flows.train", run, "--iterations", str(n_iterations)]
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=checkout.folder, env=person_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return time.perf_counter() - started


def show(seconds: dict[str, list[float]]) -> None:
    """Print medians, and each one's ratio to the one before it, round by round."""
    table = Table("what", "seconds per iteration, median", "ratio to the line above", title="orchestration")
    above: list[float] | None = None
    for name, values in seconds.items():
        ratio = "" if above is None else f"{median(a / b for a, b in zip(values, above, strict=True)):.2f}"
        table.add_row(name, f"{median(values):.2f}", ratio)
        above = values
    Console().print(table)


if __name__ == "__main__":
    main()
