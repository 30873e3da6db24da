from __future__ import annotations

from collections.abc import Iterator

import pytest
from prefect.settings import PREFECT_SERVER_ANALYTICS_ENABLED, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from prefect_flows import iteration, train
from tests.flows.quick_project import QuickProject


@pytest.fixture(scope="session")
def server() -> Iterator[None]:
    """Prefect with a database of its own, for all flows of the tests."""
    with temporary_settings({PREFECT_SERVER_ANALYTICS_ENABLED: False}), prefect_test_harness():
        yield


@pytest.fixture
def here(project: QuickProject, server: None, monkeypatch: pytest.MonkeyPatch) -> QuickProject:
    """`project`, as the current directory of one who can commit; flows don't wait before another try."""
    monkeypatch.chdir(project.root)
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    for task in (iteration.stage_task, train.push):
        monkeypatch.setattr(task, "retry_delay_seconds", [0])
    project.clear_trouble()
    return project


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> QuickProject:
    """One repository for all tests: each takes a run of its own name."""
    return QuickProject(tmp_path_factory.mktemp("flows") / "project")
