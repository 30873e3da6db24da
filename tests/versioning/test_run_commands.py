"""The commands of `rollbook` for runs, as a person calls them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipeline.cli import app
from pipeline.comparison import _latest_numbers
from pipeline.history_rows import HistoryRow
from tests.versioning.project import Project, edit, run


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def demo(trained: tuple[Project, Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Project, Path]:
    """The project with a run of two iterations, made the current directory."""
    monkeypatch.chdir(trained[0].root)
    return trained


def rollbook(*arguments: str, code: int = 0) -> str:
    """What the command prints, spaces squeezed."""
    result: Result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return re.sub(r"[ ─━]+", " ", result.output)


def test_a_run_from_begin_to_end_by_hand(demo: tuple[Project, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    project, _ = demo
    said = rollbook("new-run", "low", "--set", "training.learning_rate=1e-5")
    assert "low: branch runs/low, worktree .rollbook/worktrees/low" in said
    worktree = project.repository.worktree("low")
    monkeypatch.chdir(worktree)
    project.repro(worktree)
    assert re.match(r"low/0000: commit [0-9a-f]{12}\n", rollbook("commit"))
    assert "low: params.yaml is at iteration 1" in rollbook("advance") == rollbook("advance")
    assert "rollbook: error: iteration low/0001: these stages are out of date: make" in rollbook("commit", code=1)


def test_runs_are_listed_with_their_latest_numbers(demo: tuple[Project, Path]) -> None:
    rollbook("new-run", "empty")
    listed = rollbook("runs")
    assert re.search(r"│ demo │ 2 │ 12\.5% │ – │ 0\.5 │ 0\.01 │ ok │ 0 │", listed), listed
    assert re.search(r"│ empty │ 0 │ – │ – │ – │ – │ – │ 0 │", listed), listed


def test_the_held_out_number_is_the_one_that_was_measured_last() -> None:
    rows: list[HistoryRow] = [
        {"pass_rate": 0.1, "eval_pass_at_1": 0.2},
        {"pass_rate": 0.3, "eval_pass_at_1": 0.4},
        {"pass_rate": 0.5, "eval_pass_at_1": None},
    ]
    assert _latest_numbers(rows) == {"pass_rate": 0.5, "eval_pass_at_1": 0.4}
    assert _latest_numbers(rows[2:]) == {"pass_rate": 0.5, "eval_pass_at_1": None}
    assert _latest_numbers([]) is None


def test_without_runs_it_says_how_to_begin(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    assert "No run yet. Begin one: rollbook new-run" in rollbook("runs")


def test_a_what_if_is_compared_with_what_it_left(demo: tuple[Project, Path]) -> None:
    project, _ = demo
    rollbook("new-run", "strict", "--from", "demo/0001")
    worktree = project.repository.worktree("strict")
    edit(worktree / "params.yaml", "weight: 1.0}", "weight: 0.5}")
    project.repro(worktree)
    run(worktree, "git", "commit", "-qam", "by hand")
    run(worktree, "git", "tag", "strict/0001")
    compared = rollbook("compare", "demo", "strict")
    assert "demo (demo/0001)" in compared
    assert "strict (strict/0001)" in compared
    assert re.search(r"│ pass_rate │ 0\.125 │ 0\.125 │", compared), compared
    assert re.search(r"│ score\.terms\.correct\.weight │ 1 │ 0\.5 │", compared), compared
    assert "iteration │ 1 │ 1" in compared  # as a number; where it stands is no param
    assert "parent" not in compared
    assert "No params differ." in rollbook("compare", "demo/0", "demo/1")


def test_an_iteration_is_laid_out(demo: tuple[Project, Path]) -> None:
    project, _ = demo
    assert "demo/0000: commit" in rollbook("checkout", "demo/0000")
    assert (project.root / "data/table.txt").read_text() == "0\nfirst"


def test_old_state_is_pruned_and_comes_back_from_the_remote(demo: tuple[Project, Path], tmp_path: Path) -> None:
    project, worktree = demo
    run(project.root, "dvc", "remote", "add", "--quiet", "--local", "--default", "store", str(tmp_path / "remote"))
    run(project.root, "git", "checkout", "--quiet", "demo/0000")
    run(project.root, "dvc", "checkout", "--quiet")
    run(project.root, "dvc", "push", "--quiet")
    run(project.root, "git", "checkout", "--quiet", "main")
    assert "1 trainer states would go" in rollbook("prune", "--keep-state", "1", "--dry-run")
    assert "demo/0000: trainer state" in rollbook("prune", "--keep-state", "1")
    assert "0 trainer states gone" in rollbook("prune", "--keep-state", "1")
    refused = rollbook("new-run", "again", "--from", "demo/0000", code=0)
    assert "again: branch runs/again" in refused  # its end is the begin of demo/0001, which stays
    assert "objects fetched" in rollbook("fetch", "demo/0")
    assert worktree.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("new-run", "Bad Name"), "a run's name is made of"),
        (("new-run", "x", "--set", "seed"), "setting 'seed': it is not key=value"),
        (("new-run", "x", "--set", "seed=-1"), "seed"),
        (("new-run", "x", "--from", "nowhere"), "nowhere: it is no run, iteration or commit; runs here: demo"),
        (("compare", "demo", "gone"), "gone: it is no run, iteration or commit"),
        (("checkout", "demo/7"), "run demo has no iteration 7"),
        (("fetch", "demo/x"), "no run or iterations of one"),
        (("prune", "gone"), "there is no branch runs/gone; runs here: demo"),
        (("commit",), "its branch is main, which is not a run's"),
        (("advance",), "its branch is main, which is not a run's"),
    ],
)
def test_a_mistake_is_one_line_and_code_1(demo: tuple[Project, Path], arguments: tuple[str, ...], said: str) -> None:
    output = rollbook(*arguments, code=1)
    assert said in output
    assert output.startswith("rollbook: error: ")
    assert len(output.splitlines()) == 1


def test_outside_a_repository_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "not a git repository" in rollbook("runs", code=1)
