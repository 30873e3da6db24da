from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.errors import BadInput
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import (
    Iteration,
    branch_of,
    check_name_is_free,
    check_run_name,
    lineage,
    list_runs,
    resolve,
    select_iterations,
    tag_name,
)
from tests.versioning.project import Project


def commit(project: Project, message: str, *tags: str) -> str:
    """An empty commit on the branch that is checked out, with `tags`; its id."""
    project.git("commit", "--quiet", "--allow-empty", "--message", message)
    for tag in tags:
        project.git("tag", tag)
    return project.git("rev-parse", "HEAD")


def add_lock(project: Project) -> None:
    """Have the next commits look like iterations."""
    (project.root / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    project.git("add", "dvc.lock")


@pytest.fixture
def demo(project: Project) -> tuple[Project, list[str]]:
    """Iterations 0, 1 and 2 of `demo`, made by plain git, with a commit between the last two."""
    project.git("switch", "--quiet", "--create", "runs/demo")
    add_lock(project)
    first = commit(project, "any words", "demo/0000", "a-tag-of-another-kind")
    second = commit(project, "demo 1", "demo/0001")
    commit(project, "an edit")
    third = commit(project, "demo 2", "demo/0002")
    return project, [first, second, third]


@pytest.mark.parametrize("name", ["demo", "a", "run-2", "0.5_x", "a.b"])
def test_names_that_are_fine(name: str) -> None:
    check_run_name(name)


@pytest.mark.parametrize("name", ["", "Demo", "a/b", "-a", ".a", "a..b", "a.", "a.lock", "a b", "ä", "a\n", "main~1"])
def test_names_that_git_or_a_folder_cannot_have(name: str) -> None:
    with pytest.raises(BadInput, match="a run's name is made of"):
        check_run_name(name)


def test_the_lineage_is_the_tagged_commits_oldest_first(demo: tuple[Project, list[str]]) -> None:
    project, commits = demo
    assert lineage(project.repository, "demo") == [Iteration("demo", k, commits[k]) for k in range(3)]
    assert list_runs(project.repository) == ["demo"]


def test_numbers_beyond_four_digits_stay_in_order(project: Project) -> None:
    project.git("switch", "--quiet", "--create", "runs/long")
    add_lock(project)
    for number in (9_998, 9_999, 10_000):
        commit(project, "x", tag_name("long", number))
    assert [one.name for one in lineage(project.repository, "long")] == ["long/9998", "long/9999", "long/10000"]


def test_a_what_if_counts_its_own_iteration_and_takes_over_the_older_ones(demo: tuple[Project, list[str]]) -> None:
    project, commits = demo
    project.git("switch", "--quiet", "--create", "runs/strict", "demo/0001")
    own = commit(project, "strict 1", "strict/0001")
    expected = [Iteration("demo", 0, commits[0]), Iteration("strict", 1, own)]
    assert lineage(project.repository, "strict") == expected
    assert [one.name for one in lineage(project.repository, "demo")] == ["demo/0000", "demo/0001", "demo/0002"]


def test_a_run_that_starts_over_has_none_of_the_iterations_below_it(demo: tuple[Project, list[str]]) -> None:
    project, _ = demo
    project.git("switch", "--quiet", "--create", "runs/again", "demo/0002")
    own = commit(project, "again 0", "again/0000")
    assert lineage(project.repository, "again") == [Iteration("again", 0, own)]


def test_names_are_resolved(demo: tuple[Project, list[str]]) -> None:
    project, commits = demo
    project.git("switch", "--quiet", "--create", "runs/strict", "demo/0001")
    own = commit(project, "strict 1", "strict/0001")
    repository = project.repository
    assert (
        resolve(repository, "demo") == resolve(repository, "demo/2") == resolve(repository, "demo/0002") == commits[2]
    )
    assert resolve(repository, "strict") == resolve(repository, "strict/1") == own
    assert resolve(repository, "strict/0") == commits[0]  # taken over from demo
    assert resolve(repository, commits[1][:10]) == resolve(repository, "runs/demo~2") == commits[1]


@pytest.mark.parametrize("name", ["demo/7", "nothing", "nothing/0001", "--help", "demo/0001x", ""])
def test_what_is_not_there_is_named(demo: tuple[Project, list[str]], name: str) -> None:
    with pytest.raises(BadInput, match=r"has no iteration 7|no run, iteration or commit; runs here: demo"):
        resolve(demo[0].repository, name)


def test_an_unknown_run_is_refused_with_those_there_are(demo: tuple[Project, list[str]]) -> None:
    with pytest.raises(BadInput, match="there is no branch runs/dem; runs here: demo"):
        branch_of(demo[0].repository, "dem")


def test_a_clone_knows_the_runs_of_its_origin(demo: tuple[Project, list[str]], tmp_path: Path) -> None:
    project, commits = demo
    project.git("switch", "--quiet", "main")
    project.git("clone", "--quiet", str(project.root), str(tmp_path / "clone"))
    clone = Repository(tmp_path / "clone")
    assert list_runs(clone) == ["demo"]
    assert [one.commit for one in lineage(clone, "demo")] == commits


@pytest.mark.parametrize(
    ("name", "numbers"), [("demo", [0, 1, 2]), ("demo/1", [1]), ("demo/0001..0002", [1, 2]), ("demo/1..9", [1, 2])]
)
def test_iterations_are_selected(demo: tuple[Project, list[str]], name: str, numbers: list[int]) -> None:
    assert [one.number for one in select_iterations(demo[0].repository, name)] == numbers


@pytest.mark.parametrize("name", ["demo/3", "demo/x", "demo/0..x", "demo/2..1"])
def test_a_selection_of_nothing_is_refused(demo: tuple[Project, list[str]], name: str) -> None:
    with pytest.raises(BadInput, match=r"no such iteration|no run or iterations"):
        select_iterations(demo[0].repository, name)


def test_the_repository_is_found_from_a_worktree_and_from_below(project: Project, tmp_path: Path) -> None:
    project.git("worktree", "add", "--quiet", str(tmp_path / "aside"), "-b", "aside")
    assert Repository.find(tmp_path / "aside") == Repository.find(project.root / "data") == project.repository
    bare = tmp_path / "bare"
    project.git("clone", "--quiet", "--bare", str(project.root), str(bare))
    with pytest.raises(BadInput, match="bare repository"):
        Repository.find(bare)
    shutil.rmtree(bare)


def test_the_cache_is_where_dvc_has_it(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert project.repository.cache_dir == project.root / ".dvc/cache"
    monkeypatch.setenv("DVC_GLOBAL_CONFIG_DIR", str(tmp_path))
    (tmp_path / "config").write_text(f"[cache]\n    dir = {tmp_path}/shared\n")
    assert project.repository.cache_dir == tmp_path / "shared"
    (project.root / ".dvc/config.local").write_text("[cache]\n    dir = ../own\n")
    assert project.repository.cache_dir.resolve() == project.root / "own"
    (project.root / ".dvc/config.local").write_text("no section")
    with pytest.raises(BadInput, match="settings can't be read"):
        _ = project.repository.cache_dir


def test_a_worktree_reaches_the_remotes_of_the_checkout(project: Project, tmp_path: Path) -> None:
    (project.root / ".dvc/config").write_text(
        "['remote \"store\"']\n    url = ../../remote\n[core]\n    remote = store\n"
    )
    (project.root / ".dvc/config.local").write_text("['remote \"store\"']\n    jobs = 2\n")
    worktree = tmp_path / "worktree"
    project.repository.configure_worktree(worktree)
    written = (worktree / ".dvc/config.local").read_text()
    assert "jobs = 2" in written
    assert f"url = {tmp_path}/remote\n" in written


def test_a_tag_that_only_looks_like_an_iteration_is_none(project: Project) -> None:
    project.git("tag", "release/2024")
    project.git("branch", "runs/demo")
    assert lineage(project.repository, "demo") == []


@pytest.mark.parametrize("url", ["~/store", "/somewhere/store", "s3://bucket/store"])
def test_a_remote_that_is_not_relative_stays_as_it_is(project: Project, tmp_path: Path, url: str) -> None:
    (project.root / ".dvc/config").write_text(f"['remote \"store\"']\n    url = {url}\n[core]\n    remote = store\n")
    project.repository.configure_worktree(tmp_path)
    written = (tmp_path / ".dvc/config.local").read_text()
    assert f"url = {url}\n" in written
    assert "remote = store\n" in written  # a run may be older than the remote


@pytest.mark.parametrize(("reference", "kind"), [("refs/tags/demo", "tag demo"), ("refs/heads/runs", "branch runs")])
def test_references_that_git_cannot_have_beside_a_run_are_named(project: Project, reference: str, kind: str) -> None:
    project.git("update-ref", reference, "HEAD")
    with pytest.raises(BadInput, match=f"beside the {kind}. Rename it"):
        check_name_is_free(project.repository, "demo")
