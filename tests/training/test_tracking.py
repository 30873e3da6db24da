"""An update's steps as curves, in trackers that work, that fail, and in none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accelerate import tracking
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

from pipeline.errors import BadInput
from pipeline.training.tracking import PACKAGES, open_tracker, tracker_name
from tests.stage_runs import ROOT

NAME = "tensorboard"
ROW = {"iteration": 3, "step": 12, "n_tokens": 640, "loss": -0.25, "kl": None}


class Recorder(GeneralTracker):  # type: ignore[misc]  # Accelerate has no types
    """Keeps what it is told in `calls`, a list of the class, and fails in the method named `failing`."""

    name = NAME
    requires_logging_directory = True
    tracker = None
    calls: list[Any]
    failing: str | None = None
    error: BaseException = ConnectionError("no route to host\nsee the manual")

    def __init__(self, run_name: str, logging_dir: Path) -> None:
        super().__init__()
        self.calls.append((run_name, logging_dir))

    def keep(self, method: str, call: Any) -> None:
        self.calls.append(call)
        if method == self.failing:
            raise self.error

    def start(self) -> None:
        self.keep("start", "start")

    def log(self, values: dict[str, float], step: int | None = None, **_: object) -> None:
        self.keep("log", (step, values))

    def finish(self) -> None:
        self.keep("finish", "finish")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    """The class that stands in for TensorBoard's."""
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, NAME, Recorder)
    monkeypatch.setattr(Recorder, "calls", [], raising=False)
    return Recorder


def test_a_step_is_its_numbers_at_its_place_in_the_run(recorder: type[Recorder], tmp_path: Path) -> None:
    with open_tracker(NAME, "demo", tmp_path) as log:
        log(ROW)
        log({**ROW, "step": 13, "kl": 0.5})
    values = {"update/iteration": 3, "update/n_tokens": 640, "update/loss": -0.25}
    assert recorder.calls == [
        ("demo", tmp_path),
        "start",
        (12, values),
        (13, {**values, "update/kl": 0.5}),
        "finish",
    ]
    assert (tmp_path / "demo").is_dir()


def test_an_update_that_fails_ends_its_curve_and_stays_a_failure(recorder: type[Recorder], tmp_path: Path) -> None:
    with pytest.raises(BadInput), open_tracker(NAME, "demo", tmp_path):
        raise BadInput("data/training_set.parquet", "the gradient is not finite", "Lower the learning rate")
    assert recorder.calls[-1] == "finish"


@pytest.mark.parametrize(
    ("failing", "expected"), [("start", ["start"]), ("log", ["start", 12]), ("finish", ["start", 12, 13, "finish"])]
)
def test_a_tracker_that_fails_says_so_once_and_is_off(
    failing: str,
    expected: list[Any],
    recorder: type[Recorder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(recorder, "failing", failing)
    with open_tracker(NAME, "demo", tmp_path) as log:
        log(ROW)
        log({**ROW, "step": 13})
    assert [call if isinstance(call, str) else call[0] for call in recorder.calls[1:]] == expected
    assert capsys.readouterr().err == "update: tensorboard is off: ConnectionError: no route to host\n"


def test_an_interrupt_is_no_failure_of_the_tracker(
    recorder: type[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "failing", "log")
    monkeypatch.setattr(recorder, "error", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), open_tracker(NAME, "demo", tmp_path) as log:
        log(ROW)


def test_only_the_main_process_draws(recorder: type[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate.PartialState.is_main_process", False)
    with open_tracker(NAME, "demo", tmp_path / "tracking") as log:
        log(ROW)
    assert recorder.calls == []
    assert not (tmp_path / "tracking").exists()


def test_without_a_tracker_nothing_is_imported_or_written(tmp_path: Path) -> None:
    lines = [
        "import sys",
        "from pathlib import Path",
        "from pipeline.training.tracking import open_tracker, tracker_name",
        f"with open_tracker(tracker_name({{}}), 'demo', Path({str(tmp_path)!r})) as log: log({ROW})",
        "print({'accelerate', 'torch', 'tensorboard', 'wandb', 'mlflow', 'dvclive'} & {*sys.modules})",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")
    assert list(tmp_path.iterdir()) == []


# The environment variable ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("environ", [{}, {"ROLLBOOK_TRACKER": ""}])
def test_no_tracker_is_the_default(environ: dict[str, str]) -> None:
    assert tracker_name(environ) is None


@pytest.mark.parametrize("name", [*PACKAGES])
def test_a_tracker_is_taken_where_it_is_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_available_trackers", [name])
    assert tracker_name({"ROLLBOOK_TRACKER": name}) == name
    assert name in LOGGER_TYPE_TO_CLASS


def test_a_tracker_that_is_not_installed_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_available_trackers", ["wandb"])
    expected = (
        r"^ROLLBOOK_TRACKER: mlflow is not installed\. "
        r"Run `python -m pip install --constraint constraints\.txt mlflow-skinny`, or unset it\.$"
    )
    with pytest.raises(BadInput, match=expected):
        tracker_name({"ROLLBOOK_TRACKER": "mlflow"})


def test_an_unknown_tracker_is_refused_with_the_known_ones() -> None:
    expected = r"^ROLLBOOK_TRACKER: there is no tracker 'tensorbord'\. .* dvclive, mlflow, tensorboard, wandb\.$"
    with pytest.raises(BadInput, match=expected):
        tracker_name({"ROLLBOOK_TRACKER": "tensorbord"})


# The libraries themselves, where they are installed -------------------------------------------------------------------


def draw_two_iterations(name: str, folder: Path) -> None:
    """Steps 0 and 1 in one iteration, 2 and 3 in the next, with the loss a quarter of the step."""
    for first in (0, 2):
        with open_tracker(name, "demo", folder) as log:
            for step in (first, first + 1):
                log({**ROW, "step": step, "loss": step / 4})


def test_iterations_continue_one_curve_in_tensorboard(tmp_path: Path) -> None:
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    draw_two_iterations("tensorboard", tmp_path)
    found = events.EventAccumulator(str(tmp_path / "demo")).Reload()
    assert found.Tags()["scalars"] == ["update/iteration", "update/n_tokens", "update/loss"]
    assert [(point.step, point.value) for point in found.Scalars("update/loss")] == [(n, n / 4) for n in range(4)]


def test_iterations_continue_one_curve_in_dvclive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dvclive", reason="dvclive is not installed")
    monkeypatch.chdir(tmp_path)
    draw_two_iterations("dvclive", tmp_path / "tracking")
    curve = (tmp_path / "tracking/demo/plots/metrics/update/loss.tsv").read_text(encoding="utf-8")
    assert curve.split() == ["step", "loss", "0", "0.0", "1", "0.25", "2", "0.5", "3", "0.75"]
    assert [path.name for path in tmp_path.iterdir()] == ["tracking"]  # no dvc.yaml


def test_iterations_continue_one_curve_in_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # so that what is set in its place is gone after the test
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    draw_two_iterations("mlflow", tmp_path / "tracking")
    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "update/loss")
    assert [(point.step, point.value) for point in history] == [(n, n / 4) for n in range(4)]
    assert [path.name for path in tmp_path.iterdir()] == ["tracking"]  # no database that Git would see


def test_wandb_gets_both_iterations_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    draw_two_iterations("wandb", tmp_path)
    assert len([*(tmp_path / "demo/wandb").glob("offline-run-*-demo/run-demo.wandb")]) == 2
