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
STAGES = "prompts base start select rollout score normalize filter update evaluate report commit".split()
