"""The steps of an update as curves in TensorBoard, Weights & Biases, MLflow or DVCLive, by Accelerate's trackers.

The environment chooses, not params.yaml: whether somebody watches an iteration must not make DVC run it again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import BadInput, first_line

VARIABLE = "ROLLBOOK_TRACKER"
PROJECT = "rollbook"
PACKAGES = {"dvclive": "dvclive", "mlflow": "mlflow-skinny", "tensorboard": "tensorboard", "wandb": "wandb"}

Log = Callable[[Mapping[str, object]], None]


def tracker_name(environ: Mapping[str, str]) -> str | None:
    """The tracker that ROLLBOOK_TRACKER names, None where it is unset or empty.

    Raises:
        BadInput: there is no such tracker, or its library is not installed.
    """
    name = environ.get(VARIABLE)
    if not name:
        return None
    if name not in PACKAGES:
        raise BadInput(VARIABLE, f"there is no tracker {name!r}", f"Unset it, or set it to {', '.join(PACKAGES)}")
    from accelerate.tracking import get_available_trackers

    if name not in map(str, get_available_trackers()):
        remedy = f"Run `python -m pip install --constraint constraints.txt {PACKAGES[name]}`, or unset it"
        raise BadInput(VARIABLE, f"{name} is not installed", remedy)
    return name


@contextmanager
def open_tracker(name: str | None, run: str, folder: Path) -> Iterator[Log]:
    """The block gets `log(row)`, which draws each number of a row of `train_steps` as `update/<column>` at its step.

    `name` is what `tracker_name` gave; with None, and in every process but the main one, `log` does nothing. Files
    go to `folder / run`. The first error of the tracker is printed as a line, and nothing is drawn from then on.
    """
    attempt = _Attempt(name)
    if name is None or (tracker := attempt(_start, name, run, folder)) is None:
        yield lambda row: None
        return
    try:
        yield lambda row: attempt(tracker.log, _values(row), step=row["step"])
    finally:
        attempt(tracker.finish)


class _Attempt:
    """Calls what it is given until a call fails: then says so, and calls nothing more."""

    def __init__(self, name: str | None) -> None:
        self.name, self.has_failed = name, False

    def __call__(self, action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return None if self.has_failed else action(*arguments, **options)
        except Exception as error:  # libraries and their servers raise anything, and no curve is worth an update
            self.has_failed = True
            print(f"update: {self.name} is off: {type(error).__name__}: {first_line(error)}", file=sys.stderr)


def _start(name: str, run: str, folder: Path) -> Any:
    """The tracker, at work; None in a process that isn't the main one."""
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    if not PartialState().is_main_process:
        return None
    (folder / run).mkdir(parents=True, exist_ok=True)
    tracker = LOGGER_TYPE_TO_CLASS[name](**_arguments(name, run, folder))
    tracker.start()
    return tracker


def _arguments(name: str, run: str, folder: Path) -> dict[str, Any]:
    """Those of Accelerate's class with which all iterations of `run` continue one curve."""
    if name == "mlflow":
        return {"experiment_name": PROJECT, "run_name": run, "run_id": _find_mlflow_run(run, folder / run)}
    return {
        "dvclive": {"dir": str(folder / run), "resume": True, "save_dvc_exp": False, "dvcyaml": False},
        "tensorboard": {"run_name": run, "logging_dir": folder},
        "wandb": {"run_name": PROJECT, "id": run, "name": run, "resume": "allow", "dir": folder / run},
    }[name]


def _find_mlflow_run(run: str, folder: Path) -> str | None:
    import mlflow

    # Its own default is a database in the current directory, where Git would see it.
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{folder.resolve() / 'mlflow.db'}")
    query = f"attributes.run_name = '{run}'"
    found = mlflow.search_runs(search_all_experiments=True, filter_string=query, max_results=1, output_format="list")
    return found[0].info.run_id if found else None


def _values(row: Mapping[str, object]) -> dict[str, object]:
    return {f"update/{name}": value for name, value in row.items() if name != "step" and isinstance(value, int | float)}
