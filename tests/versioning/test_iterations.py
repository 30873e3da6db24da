"""Runs from their branch to the commit of an iteration, under real Git and DVC."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.errors import BadInput
from pipeline.params import load_params
from pipeline.versioning.branching import check_out_iteration, new_run, open_worktree
from pipeline.versioning.git import commit_of
from pipeline.versioning.iterations import (
    Position,
    advance,
    commit_iteration,
    position,
    push_artifacts,
    stale_stages,
    unrecorded_edits,
)
from pipeline.versioning.runs import Iteration, lineage
from tests.versioning.project import Project, edit, run

PARAMS = "params.yaml"


# A run begins ---------------------------------------------------------------------------------------------------------


def test_a_new_run_has_a_branch_and_a_worktree_with_the_shared_cache(project: Project) -> None:
    worktree = new_run(project.repository, "demo")
    assert worktree == project.root / ".rollbook/worktrees/demo"
    assert project.git("rev-parse", "runs/demo") == project.git("rev-parse", "main")
    assert run(worktree, "dvc", "cache", "dir") == str(project.root / ".dvc/cache")
    assert position(worktree) == Position("demo", None, 0)
    assert project.git("status", "--porcelain") == ""


def test_settings_become_the_first_commit_of_the_branch(project: Project) -> None:
    worktree = new_run(project.repository, "demo", settings={"seed": 7, "training.learning_rate": 0.5})
    assert load_params(worktree / PARAMS).seed == 7
    assert "# one more with each commit" in (worktree / PARAMS).read_text()
    assert (
        project.git("log", "-1", "--format=%s", "runs/demo") == "demo: begins with seed: 7, training.learning_rate: 0.5"
    )
    assert project.git("diff", "--stat", "main", "runs/demo").splitlines()[0].split()[0] == PARAMS
    assert load_params(project.root / PARAMS).seed == 0


def test_a_wrong_setting_leaves_nothing_behind(project: Project) -> None:
    with pytest.raises(BadInput, match=r"sead: unknown key.*'seed'"):
        new_run(project.repository, "demo", settings={"sead": 7})
    assert project.git("branch", "--list", "runs/*") == ""


def test_uncommitted_edits_are_refused_by_name_or_recorded(project: Project) -> None:
    edit(project.root / "make.py", "first", "second")
    edit(project.root / PARAMS, "seed: 0", "seed: 3")
    (project.root / "new file.py").write_text("1")
    with pytest.raises(BadInput, match=r"make\.py, new file\.py, params\.yaml"):
        new_run(project.repository, "demo")
    worktree = new_run(project.repository, "demo", include_changes=True, settings={"seed": 4})
    assert "second" in (worktree / "make.py").read_text()
    assert (worktree / "new file.py").read_text() == "1"
    assert load_params(worktree / PARAMS).seed == 4
    # The person's own checkout is as it was, index included.
    assert project.git("status", "--porcelain").splitlines() == ["M make.py", " M params.yaml", '?? "new file.py"']


def test_a_deleted_file_is_recorded_as_deleted(project: Project) -> None:
    (project.root / ".dvcignore").unlink()
    worktree = new_run(project.repository, "demo", include_changes=True)
    assert not (worktree / ".dvcignore").exists()


def test_what_an_iteration_generates_is_no_edit(project: Project) -> None:
    project.repro(project.root)
    assert position(new_run(project.repository, "demo")).number == 0


def test_a_name_in_use_is_refused(project: Project) -> None:
    new_run(project.repository, "demo")
    with pytest.raises(BadInput, match="the branch runs/demo exists"):
        new_run(project.repository, "demo")
    project.git("tag", "gone/0003")
    project.git("tag", "gone/10000")
    with pytest.raises(BadInput, match=r"`git branch runs/gone gone/10000` brings it back"):
        new_run(project.repository, "gone")


def test_without_an_identity_nothing_begins(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.delenv(f"GIT_{name}_NAME")
        monkeypatch.delenv(f"GIT_{name}_EMAIL")
    monkeypatch.setenv("EMAIL", "")
    project.git("config", "user.useConfigOnly", "true")
    with pytest.raises(BadInput, match=r"git config --global user\.name"):
        new_run(project.repository, "demo")


def test_a_worktree_that_git_was_killed_while_making_is_made_anew(project: Project) -> None:
    worktree = new_run(project.repository, "demo")
    Path(project.git("rev-parse", "--path-format=absolute", "--git-dir", cwd=worktree), "index").unlink()
    (worktree / "make.py").unlink()
    assert open_worktree(project.repository, "demo") == worktree
    assert (worktree / "make.py").is_file()
    assert position(worktree).number == 0


def test_a_repository_that_was_moved_keeps_its_worktrees(trained: tuple[Project, Path], tmp_path: Path) -> None:
    project, worktree = trained
    (worktree / "notes").write_text("not committed")
    project.root.rename(tmp_path / "moved")
    moved = open_worktree(Project.at(tmp_path / "moved").repository, "demo")
    assert (moved / "notes").is_file()
    assert position(moved).number == 1
    assert run(moved, "dvc", "cache", "dir") == str(tmp_path / "moved/.dvc/cache")


def test_a_folder_in_the_way_is_kept(project: Project) -> None:
    new_run(project.repository, "demo")
    project.git("worktree", "remove", "--force", str(project.repository.worktree("demo")))
    project.repository.worktree("demo").mkdir()
    (project.repository.worktree("demo") / "thesis.tex").write_text("x")
    with pytest.raises(BadInput, match="in the way, and no worktree"):
        open_worktree(project.repository, "demo")


def test_a_worktree_that_git_was_killed_while_making_is_forgotten(project: Project) -> None:
    worktree = new_run(project.repository, "demo")
    own = Path(project.git("rev-parse", "--path-format=absolute", "--git-dir", cwd=worktree))
    (own / "locked").write_text("initializing")
    (own / "index").unlink()
    assert position(open_worktree(project.repository, "demo")).number == 0
    shutil.rmtree(worktree)
    own = next((project.root / ".git/worktrees").iterdir())
    (own / "locked").write_text("initializing")
    assert position(open_worktree(project.repository, "demo")).number == 0


def test_a_lock_that_a_killed_git_left_on_the_branch_is_removed(project: Project) -> None:
    lock = project.root / ".git/refs/heads/runs/demo.lock"
    lock.parent.mkdir()
    lock.write_text("")
    assert position(new_run(project.repository, "demo")).number == 0


def test_a_worktree_with_another_branch_is_refused(project: Project) -> None:
    worktree = new_run(project.repository, "demo")
    project.git("switch", "--quiet", "--create", "runs/other", cwd=worktree)
    with pytest.raises(BadInput, match=r"worktree of demo, and has runs/other checked out.*git switch runs/demo"):
        open_worktree(project.repository, "demo")


def test_a_file_that_was_staged_and_deleted_is_no_edit_to_record(project: Project) -> None:
    (project.root / "brief.txt").write_text("x")
    project.git("add", "brief.txt")
    (project.root / "brief.txt").unlink()
    worktree = new_run(project.repository, "demo", include_changes=True)
    assert not (worktree / "brief.txt").exists()


def test_a_branch_that_is_checked_out_elsewhere_is_refused(project: Project) -> None:
    project.git("switch", "--quiet", "--create", "runs/demo")
    with pytest.raises(BadInput, match=r"it has runs/demo checked out"):
        open_worktree(project.repository, "demo")


# An iteration ends, the next begins -----------------------------------------------------------------------------------


def test_iterations_are_tagged_commits_whose_parent_is_the_one_before(trained: tuple[Project, Path]) -> None:
    project, worktree = trained
    first, second = lineage(project.repository, "demo")
    assert (first.name, second.name) == ("demo/0000", "demo/0001")
    assert load_params(worktree / PARAMS).parent == first.commit
    assert position(worktree) == Position("demo", second, 1)
    committed = project.git("show", "--name-only", "--format=%s", second.commit).splitlines()
    assert committed[0] == "demo/0001: pass rate 0.125, reward 0.500"
    assert set(committed[1:]) - {""} == {
        "data/health.json",
        "data/history.csv",
        "data/metrics/report.json",
        "dvc.lock",
        "params.yaml",
    }


def test_commit_and_advance_are_idempotent(trained: tuple[Project, Path]) -> None:
    project, worktree = trained
    tip = project.git("rev-parse", "runs/demo")
    assert commit_iteration(worktree).commit == tip
    assert (advance(worktree), advance(worktree)) == (2, 2)
    assert position(worktree) == Position("demo", None, 2)
    assert load_params(worktree / PARAMS).parent == project.git("rev-parse", "runs/demo") == tip


def test_a_commit_that_was_killed_before_its_tag_gets_it(trained: tuple[Project, Path]) -> None:
    project, worktree = trained
    tip = project.git("rev-parse", "runs/demo")
    project.git("tag", "--delete", "demo/0001")
    assert position(worktree).committed == Iteration("demo", 1, tip)
    assert commit_of("demo/0001", project.root) == tip


def test_an_unfinished_iteration_is_not_committed(trained: tuple[Project, Path]) -> None:
    _, worktree = trained
    advance(worktree)
    with pytest.raises(BadInput, match="out of date: make"):
        commit_iteration(worktree)
    edit(worktree / PARAMS, "iteration: 2", "iteration: 3")
    with pytest.raises(BadInput, match="iteration 3 is not committed yet"):
        advance(worktree)


def test_edited_code_is_refused_or_recorded_with_the_iteration(trained: tuple[Project, Path]) -> None:
    project, worktree = trained
    advance(worktree)
    edit(worktree / "make.py", "'first'", "'second'")
    (worktree / "notes.md").write_text("x")
    project.repro(worktree)
    with pytest.raises(BadInput, match=r"make\.py, notes\.md"):
        commit_iteration(worktree)
    iteration = commit_iteration(worktree, include_changes=True)
    assert "notes.md" in project.git("show", "--name-only", "--format=", iteration.commit)


def test_edits_are_told_from_what_an_iteration_does(trained: tuple[Project, Path]) -> None:
    project, worktree = trained
    advance(worktree)
    project.repro(worktree)
    (worktree / "data/.gitignore").write_text("")  # as where DVC was killed before it wrote it
    assert unrecorded_edits(worktree) == []
    edit(worktree / PARAMS, "learning_rate: 1.0e-4", "learning_rate: 1.0e-3")
    (worktree / "notes.md").write_text("x")
    assert unrecorded_edits(worktree) == ["notes.md", "params.yaml: training.learning_rate"]


def test_edits_on_top_of_an_iteration_are_for_the_next(trained: tuple[Project, Path]) -> None:
    project, worktree = trained
    tip = project.git("rev-parse", "runs/demo")
    edit(worktree / "make.py", "'first'", "'second'")
    with pytest.raises(BadInput, match=r"make\.py"):
        advance(worktree)
    project.git("commit", "--quiet", "--all", "--message", "a better stage", cwd=worktree)
    assert position(worktree) == Position("demo", Iteration("demo", 1, tip), 1)
    assert advance(worktree) == 2
    assert load_params(worktree / PARAMS).parent == tip


def test_a_branch_that_was_moved_is_noticed(trained: tuple[Project, Path]) -> None:
    project, worktree = trained
    advance(worktree)
    project.git("update-ref", "refs/heads/runs/demo", "demo/0000")
    with pytest.raises(BadInput, match=r"the branch runs/demo has demo/0000.*before iteration 2.*git reflog"):
        position(worktree)


def test_a_branch_that_was_moved_back_is_noticed_before_a_stage_runs(trained: tuple[Project, Path]) -> None:
    project, worktree = trained
    project.git("reset", "--quiet", "--hard", "demo/0000", cwd=worktree)
    advance(worktree)
    with pytest.raises(BadInput, match=r"demo/0001: it is committed already.*`git reset --hard demo/0001`"):
        position(worktree)


def test_a_temporary_file_of_dvc_is_not_committed(trained: tuple[Project, Path]) -> None:
    project, worktree = trained
    advance(worktree)
    project.repro(worktree)
    (worktree / "data/metrics/.gEORiZXqVS0MyKuX5AsXeg.tmp").write_text("")
    (worktree / "data/metrics/other.txt").write_text("")
    with pytest.raises(BadInput, match=r"these files differ from what is committed: data/metrics/other\.txt\."):
        commit_iteration(worktree)
    (worktree / "data/metrics/other.txt").unlink()
    commit = commit_iteration(worktree).commit
    assert "tmp" not in project.git("ls-tree", "-r", "--name-only", commit)


def test_a_detached_head_and_another_branch_are_refused(trained: tuple[Project, Path]) -> None:
    project, worktree = trained
    project.git("checkout", "--quiet", "--detach", cwd=worktree)
    with pytest.raises(BadInput, match=r"HEAD is detached.*git switch"):
        position(worktree)
    with pytest.raises(BadInput, match=r"its branch is main, which is not a run's"):
        position(project.root)


def test_the_lockfile_says_which_stage_is_stale(trained: tuple[Project, Path]) -> None:
    _, worktree = trained
    assert stale_stages(worktree) == []
    edit(worktree / "make.py", "'first'", "'second'")
    assert stale_stages(worktree) == ["make"]


# What-ifs -------------------------------------------------------------------------------------------------------------


def test_a_what_if_makes_the_iteration_anew_under_its_own_name(trained: tuple[Project, Path]) -> None:
    project, _ = trained
    worktree = new_run(project.repository, "strict", "demo/1")
    # Nothing is edited yet: the iteration is demo's, with its artifacts.
    assert (worktree / "data/table.txt").read_text() == "1\nfirst"
    assert position(worktree).committed == lineage(project.repository, "demo")[1]
    edit(worktree / PARAMS, "weight: 1.0}", "weight: 0.5}")
    project.repro(worktree)
    iteration = commit_iteration(worktree)
    assert iteration.name == "strict/0001"
    assert [one.name for one in lineage(project.repository, "strict")] == ["demo/0000", "strict/0001"]
    edit(worktree / PARAMS, "weight: 0.5}", "weight: 0.25}")
    project.repro(worktree)
    with pytest.raises(
        BadInput, match=r"strict/0001: it is committed already.*rollbook new-run NAME --from strict/0001"
    ):
        commit_iteration(worktree)


def test_settings_on_top_of_an_iteration_make_it_anew(trained: tuple[Project, Path]) -> None:
    project, _ = trained
    worktree = new_run(project.repository, "strict", "demo/1", settings={"score.terms.correct.weight": 0.5})
    assert position(worktree) == Position("strict", None, 1)
    project.repro(worktree)
    assert commit_iteration(worktree).name == "strict/0001"


def test_a_run_goes_on_without_the_optimizer_state_and_says_so(trained: tuple[Project, Path]) -> None:
    project, _ = trained
    worktree = new_run(project.repository, "fresh", "demo/1", fresh_optimizer=True)
    params = load_params(worktree / PARAMS)
    assert (params.iteration, params.parent) == (2, project.git("rev-parse", "demo/0001"))
    assert params.start.fresh_optimizer
    project.repro(worktree)
    commit_iteration(worktree)
    advance(worktree)
    assert not load_params(worktree / PARAMS).start.fresh_optimizer
    with pytest.raises(BadInput, match="main is no iteration"):
        new_run(project.repository, "other", "main", fresh_optimizer=True)


def test_an_iteration_without_its_state_is_refused(trained: tuple[Project, Path]) -> None:
    project, _ = trained
    for file in (project.root / ".dvc/cache/files/md5").rglob("*"):
        if file.is_file() and file.read_text() == "state before 2":
            file.unlink()
    with pytest.raises(BadInput, match=r"rollbook fetch demo/0001.*--fresh-optimizer"):
        new_run(project.repository, "strict", "demo/1")
    new_run(project.repository, "strict", "demo/0")


def test_an_iteration_is_checked_out_with_its_artifacts(trained: tuple[Project, Path]) -> None:
    project, _ = trained
    commit, missing = check_out_iteration(project.repository, project.root, "demo/0")
    assert (project.root / "data/table.txt").read_text() == "0\nfirst"
    assert (commit, missing) == (project.git("rev-parse", "HEAD"), [])
    edit(project.root / "make.py", "first", "second")
    with pytest.raises(BadInput, match=r"make\.py"):
        check_out_iteration(project.repository, project.root, "demo/1")


# Remotes --------------------------------------------------------------------------------------------------------------


def test_artifacts_are_pushed_where_there_is_a_remote(trained: tuple[Project, Path], tmp_path: Path) -> None:
    project, worktree = trained
    assert not push_artifacts(worktree)
    run(project.root, "dvc", "remote", "add", "--local", "--default", "store", "../remote")
    open_worktree(project.repository, "demo")
    assert push_artifacts(worktree)
    assert sum(file.is_file() for file in (tmp_path / "remote").rglob("*")) >= 5
    shutil.rmtree(tmp_path / "remote")
    (tmp_path / "remote").write_text("in the way")
    with pytest.raises(BadInput, match=r"dvc push: .*the same command pushes again"):
        push_artifacts(worktree)
