from __future__ import annotations

from graphlib import CycleError
from typing import Any

import pytest
from ruamel.yaml import YAML

from prefect_flows.device import ON_DEVICE
from prefect_flows.stage_order import read_stage_order, stage_order
from tests.stage_runs import ROOT


def pipeline() -> dict[str, Any]:
    stages: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    return stages


def test_the_pipeline_is_listed_in_an_order_in_which_it_can_run() -> None:
    assert read_stage_order(ROOT) == list(pipeline())


def test_the_listing_does_not_matter_where_stages_read_each_other() -> None:
    backwards = dict(reversed(pipeline().items()))
    order = stage_order(backwards)
    for stage, reads in {"select": "prompts", "rollout": "select", "filter": "normalize", "evaluate": "update"}.items():
        assert order.index(reads) < order.index(stage)
    assert order[-1] == "report"


def test_where_there_is_a_choice_the_listing_decides() -> None:
    assert stage_order({"b": {}, "a": {}, "c": {"deps": ["x"]}}) == ["b", "a", "c"]


def test_a_file_in_a_folder_that_another_stage_writes_is_read_from_it() -> None:
    stages: dict[str, Any] = {"read": {"deps": ["data/base/config.json"]}, "write": {"outs": ["data/base"]}}
    assert stage_order(stages) == ["write", "read"]
    assert stage_order({"read": {"deps": ["data/bases"]}, "write": {"outs": ["data/base"]}}) == ["read", "write"]


def test_metrics_and_outputs_with_options_count() -> None:
    stages: dict[str, Any] = {
        "c": {"deps": ["m"]},
        "b": {"deps": ["o"], "metrics": [{"m": {"cache": False}}]},
        "a": {"outs": [{"o": {}}]},
    }
    assert stage_order(stages) == ["a", "b", "c"]


def test_a_circle_is_an_error() -> None:
    with pytest.raises(CycleError):
        stage_order({"a": {"deps": ["y"], "outs": ["x"]}, "b": {"deps": ["x"], "outs": ["y"]}})


def test_the_stages_that_run_the_model_are_stages_of_the_pipeline() -> None:
    """They load the policy; the others name no folder of weights but `base` and `start`, which lay them out."""
    reads_policy = {name for name, stage in pipeline().items() if "pipeline/policy.py" in stage["deps"]}
    assert set(ON_DEVICE) == reads_policy - {"start"}
