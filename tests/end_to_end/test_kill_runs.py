"""A handful of the kills of `make kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.kill_runs import compare_killed_runs, differences

pytestmark = pytest.mark.slow


def test_training_that_is_killed_ends_like_training_that_is_not(tmp_path: Path) -> None:
    lines: list[str] = []
    compare_killed_runs(tmp_path, n_kills=4, n_iterations=2, seed=5, say=lines.append)
    assert lines[-1].startswith("4 kills in")


def test_a_difference_would_be_seen() -> None:
    one = {"tags": ["tiny/0000"], "tiny/0000:data/rewards.parquet": "ab"}
    other = {"tags": ["tiny/0000"], "tiny/0000:data/rewards.parquet": "cd"}
    assert differences(one, dict(one)) == []
    assert differences(one, other) == ["tiny/0000:data/rewards.parquet: ab and cd"]
    assert differences(one, {"tags": ["tiny/0000"]}) == ["tiny/0000:data/rewards.parquet: ab and None"]
