"""The benchmark of the sampler: all sides sample what is asked for, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.sampling import make_table, measure
from tests.benchmarks.sampling_sides import MOST_LOGITS, SIDES, Side, Work, can_run
from tests.tiny_model import build_tiny_model


@pytest.mark.parametrize("name", [name for name in SIDES if not name.startswith("vllm")])  # those take a minute each
def test_a_side_samples_all_tokens(name: str, tmp_path: Path) -> None:
    build_tiny_model(tmp_path)
    # Prompts of several lengths, one of which ends with the end token (2), which ends no completion here.
    work = Work([[5, 6, 7], [9], [8, 2]], n_completions=4, n_tokens=40)
    assert SIDES[name](tmp_path)(work) == work.n_rows * work.n_tokens == 480


def test_a_side_that_samples_less_is_found_out() -> None:
    work = Work([[5]], n_completions=2, n_tokens=3)
    lazy: Side = lambda _work: 5  # noqa: E731
    with pytest.raises(AssertionError, match="lazy sampled 5 tokens"):
        measure({"lazy": lazy}, work, rounds=1)


def test_ratios_are_those_within_a_round() -> None:
    # 6 tokens in 2 s are 3 tokens/s; 2/1, 6/2 and 2/4 times as fast as the baseline.
    seconds = {"ours": [1.0, 2.0, 4.0], "generate": [2.0, 6.0, 2.0]}
    table = make_table(Work([[5]], n_completions=2, n_tokens=3), seconds, "generate")
    assert [next(iter(column.cells)) for column in table.columns] == ["ours", "3", "2.00", "0.50", "3.00"]


def test_logits_of_all_tokens_are_kept_only_where_they_fit() -> None:
    small, large = (Work([[5]] * 16, n_completions=8, n_tokens=n) for n in (16, 256))
    assert large.n_rows * 256 * 49_152 > MOST_LOGITS > small.n_rows * 16 * 49_152
    assert [can_run("generate-logprobs", work, 49_152) for work in (small, large)] == [True, False]
    assert can_run("generate", large, 49_152)
