"""The benchmark of the update: all sides do the same work, at a scale where only that can be seen."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipeline.policy import load_model
from pipeline.training.flops import count_weights, update_flops
from tests.benchmarks.trl.lengths import ForcedLengths
from tests.benchmarks.trl.results import summarize
from tests.benchmarks.trl.task import Method, Part, Task
from tests.benchmarks.trl.turns import Measured, SideProcess, Turns, take_turns
from tests.benchmarks.trl.worker import SIDES
from tests.benchmarks.trl.workload import Workload
from tests.tiny_model import build_tiny_model

needs_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed (extra `bench`)")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base model."""
    folder = tmp_path_factory.mktemp("model")
    build_tiny_model(folder)
    return folder


def task(base: Path, part: Part = Part.UPDATE) -> Task:
    """Two steps at the smallest shape."""
    return Task(str(base), "tiny", Method.FULL, part, n_steps=2)


class OwnTurns(Turns):
    """Steps follow one another in the test's own process, and are kept."""

    def __init__(self) -> None:
        self.steps: list[Measured] = []
        self._started = 0.0

    def begin(self) -> None:
        """Begin at once."""

    def _say(self, message: Measured) -> None:
        self.steps.append(message)


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Rollbook's side has torch compute deterministically, as the stage has it: undone afterwards."""
    yield
    torch.use_deterministic_algorithms(False)


def run(side: str, task: Task) -> list[Measured]:
    """The steps of a side."""
    turns = OwnTurns()
    importlib.import_module(f"tests.benchmarks.trl.{SIDES[side]}").run(side, task, turns)
    return turns.steps


@needs_trl
@pytest.mark.usefixtures("deterministic")
@pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning")
def test_the_sides_of_an_update_have_the_same_gradient(base: Path) -> None:
    norms = {side: [step["grad_norm"] for step in run(side, task(base))] for side in ("rollbook", "trl", "padded")}
    # bfloat16 rounds each side's activations in its own way.
    assert norms["rollbook"] == pytest.approx(norms["padded"], rel=0.02)
    assert norms["trl"] == pytest.approx(norms["padded"], rel=0.02)


@needs_trl
@pytest.mark.usefixtures("deterministic")
def test_the_sides_of_a_whole_step_sample_completions_of_the_same_lengths(base: Path) -> None:
    steps = {side: run(side, task(base, Part.WHOLE)) for side in ("rollbook-filtered", "trl")}
    means = {side: [step["completion_tokens_mean"] for step in taken] for side, taken in steps.items()}
    workload = Workload(task(base))
    assert means["trl"] == means["rollbook-filtered"] == [sum(workload.lengths(step)) / 4 for step in range(2)]
    assert [step["n_rows"] for step in steps["rollbook-filtered"]] == [2, 2]  # half of the 2 groups of 2


def test_sides_in_processes_of_their_own_take_turns(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with SideProcess("matmul", task(base)) as side:
        rounds = [list(steps["matmul"]) for steps in take_turns({"matmul": side}, 2)]
    assert [[step["n_threads"] for step in steps] for steps in rounds] == [[1], [1, 1]]


def test_a_side_that_fails_says_why(base: Path) -> None:
    with pytest.raises(SystemExit, match="KeyError: 'other'"), SideProcess("other", task(base)) as side:
        next(take_turns({"other": side}, 1))


def test_ratios_are_medians_over_the_rounds_but_the_first(base: Path) -> None:
    def steps(seconds: list[float], peak: int) -> list[Measured]:
        return [{"seconds": value, "peak_bytes": peak, "resident_bytes": peak} for value in seconds]

    machine = [{"update_flops": 50, "flops_per_second": 100.0}] * 4  # half a second
    sides = {"rollbook": steps([9, 1, 2, 4], 3), "trl": steps([1, 5, 4, 16], 4), "matmul": machine}
    summary = summarize(task(base), sides)["summary"]
    assert summary["rollbook"]["times_faster_than"] == {"trl": 4.0}  # of 5, 2 and 4
    assert summary["rollbook"]["peak_memory_over"] == {"trl": 0.75}
    assert summary["rollbook"]["share_of_floor"] == 0.25  # of 1/2, 1/4 and 1/8
    assert summary["rollbook"]["seconds_median"] == 2


def test_lengths_are_forced_whether_finished_rows_stay_or_go(base: Path) -> None:
    workload = Workload(task(base))
    forced = ForcedLengths(workload)
    head = torch.nn.Linear(4, 99)
    model = torch.nn.Module()
    model.get_output_embeddings = lambda: head  # type: ignore[assignment]
    forced.attach(model)
    for drops in (False, True):
        forced.restart([2, 4, 3, 2])  # of at most 4
        n_rows, ended = 4, []
        for _ in range(4):
            with torch.no_grad():
                ends = head(torch.randn(n_rows, 1, 4))[:, -1].argmax(dim=-1) == workload.end_token_id
            ended.append(int(ends.sum()))
            n_rows -= ended[-1] if drops else 0
        assert ended == [0, 2, 1, 0]  # the one of 4 runs to the limit


def test_floor_of_a_tiny_model(base: Path) -> None:
    counts = count_weights(load_model(base, base, torch.device("cpu")), lora_rank=2)
    # A layer: q and o 32 x 32, k and v 32 x 16, three of 32 x 64; there are two. The head: 99 x 32.
    assert counts.body == 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    assert counts.head == 99 * 32
    # Rank 2, in + out features: q and o 64 each, k and v 48 each, three of 96.
    assert counts.adapter == 2 * 2 * (2 * 64 + 2 * 48 + 3 * 96)
    # With an adapter the base's weights get no gradient: twice the forward, and three times the adapter's.
    assert update_flops(counts, 10, 5) == 4 * (counts.body * 10 + counts.head * 5) + 6 * counts.adapter * 10
