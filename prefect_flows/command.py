"""`python -m prefect_flows.train`: training from a terminal, with a Prefect server of its own where none is set up."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import psutil
import typer
from prefect.settings import (
    PREFECT_API_BLOCKS_REGISTER_ON_START,
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    temporary_settings,
)

from pipeline.errors import RollbookError
from pipeline.params_edit import parse_settings
from pipeline.versioning.guards import trainer_lock
from pipeline.versioning.repository import LOCAL, Repository
from pipeline.versioning.runs import check_run_name
from prefect_flows.train import train

INTERRUPTED, TERMINATED = 130, 143

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
