from __future__ import annotations

from collections.abc import Iterator

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

from prefect_flows.device import LIMIT, device_turn, limit_exists


def slots_taken() -> int:
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name(LIMIT).active_slots


@flow
def take_turns(*stages: str) -> list[int]:
    """How many slots are taken while each of `stages` runs."""
    taken = []
    for stage in stages:
        with device_turn(stage):
            taken.append(slots_taken())
    return taken


@pytest.fixture
def limit(server: None) -> Iterator[None]:
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=LIMIT, limit=1))
        yield
        client.delete_global_concurrency_limit_by_name(LIMIT)


def test_a_stage_that_runs_the_model_takes_a_slot(limit: None) -> None:
    assert take_turns("score", "rollout", "report", "update") == [0, 1, 0, 1]
    assert slots_taken() == 0


def test_without_a_limit_nothing_waits_and_none_is_made(server: None) -> None:
    @flow
    def run() -> bool:
        with device_turn("rollout"):
            return limit_exists()

    assert run() is False
