from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pipeline.versioning.branching import new_run, open_worktree
from tests.versioning.project import ENVIRONMENT, Project, make_iterations


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone who commits, and the programs of this environment on the PATH."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="session")
def fresh_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that is copied, not changed."""
    return Project(tmp_path_factory.mktemp("project") / "fresh")


@pytest.fixture
def project(fresh_project: Project, tmp_path: Path, identity: None) -> Project:
    """A project of the test's own."""
    return fresh_project.copy(tmp_path / "project")


@pytest.fixture(scope="session")
def trained_project(fresh_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with two iterations of `demo`, which is copied, not changed."""
    own = fresh_project.copy(tmp_path_factory.mktemp("trained") / "project")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        make_iterations(own, new_run(own.repository, "demo"), 2)
    return own


@pytest.fixture
def trained(trained_project: Project, tmp_path: Path, identity: None) -> tuple[Project, Path]:
    """A project with two iterations of `demo`, and the worktree of it."""
    own = trained_project.copy(tmp_path / "project")
    return own, open_worktree(own.repository, "demo")
