"""Groups packed into one row, worked by hand."""

from __future__ import annotations

import pytest

from pipeline.training import buckets
from pipeline.training.batching import TrainingRow
from pipeline.training.buckets import LENGTH_BUCKET
from pipeline.training.packing import pack_rows
from tests.tiny_updates import CPU, random_rows


def row(group_id: str, prompt: list[int], completion: list[int]) -> TrainingRow:
    return TrainingRow(f"{group_id}/{completion}", group_id, prompt, completion, [0.0] * len(completion), 0.0)


@pytest.fixture
def unpadded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "LENGTH_BUCKET", 1)


@pytest.mark.usefixtures("unpadded")
def test_a_packed_row_by_hand() -> None:
    found = pack_rows([row("a", [11, 12], [21, 22]), row("a", [11, 12], [23, 24]), row("b", [13], [25])], CPU)
    assert found.input_ids.tolist() == [[11, 12, 21, 23, 13]]  # nothing is predicted from 22, 24 and 25
    assert found.position_ids.tolist() == [[0, 1, 2, 2, 0]]
    assert found.predicting.tolist() == [1, 2, 1, 3, 4]
    assert found.targets.tolist() == [21, 22, 23, 24, 25]
    assert found.layout.prompt_places.tolist() == [[0, 1], [4, 0]]
    (completions,) = found.layout.completions
    assert completions.places.tolist() == [[2], [3], [0]]
    assert completions.prompts.tolist() == [0, 0, 1]


@pytest.mark.usefixtures("unpadded")
def test_each_prompt_is_run_once() -> None:
    rows = random_rows(n_groups=2, group_size=3)
    n_prompt = len(rows[0].prompt_token_ids) + len(rows[3].prompt_token_ids)
    n_completion = sum(len(row.completion_token_ids) - 1 for row in rows)
    assert pack_rows(rows, CPU).input_ids.shape == (1, n_prompt + n_completion)


@pytest.mark.usefixtures("unpadded")
def test_a_group_that_is_not_together_has_its_prompt_run_again() -> None:
    rows = [row("a", [11, 12], [21, 22]), row("b", [13], [25]), row("a", [11, 12], [23, 24])]
    assert pack_rows(rows, CPU).input_ids.tolist() == [[11, 12, 21, 13, 11, 12, 23]]


@pytest.mark.usefixtures("unpadded")
def test_a_prompt_is_shared_by_its_group_alone() -> None:
    """Two prompts may be the same text."""
    found = pack_rows([row("a", [11], [21, 22]), row("b", [11], [23, 24])], CPU)
    assert found.input_ids.tolist() == [[11, 21, 11, 23]]
    assert found.position_ids.tolist() == [[0, 1, 0, 1]]


def test_a_row_is_padded_at_its_end() -> None:
    found = pack_rows([row("a", [11, 12], [21, 22])], CPU)
    n_padding = LENGTH_BUCKET - 3
    assert found.input_ids.tolist() == [[11, 12, 21, *[0] * n_padding]]
    assert found.position_ids.tolist() == [[0, 1, 2, *[0] * n_padding]]
    assert found.layout.restore.tolist() == [0, 1, 2, *[0] * n_padding]  # what comes out there is nobody's
    assert found.predicting.tolist() == [1, 2]
