"""Several ranks: the same update as one process takes, with the state of either going on in the other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from torch.multiprocessing.spawn import spawn

from pipeline.training.distributed import Ranks
from tests import rank_updates
from tests.rank_updates import N_RANKS, Case, Left
from tests.tiny_updates import distance, load_trainable, plan, random_rows

CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {},
    "dapo": {"loss": "dapo"},
    "clipped": {"max_grad_norm": 0.01, "entropy_coefficient": 0.1},
}
TOLERANCE = 1e-5


# --- who runs what


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("n_micro_batches", [1, 2, 3, 5, 8])
def test_every_micro_batch_is_run_once_and_all_ranks_take_equally_many_turns(size: int, n_micro_batches: int) -> None:
    micro_batches = [[2 * index, 2 * index + 1] for index in range(n_micro_batches)]
    turns = [Ranks(rank, size).share(micro_batches) for rank in range(size)]
    assert {len(own) for own in turns} == {-(-n_micro_batches // size)}
    counted = Counter(row for own in turns for turn in own for row in turn.rows if turn.weight)
    assert counted == Counter(range(2 * n_micro_batches))
    for together in zip(*turns, strict=True):
        assert len({tuple(turn.rows_of_all) for turn in together}) == 1
        assert {row for turn in together for row in turn.rows} == set(together[0].rows_of_all)
        assert {turn.weight for turn in together} <= {0.0, 1.0}


def test_a_process_alone_runs_them_as_they_are() -> None:
    turns = Ranks().share([[3, 1], [2]])
    assert [(turn.rows, turn.weight, turn.rows_of_all) for turn in turns] == [([3, 1], 1.0, [3, 1]), ([2], 1.0, [2])]


# --- the same update


@pytest.fixture(scope="module")
def left(base: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all cases left, see `rank_updates`: a folder for each."""
    folder = tmp_path_factory.mktemp("ranks")
    cases = {
        name: Case(str(adapter if name == "lora" else base), str(base), changes) for name, changes in CASES.items()
    }
    rank_updates.run_alone(cases, folder)
    spawn(rank_updates.run_ranks, args=(cases, folder), nprocs=N_RANKS)  # type: ignore[no-untyped-call]
    rank_updates.run_after(cases, folder)
    return folder


def assert_same(ours: Left, theirs: Left) -> None:
    """Gradients, weights and moments within the tolerance, and the tables with them."""
    assert distance(ours.gradients, theirs.gradients) < TOLERANCE
    for part in ("master", "exp_avg", "exp_avg_sq"):
        assert distance(ours.part(part), theirs.part(part)) < TOLERANCE
    assert (ours.state.step, ours.state.optimizer_step) == (theirs.state.step, theirs.state.optimizer_step)
    for name, key in (("train_steps", "step"), ("token_logprobs", "completion_id")):
        found, expected = (each.table(name).sort(key) for each in (ours, theirs))
        assert found.schema == expected.schema
        for column in found.columns:
            is_list = isinstance(found.schema[column], pl.List)
            values, others = (
                (each.explode() if is_list else each).to_list() for each in (found[column], expected[column])
            )
            assert values == (
                others if found.schema[column] == pl.String else pytest.approx(others, rel=1e-4, abs=1e-6)
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_take_the_steps_of_one_process(name: str, left: Path) -> None:
    for iteration in ("first", "second"):
        assert_same(Left(left / name / "two" / iteration), Left(left / name / "one" / iteration))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mixed", ["two_after_one", "one_after_two"])
def test_a_run_goes_on_with_another_number_of_ranks(name: str, mixed: str, left: Path) -> None:
    assert_same(Left(left / name / mixed / "second"), Left(left / name / "one" / "second"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("resumed", ["resumed_by_two", "resumed_by_one"])
def test_a_killed_update_goes_on_with_another_number_of_ranks(name: str, resumed: str, left: Path) -> None:
    assert_same(Left(left / name / resumed), Left(left / name / "one" / "first"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_policies_have_the_same_files(name: str, left: Path) -> None:
    ours, theirs = (left / name / who / "first/policy" for who in ("two", "one"))
    files = sorted(file.name for file in theirs.iterdir())
    assert sorted(file.name for file in ours.iterdir()) == files
    for file in files:
        found, expected = ((folder / file).read_bytes() for folder in (ours, theirs))
        assert len(found) == len(expected)
        assert found == expected or file.endswith(".safetensors")


@pytest.mark.slow
def test_the_cases_are_not_too_easy(base: Path, left: Path) -> None:
    """Steps of odd and of even numbers of micro-batches, gradients that were clipped, and weights that moved."""
    case = Case(str(base), str(base))
    rows = random_rows(n_groups=5, seed=1)
    numbers = [len(step.micro_batches) for step in plan(load_trainable(base, base), rows, case.params)]
    assert min(numbers) > 1
    assert {number % N_RANKS for number in numbers} == {0, 1}
    assert (Left(left / "clipped/one/first").table("train_steps")["grad_norm"] > 0.01).all()
    for name in CASES:
        ends = [Left(left / name / "one" / iteration).part("master") for iteration in ("first", "second")]
        assert distance(*ends) > 100 * TOLERANCE
