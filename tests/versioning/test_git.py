from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipeline.errors import BadInput
from pipeline.versioning.git import file_at_commit


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A repository, made the current directory, whose only commit has data/history.csv; the file then changes."""
    monkeypatch.chdir(tmp_path)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "someone")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "someone@example.org")
    history = tmp_path / "data" / "history.csv"
    history.parent.mkdir()
    history.write_bytes(b"iteration\r\n0\n")
    git("init", "--quiet")
    git("add", "--all")
    git("-c", "core.autocrlf=false", "commit", "--quiet", "--message", "iteration 0")
    history.write_bytes(b"changed")
    return git("rev-parse", "HEAD")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def test_the_bytes_are_those_of_the_commit(commit: str) -> None:
    assert file_at_commit(commit, Path("data/history.csv")) == b"iteration\r\n0\n"


def test_the_path_is_relative_to_the_current_directory(commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("data")
    assert file_at_commit(commit, Path("history.csv")) == b"iteration\r\n0\n"


@pytest.mark.parametrize("unknown", ["0" * 40, "no-such-branch", "--help", ""])
def test_a_missing_commit_is_named(commit: str, unknown: str) -> None:
    with pytest.raises(BadInput, match=f"commit {unknown}: it is not in this repository.*git fetch"):
        file_at_commit(unknown, Path("data/history.csv"))


def test_a_missing_file_is_named(commit: str) -> None:
    with pytest.raises(BadInput, match=f"data/no.csv in commit {commit}: that commit has no such file"):
        file_at_commit(commit, Path("data/no.csv"))


def test_outside_a_repository_git_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(BadInput, match="not a git repository"):
        file_at_commit("0" * 40, Path("data/history.csv"))


def test_without_git_the_remedy_is_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="Install git"):
        file_at_commit("0" * 40, Path("data/history.csv"))
