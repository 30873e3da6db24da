"""Questions over iterations and runs, whose tables lie in DVC's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.audit import run_tables as module
from pipeline.audit.answer import answer
from pipeline.audit.question import Unanswerable
from pipeline.audit.registry import QUESTIONS
from pipeline.audit.run_tables import RunTables, run_tables
from pipeline.errors import BadInput
from pipeline.history import scan_iterations
from pipeline.tables import TABLES
from pipeline.versioning.repository import Repository
from tests.audit.planted import Frames, ask, plant
from tests.versioning.fabricated import add_table, import_run, init, lock_text

FORMAT = [0.0, 0.1, 0.5, 0.9]
"""The mean of the term `format` of each iteration of `demo`, whose pass rate stays at one half."""


def of_iteration(
    number: int, rewards: list[float], *, text: str = "It is 3.", answer: str = "3", **terms: float
) -> Frames:
    """Prompt `a` with a completion for each of `rewards`; eval is done in iterations 1 and 3, half of it correct."""
    extra = {f"reward_{name}": value for name, value in terms.items()}
    completions = [{"prompt": "a", "reward": reward, "completion_text": text, **extra} for reward in rewards]
    stats = {"prompt_id": "a", "n_groups": number, "n_completions": 2 * number, "n_correct": number}
    before = [{**stats, "pass_rate": 0.5, "recent_pass_rate": 0.5, "last_iteration": number - 1}] if number else []
    one = {"iteration": number, "policy": "after", "prompt_id": "z", "completion_text": "3", "finish_reason": "stop"}
    evaluated = [{**one, "completion_index": n, "is_correct": n == 0, "reward": 0.5} for n in range(2 * (number % 2))]
    prompts = {"a": {"answer": answer}}
    return plant(completions, prompts, number, prompt_stats=before, eval=evaluated)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """`demo` has iterations 0 to 3; `strict` leaves it at 1, scores 2 anew and samples 3 anew."""
    root = tmp_path_factory.mktemp("runs")
    init(root)
    demo = [of_iteration(n, [1.0, 0.0], text=f"It is {n}.", format=FORMAT[n], correct=0.5) for n in range(4)]
    demo[3] = of_iteration(3, [1.0, 1.0], text="It is 3.", answer="4", format=FORMAT[3], correct=1.0)
    import_run(root, "demo", [lock(root, frames) for frames in demo])
    again = of_iteration(2, [0.0, 0.0], text="It is 2.", correct=0.0)
    sampled = of_iteration(3, [0.0, 0.0], text="Another text")
    import_run(root, "strict", [lock(root, frames) for frames in (again, sampled)], start="demo/0001", first=2)
    return Repository(root)


def lock(root: Path, frames: Frames) -> str:
    cache_dir = root / ".dvc/cache"
    outputs = [
        add_table(cache_dir, f"data/{name}.parquet", frame, TABLES[name], root) for name, frame in frames.items()
    ]
    return lock_text(outputs)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part for each iteration."""
    monkeypatch.setattr(module, "BYTES_PER_PART", 1)


def tables(repository: Repository, *runs: str, iterations: tuple[int, int] | None = None) -> RunTables:
    return run_tables(runs, iterations, repository)


