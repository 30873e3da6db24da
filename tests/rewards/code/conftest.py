"""The fixture of tests that run code in a sandbox."""

from __future__ import annotations

import pytest

from tests.rewards.code.trials import why_no_sandbox


@pytest.fixture(scope="session")
def sandbox() -> None:
    """A machine where sandboxes work; a skip, with the reason, elsewhere."""
    if reason := why_no_sandbox():
        pytest.skip(reason)
