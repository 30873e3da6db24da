"""Prefect's server: the one that is configured, or else one that lives as long as a training."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import typer
from prefect.client.orchestration import get_client
from prefect.server.api.server import SubprocessASGIServer
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
from prefect_flows.database import set_aside_if_damaged
from prefect_flows.leaving import ending_with

IS_EPHEMERAL = "PREFECT__SERVER_EPHEMERAL"
"""What Prefect sets in the environment of a server that it starts for the time of a flow."""

DATABASE = "prefect.db"
"""Where that server has its database, in its home."""

SECONDS_TO_START = 60
"""10 where nothing else is at work."""


def is_configured() -> bool:
    """Whether the environment or the active profile names a server (PREFECT_API_URL)."""
    return bool(PREFECT_API_URL.value())


@contextmanager
def serving(home: Path) -> Iterator[None]:
    """Flows in the block use the server that is configured, or start one of their own with its database in `home`.

    Nobody else may use `home` at that time: two servers on one database lock each other out. The process ends where
    its own server dies.

    Raises:
        TransientError: the server that is configured does not answer, or the own one does not start.
    """
    if is_configured():
        check_answers()
        yield
        return
    home.mkdir(parents=True, exist_ok=True)
    end_orphans(home)
    damaged = set_aside_if_damaged(home / DATABASE)
    if damaged:
        typer.echo(f"Prefect's database is damaged, and set aside as {damaged}; training needs none of it")
    settings = {
        PREFECT_API_URL: None,  # an empty one counts as none, but not everywhere in Prefect
        PREFECT_HOME: home,
        PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: True,
        PREFECT_SERVER_ANALYTICS_ENABLED: False,
        # Blocks hold credentials for the cloud, and registering their types costs a second at every start.
        PREFECT_API_BLOCKS_REGISTER_ON_START: False,
        PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION: False,
    }
    with temporary_settings(settings), ending_with(start_server(home)):
        yield


def start_server(home: Path) -> subprocess.Popen[bytes]:
    """Start the server that Prefect would start by itself, out of reach of the terminal's Ctrl-C; it ends with Python.

    Raises:
        TransientError: it does not start.
    """
    server = SubprocessASGIServer()
    # What is blocked stays blocked in the child. Another thread takes the signal for this process.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        server.start(SECONDS_TO_START)
    except (RuntimeError, httpx.HTTPError) as error:
        remedy = f"Try again; if that doesn't help, remove {home}, of which the run needs nothing"
        raise TransientError("Prefect's server", f"it does not start ({first_line(error)})", remedy) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    assert server.server_process is not None
    return server.server_process


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
