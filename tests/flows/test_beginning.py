"""A run that has begun, and a command that asks for another one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pipeline.errors import BadInput
from pipeline.versioning.branching import new_run
from prefect_flows import beginning
from prefect_flows.beginning import Beginning, check_settings, prepare
from tests.flows.quick_project import QuickProject


@pytest.fixture
def inside(project: QuickProject, monkeypatch: pytest.MonkeyPatch) -> QuickProject:
    """`project`, as the current directory of one who can commit, and no flow."""
    monkeypatch.chdir(project.root)
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(beginning, "get_run_logger", lambda: logging.getLogger("said"))
    return project


def test_where_it_begins_can_be_said_again_but_not_changed(inside: QuickProject) -> None:
    inside.git("branch", "old")
    (inside.root / "note.txt").write_text("later", encoding="utf-8")
    inside.commit("a note")
    prepare(inside.repository, "placed", Beginning("old"))
    prepare(inside.repository, "placed", Beginning("old"))
    prepare(inside.repository, "placed", Beginning())
    later = inside.git("rev-parse", "main")
    with pytest.raises(BadInput, match=rf"--from main: the run placed has begun, and not from there \({later[:12]}\)"):
        prepare(inside.repository, "placed", Beginning("main"))
    with pytest.raises(BadInput, match="nowhere"):
        prepare(inside.repository, "placed", Beginning("nowhere"))


def test_it_begins_at_the_checkout_that_the_command_is_given_in(
    inside: QuickProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = tmp_path / "linked"
    inside.git("worktree", "add", "--quiet", "-b", "side", str(linked))
    (linked / "note.txt").write_text("of the side", encoding="utf-8")
    inside.run("git", "add", "note.txt", cwd=linked)
    inside.run("git", "commit", "--quiet", "--message", "aside", cwd=linked)
    monkeypatch.chdir(linked / "data")
    prepare(inside.repository, "beside", Beginning())
    assert inside.git("rev-parse", "runs/beside") == inside.git("rev-parse", "side")


def test_edits_elsewhere_are_not_taken_along_in_silence(inside: QuickProject, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "said")
    worktree = prepare(inside.repository, "own", Beginning())
    prepare(inside.repository, "own", Beginning(include_changes=True))
    assert caplog.messages == []
    edited = inside.root / "edited.py"
    edited.write_text("", encoding="utf-8")
    try:
        prepare(inside.repository, "own", Beginning(include_changes=True))
        said = f"own: goes on with what its worktree has, not with the edits in {inside.root}"
        assert caplog.messages == [said]
        (worktree / "edited.py").write_text("", encoding="utf-8")
        prepare(inside.repository, "own", Beginning(include_changes=True))  # there are edits that it takes along
        assert caplog.messages == [said]
    finally:
        edited.unlink()


def test_a_fresh_optimizer_is_for_a_run_that_begins(inside: QuickProject) -> None:
    (inside.begin("base") / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n", encoding="utf-8")
    inside.run("git", "add", "dvc.lock", cwd=inside.repository.worktree("base"))
    inside.run("git", "commit", "--quiet", "--message", "an iteration", cwd=inside.repository.worktree("base"))
    inside.git("tag", "base/0000", "runs/base")
    fresh = Beginning("base/0000", fresh_optimizer=True)
    worktree = prepare(inside.repository, "fresh", fresh)
    assert "fresh_optimizer: true" in (worktree / "params.yaml").read_text(encoding="utf-8")
    prepare(inside.repository, "fresh", fresh)
    with pytest.raises(BadInput, match="--fresh-optimizer: the run base has begun with the optimizer state"):
        prepare(inside.repository, "base", Beginning(fresh_optimizer=True))
    new_run(inside.repository, "of-fresh", "fresh")
    inside.git("tag", "fresh/0001", "runs/fresh")
    with pytest.raises(BadInput, match="the run of-fresh has begun with"):  # another run's beginning doesn't count
        prepare(inside.repository, "of-fresh", Beginning(fresh_optimizer=True))


def test_params_that_a_run_has_are_no_difference(inside: QuickProject) -> None:
    settings = {"evaluate.n_prompts": 128, "report.on_health.kl_bounded": "warn"}
    check_settings(inside.root / "params.yaml", settings)
    with pytest.raises(BadInput, match=r"evaluate\.n_prompts: the run has begun with another value than 65"):
        check_settings(inside.root / "params.yaml", {"evaluate.n_prompts": 65})


def test_params_that_can_t_be_read_are_named(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    with pytest.raises(BadInput, match=r"params\.yaml: there is no such file"):
        check_settings(file, {"seed": 1})
    file.write_bytes(b"seed: \xff")
    with pytest.raises(BadInput, match=r"params\.yaml: it is not UTF-8"):
        check_settings(file, {"seed": 1})
