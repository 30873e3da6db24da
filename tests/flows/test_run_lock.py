from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import BadInput
from pipeline.versioning.guards import trainer_lock
from pipeline.versioning.repository import Repository
from prefect_flows.run_lock import run_lock


def test_who_has_a_run_may_take_it_again(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    with run_lock(repository, "demo"):
        with run_lock(Repository(tmp_path), "demo"), run_lock(repository, "other"):
            pass
        with pytest.raises(BadInput, match="run demo: it is in use"), trainer_lock(repository, "demo"):
            pass  # as another process would: the inner block has not given it free
    with trainer_lock(repository, "demo"), pytest.raises(BadInput, match="in use"), run_lock(repository, "demo"):
        pass
