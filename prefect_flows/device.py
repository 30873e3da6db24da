"""Stages that run the model take turns on the device where Prefect's server has a limit for it.

`prefect gcl create rollbook-gpu --limit 1` makes one, for all flows of that server.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

LIMIT = "rollbook-gpu"

ON_DEVICE = ("rollout", "update", "evaluate")
"""The stages that run the model."""

SECONDS_TO_FREE = 60
"""How long the slot of a training that was killed stays taken."""


def device_turn(stage: str) -> AbstractContextManager[None]:
    """A slot of the limit for the time of the block, where `stage` runs the model and the limit exists."""
    if stage not in ON_DEVICE or not limit_exists():
        return nullcontext()
    get_run_logger().info("%s: takes its turn by the limit %s", stage, LIMIT)
    return concurrency(LIMIT, lease_duration=SECONDS_TO_FREE)


def limit_exists() -> bool:
    """Whether the server has the limit."""
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(LIMIT)
        except ObjectNotFound:
            return False
    return True
