from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.versioning.project import ENVIRONMENT, Project


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
