"""Keys of services, which are in the environment: params.yaml, which is in Git, names the variable alone."""

from __future__ import annotations

import os

from pipeline.errors import BadInput


def read_api_key(variable: str | None, whose: str) -> str | None:
    """The value of the environment's `variable`, which holds `whose` key; raises BadInput where it has none."""
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise BadInput(f"environment variable {variable}", f"it is not set, and {whose} key is in it", "Set it")
    return os.environ[variable]
