"""prefect.yaml against the flows that it names."""

from __future__ import annotations

from typing import Any

import pytest
from prefect.cli.deploy._models import PrefectYamlModel
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.schedules import Cron
from ruamel.yaml import YAML

from tests.stage_runs import ROOT

CONFIG: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
DEPLOYMENTS: list[dict[str, Any]] = CONFIG["deployments"]


def test_prefect_takes_the_file() -> None:
    read = PrefectYamlModel.model_validate(CONFIG)
    assert [deployment.name for deployment in read.deployments] == ["iteration", "train", "evaluate-nightly"]
    assert [list(step) for step in CONFIG["pull"]] == [["prefect.deployments.steps.set_working_directory"]]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: str(deployment["name"]))
def test_a_deployment_names_a_flow_and_parameters_that_it_takes(
    deployment: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    flow: Flow[Any, Any] = load_flow_from_entrypoint(deployment["entrypoint"])
    assert set(deployment["parameters"]) <= set(flow.parameters.properties)
    assert flow.validate_parameters({**deployment["parameters"]})["run"] == "demo"
    assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}
    assert deployment["work_pool"] == {"name": "rollbook"}
    for schedule in deployment["schedules"]:
        Cron(schedule["cron"], timezone=schedule["timezone"])
