from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import BadInput
from pipeline.history_rows import read_history
from pipeline.params import Params, load_params
from stages.report import write_report
from stages.runner import Result
from tests.iteration_sample import no_group_kept, sample_frames, sample_metrics, write_iteration
from tests.stage_runs import PARAMS_FILE

ROOT = Path(__file__).parents[2]


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """The committed params; the current directory is an empty Git repository."""
    monkeypatch.chdir(tmp_path)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "someone")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "someone@example.org")
    git("init", "--quiet")
    return load_params(PARAMS_FILE)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def commit() -> str:
    git("add", "--all")
    git("commit", "--quiet", "--message", "an iteration")
    return git("rev-parse", "HEAD")


def headline(result: Result) -> dict[str, object]:
    return {name: result.metrics[name] for name in ("iteration", "pass_rate", "n_warnings")}


def test_first_iteration(params: Params) -> None:
    write_iteration(Path())
    result = write_report(params)
    assert result.line == "data/report.html, health ok"
    assert headline(result) == {"iteration": 0, "pass_rate": 0.3125, "n_warnings": 0}
    assert Path("data/report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(Path("data/health.json").read_text())["level"] == "ok"
    assert [row["pass_rate"] for row in read_history(Path("data/history.csv").read_text())] == [0.3125]


def test_history_goes_on_from_the_parent(params: Params) -> None:
    write_iteration(Path(), metrics=sample_metrics(score={"pass_rate": 0.75}))
    write_report(params)
    parent = commit()
    Path("data/history.csv").unlink()
    write_iteration(Path(), sample_frames(iteration=1), sample_metrics(evaluate={"before": None}))
    result = write_report(params.model_copy(update={"iteration": 1, "parent": parent}))
    # 1 - 0.3125 / 0.75 = 0.583: more than half of the pass rate is lost.
    assert result.line == "data/report.html, warns of pass_rate_held"
    assert headline(result) == {"iteration": 1, "pass_rate": 0.3125, "n_warnings": 1}
    rows = read_history(Path("data/history.csv").read_text())
    assert [(row["iteration"], row["pass_rate"]) for row in rows] == [(0, 0.75), (1, 0.3125)]
    assert [row["eval_pass_at_1_before"] for row in rows] == [0.171875, 0.234375]
    assert result.metrics["eval_pass_at_1_before"] == 0.234375
    assert "Curves over 2 iterations" in Path("data/report.html").read_text(encoding="utf-8")


def test_no_group_kept_and_no_evaluation(params: Params) -> None:
    frames = sample_frames(outcomes=["all_wrong"] * 3)
    frames["eval"] = frames["eval"].clear()
    off_schedule = {"is_scheduled": False, "before": None, "after": None}
    write_iteration(Path(), frames, sample_metrics(**no_group_kept(), evaluate=off_schedule))
    assert write_report(params).line == "data/report.html, warns of group_kept"


def test_a_parent_without_history_is_named_and_nothing_is_written(params: Params) -> None:
    write_iteration(Path())
    parent = commit()
    with pytest.raises(BadInput, match=f"data/history.csv in commit {parent}: that commit has no such file"):
        write_report(params.model_copy(update={"iteration": 1, "parent": parent}))
    assert not Path("data/report.html").exists()


def test_bad_input_leaves_the_older_report(params: Params) -> None:
    write_iteration(Path())
    Path("data/report.html").write_text("older")
    Path("data/groups.parquet").unlink()
    shutil.copy(PARAMS_FILE, "params.yaml")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['report'];"]
    command[2] += "import runpy; runpy.run_module('stages.report', run_name='__main__')"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("report: error: data/groups.parquet: there is no such file")
    assert Path("data/report.html").read_text() == "older"
    assert json.loads(Path(".rollbook/exit/report.json").read_text())["kind"] == "bad_input"