@pytest.mark.usefixtures("small_parts")
def test_an_answer_over_parts_is_that_over_all(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    both = tables(repository, "demo", "strict")
    assert len(list(both.parts())) == 8
    in_parts = answer(QUESTIONS["highest"], both, 4)
    monkeypatch.setattr(module, "BYTES_PER_PART", 2**30)
    assert len(list(both.parts())) == 1
    at_once = answer(QUESTIONS["highest"], both, 4)
    assert in_parts.rows.equals(at_once.rows)
    assert in_parts.n_rows == at_once.n_rows == 16


def test_ids_and_details_are_those_of_the_row(repository: Repository) -> None:
    rows = ask("highest", tables(repository, "demo", "strict"), 4)
    # Those that stand out of their group come first: 1 beside 0, in the iterations that both runs have.
    shown = rows.select("run", "iteration", "group_id", "completion_id", "completion_text", "reward_format").rows()
    assert shown == [
        ("demo", 0, "0000/a", "0000/a/0", "It is 0.", 0.0),
        ("demo", 1, "0001/a", "0001/a/0", "It is 1.", 0.1),
        ("demo", 2, "0002/a", "0002/a/0", "It is 2.", 0.5),
        ("strict", 0, "0000/a", "0000/a/0", "It is 0.", 0.0),
    ]


def test_a_term_that_pays_while_correctness_stalls(repository: Repository) -> None:
    rows = ask("format", tables(repository, "demo", iterations=(0, 2)))
    assert rows.select("iteration", "term", "term_mean", "pass_rate", "pays_alone").rows() == [
        (0, "format", 0.0, 0.5, False),
        (1, "format", pytest.approx(0.1), 0.5, True),
        (2, "format", 0.5, 0.5, True),
    ]
    # Half of what format pays goes to the wrong completion, where it pays anything.
    assert rows["paid_to_wrong_fraction"].to_list() == [None, 0.5, 0.5]
    both = ask("format", tables(repository, "demo"))
    assert both["pays_alone"].to_list() == [False, True, True, False]  # in the last, the pass rate doubles too


def test_training_that_rises_alone(repository: Repository) -> None:
    rows = ask("held_out", tables(repository, "demo"))
    # Iterations 0 and 1 train for the evaluation of 1, and 2 and 3 for that of 3: (1 + 0 + 1 + 1) / 4 is 3/4.
    columns = ["iteration", "pass_rate", "held_out_pass_rate", "pass_rate_change", "rises_alone"]
    assert rows.select(columns).rows() == [(1, 0.5, 0.5, 0.0, False), (3, 0.75, 0.5, 0.25, True)]
    with pytest.raises(Unanswerable, match="no iteration among these was evaluated"):
        ask("held_out", tables(repository, "demo", iterations=(0, 0)))


def test_prompts_by_their_latest_group(repository: Repository) -> None:
    rows = ask("prompts", tables(repository, "demo", "strict"))
    # In strict the group of iteration 3 is all wrong, and 3 of the 6 before it are right.
    assert rows.select("run", "iteration", "pattern", "n_completions", "pass_rate").rows() == [
        ("strict", 3, "flipped to wrong", 8, 3 / 8)
    ]


def test_flips_are_of_completions_that_both_have(repository: Repository) -> None:
    rows = ask("flips", tables(repository, "demo", "strict"))
    # 0 and 1 are shared, in 2 one of two rewards is another, and the texts of 3 are others.
    columns = ["completion_id", "reward_before", "reward_after", "is_correct_before", "is_correct_after"]
    assert rows.select(columns).rows() == [("0002/a/0", 1.0, 0.0, True, False)]
    assert rows["completion_text"].to_list() == ["It is 2."]
    assert ask("flips", tables(repository, "demo/0002", "strict/0002")).height == 1
    assert ask("flips", tables(repository, "strict", "demo"))["reward_after"].to_list() == [1.0]


def test_gold_is_that_of_the_iteration(repository: Repository) -> None:
    """Where the answer of a prompt was edited, each completion is held against the one of its own iteration."""
    rows = ask("highest", tables(repository, "demo"))
    by_iteration = dict(rows.select("iteration", "answer").iter_rows())
    assert by_iteration == {0: "3", 1: "3", 2: "3", 3: "4"}
    assert tables(repository, "demo").distinct("prompts").collect().select("iteration", "answer").rows() == [
        (0, "3"),
        (3, "4"),
    ]


@pytest.mark.usefixtures("small_parts")
def test_parts_that_lack_the_input_are_passed_over(repository: Repository) -> None:
    """Only demo has the term `format` beside `correct`, and in strict 2 and 3 nothing can disagree."""
    rows = ask("terms", tables(repository, "strict"))
    assert set(rows["iteration"]) <= {0, 1}
    with pytest.raises(Unanswerable, match="the reward has one term"):
        ask("terms", tables(repository, "strict/2"))


def test_the_files_of_other_iterations_are_not_opened(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []

    def watched(name: str, iterations: list[Any], **options: Any) -> pl.LazyFrame:
        opened.append((name, len(iterations)))
        return scan_iterations(name, iterations, **options)

    monkeypatch.setattr(module, "scan_iterations", watched)
    ask("highest", tables(repository, "demo"), 1)
    assert opened == [("rewards", 4), ("rewards", 1), ("prompts", 1), ("rollouts", 1)]


def test_what_there_is_not_is_named(repository: Repository) -> None:
    with pytest.raises(BadInput, match=r"demo: there is no iteration from 7 to 9\. `rollbook runs` lists"):
        tables(repository, "demo", iterations=(7, 9))
    with pytest.raises(BadInput, match="there is no branch runs/other"):
        tables(repository, "other")
    with pytest.raises(BadInput, match=r"train_steps of demo/0000: its dvc\.lock has no data/train_steps\.parquet"):
        tables(repository, "demo")["train_steps"]
