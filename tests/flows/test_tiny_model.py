"""The pipeline itself through the flow, with a tiny random model."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from prefect_flows.train import train
from tests.end_to_end.checkout import Checkout, make_model
from tests.flows.quick_project import IDENTITY
from tests.flows.test_iteration import task_runs

pytestmark = pytest.mark.slow
STAGES = (
    *("prompts", "base", "start", "select", "rollout", "score", "normalize"),
    *("filter", "update", "evaluate", "report", "commit"),
)


def test_an_iteration_runs_every_stage_and_shows_it(
    server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = Checkout(tmp_path / "main", make_model(tmp_path / "model"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name, value in {**IDENTITY, "PATH": path, "PYTHONPATH": "."}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(checkout.folder)
    state = train("tiny", 1, return_state=True)
    assert state.is_completed()
    assert checkout.git("tag", "--list").split() == ["tiny/0000"]

    with get_client(sync_client=True) as client:
        (run,) = [run for run in client.read_flow_runs() if run.name == "tiny/0000"]
        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
        artifacts = {artifact.key: artifact for artifact in client.read_artifacts(artifact_filter=of_run)}
    runs = task_runs(run.state, lambda runs: len(runs) == len(STAGES))
    assert [one.name for one in runs] == [f"tiny/0000 {stage}" for stage in STAGES]
    assert set(artifacts) == {"tiny-metrics", "tiny-groups", "tiny-report"}
    assert "## unverified: 2 of 4 unverified groups" in str(artifacts["tiny-groups"].data)
