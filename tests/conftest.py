"""Set before torch is imported: a spinning OpenMP thread keeps a core from the process that it waits for."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: workers take whole files, and would wait for a long one that is begun last."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
