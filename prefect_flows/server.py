"""Prefect's server: the one that is configured, or else one that lives as long as a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from prefect.client.orchestration import get_client
from prefect.settings import (
    PREFECT_API_BLOCKS_REGISTER_ON_START,
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    temporary_settings,
)

from pipeline.errors import TransientError, first_line

IS_EPHEMERAL = "PREFECT__SERVER_EPHEMERAL"
"""What Prefect sets in the environment of a server that it starts for the time of a flow."""


def is_configured() -> bool:
    """Whether the environment or the active profile names a server (PREFECT_API_URL)."""
    return bool(PREFECT_API_URL.value())


@contextmanager
def serving(home: Path) -> Iterator[None]:
    """Flows in the block use the server that is configured, or start one of their own with its database in `home`.

    Nobody else may use `home` at that time: two servers on one database lock each other out.

    Raises:
        TransientError: the server that is configured does not answer.
    """
    if is_configured():
        check_answers()
        yield
        return
    home.mkdir(parents=True, exist_ok=True)
    end_orphans(home)
    settings = {
        PREFECT_API_URL: None,  # an empty one counts as none, but not everywhere in Prefect
        PREFECT_HOME: home,
        PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: True,
        PREFECT_SERVER_ANALYTICS_ENABLED: False,
        # Blocks hold credentials for the cloud, and registering their types costs a second at every start.
        PREFECT_API_BLOCKS_REGISTER_ON_START: False,
        PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION: False,
    }
    with temporary_settings(settings):
        yield


def check_answers() -> None:
    """Raise `TransientError` where the server that is configured does not answer."""
    with get_client(sync_client=True) as client:
        problem = client.api_healthcheck()
    if problem:
        remedy = "Start it with `prefect server start`, or do without: `prefect config unset PREFECT_API_URL`"
        raise TransientError(f"PREFECT_API_URL {PREFECT_API_URL.value()}", first_line(problem), remedy)


def end_orphans(home: Path) -> None:
    """End servers with their database in `home`: a training that was killed could not stop its own."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            environment = process.environ()
            if environment.get("PREFECT_HOME") == str(home) and IS_EPHEMERAL in environment:
                process.kill()
                process.wait(10)
