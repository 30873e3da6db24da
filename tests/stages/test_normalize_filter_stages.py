"""The stages `normalize` and `filter` on files: what they write, and what they say of files that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.params import Params
from pipeline.table_io import read_table, write_table
from pipeline.tables import ADVANTAGES, GROUPS, PROMPT_STATS, REWARDS, ROLLOUTS, SELECTION, TRAINING_SET
from stages.filter import filter_groups
from stages.normalize import normalize
from stages.runner import Result
from tests.example_tables import with_value
from tests.iteration_sample import sample_frames
from tests.stage_runs import Ended, run_here, run_process, torch_that_breaks, write_params

OUTCOMES = ["mixed", "all_wrong", "mixed", "unscorable", "all_correct"]
WORK: dict[str, Callable[[Params], Result]] = {"normalize": normalize, "filter": filter_groups}
INPUTS = {"normalize": ["rewards"], "filter": ["advantages", "rewards", "rollouts", "prompt_stats"]}
OUTPUTS = {"normalize": ["advantages"], "filter": ["groups", "training_set", "next_prompt_stats"]}

Run = Callable[[str], Ended]


def path_of(name: str, folder: Path = Path()) -> Path:
    return folder / "data" / f"{name}.parquet"


def write_inputs(folder: Path, outcomes: list[str] | None = None, iteration: int = 0) -> None:
    """Selection, rollouts and their rewards, statistics of one prompt seen before, and params."""
    write_params(folder, {})
    frames = sample_frames(iteration, outcomes or OUTCOMES)
    for table in (SELECTION, ROLLOUTS, REWARDS):
        write_table(frames[table.name], path_of(table.name, folder), table)
    seen = {"prompt_id": [f"{0:016x}"], "n_groups": [1], "n_completions": [4], "n_correct": [1]}
    seen |= {"pass_rate": [0.25], "recent_pass_rate": [0.25], "last_iteration": [0]}
    write_table(pl.DataFrame(seen, schema=PROMPT_STATS.schema), path_of("prompt_stats", folder), PROMPT_STATS)


def edit(name: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    """Change a table as a person would, past every check."""
    change(pl.read_parquet(path_of(name))).write_parquet(path_of(name))


def outputs(stage: str, folder: Path = Path()) -> dict[str, bytes]:
    return {name: path_of(name, folder).read_bytes() for name in OUTPUTS[stage] if path_of(name, folder).exists()}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Both stages once, in the current directory; gives a function that runs one again."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)

    def run_stage_here(stage: str) -> Ended:
        return run_here(stage, WORK[stage], monkeypatch, capsys)

    for stage in WORK:
        assert run_stage_here(stage).code == 0
    return run_stage_here


def metrics(stage: str, folder: Path = Path()) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / f"data/metrics/{stage}.json").read_text())
    return value


def test_as_processes_twice_the_same_bytes_and_no_torch(tmp_path: Path) -> None:
    contents = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        write_inputs(folder)
        for stage in WORK:
            ended = run_process(stage, folder, first_on_path=torch_that_breaks(folder / stage))
            assert (ended.code, ended.err) == (0, "")
            assert metrics(stage, folder)["seconds"] > 0
        contents.append({stage: outputs(stage, folder) for stage in WORK})
    assert contents[0] == contents[1]
    assert [len(files) for files in contents[0].values()] == [1, 3]


def test_advantages_have_a_row_for_each_reward(run: Run) -> None:
    rewards, advantages = read_table(path_of("rewards"), REWARDS), read_table(path_of("advantages"), ADVANTAGES)
    shared = ["iteration", "completion_id", "group_id", "prompt_id", "reward"]
    assert advantages.select(shared).equals(rewards.select(shared))
    # Rewards 1, 0, 0, 1: mean 1/2, standard deviation sqrt(4 * 1/4 / 3) = 0.57735, advantages -+ 0.5 / 0.57735.
    mixed = advantages.filter(pl.col("prompt_id") == f"{0:016x}")
    assert mixed["advantage"].to_list() == pytest.approx([0.866025, -0.866025, -0.866025, 0.866025], abs=1e-6)
    # Of the unscorable group one completion has a reward, and no other to compare it with.
    unscorable = advantages.filter(pl.col("prompt_id") == f"{3:016x}")
    assert unscorable["advantage"].to_list() == [None, None, None, 0.0]
    assert {key: metrics("normalize")[key] for key in ("n_advantages", "n_null")} == {"n_advantages": 17, "n_null": 3}
    assert metrics("normalize")["advantage_abs_mean"] == pytest.approx(8 * 0.866025 / 17, abs=1e-6)


def test_the_filter_keeps_mixed_groups_and_says_why_others_go(run: Run) -> None:
    groups = read_table(path_of("groups"), GROUPS)
    assert groups["outcome"].to_list() == OUTCOMES
    assert groups["kept"].to_list() == [True, False, True, False, False]
    assert groups["n_correct"].to_list() == [2, 0, 2, 0, 4]
    assert groups["n_unscorable"].to_list() == [0, 0, 0, 3, 0]
    assert groups["reason"].to_list() == [
        "mixed outcomes",
        "all wrong: nothing to learn from",
        "mixed outcomes",
        "fewer than two scorable completions",
        "all correct: nothing to learn from",
    ]
    found = metrics("filter")
    assert (found["n_groups"], found["n_kept"], found["n_training_completions"]) == (5, 2, 8)
    assert found["outcomes"] == {"all_correct": 1, "all_wrong": 1, "mixed": 2, "unscorable": 1, "unverified": 0}
    assert sum(found["dropped_reasons"].values()) == 3


def test_the_training_set_holds_the_completions_of_kept_groups(run: Run) -> None:
    training_set = read_table(path_of("training_set"), TRAINING_SET)
    rollouts = read_table(path_of("rollouts"), ROLLOUTS)
    advantages = read_table(path_of("advantages"), ADVANTAGES)
    kept = rollouts.filter(pl.col("prompt_id").is_in([f"{0:016x}", f"{2:016x}"]))
    shared = [name for name in TRAINING_SET.schema if name in ROLLOUTS.schema]
    assert training_set.select(shared).equals(kept.select(shared))
    assert training_set["is_truncated"].to_list() == (kept["finish_reason"] == "length").to_list()
    assert training_set.select("completion_id", "advantage").equals(
        advantages.join(kept, on="completion_id", how="semi").select("completion_id", "advantage")
    )


def test_statistics_go_on_from_those_before(run: Run) -> None:
    stats = {row["prompt_id"]: row for row in read_table(path_of("next_prompt_stats"), PROMPT_STATS).to_dicts()}
    assert len(stats) == 5
    # 1 of 4 before and 2 of 4 now: 3 of 8 in all; recently 0.5 * 0.25 + 0.5 * 0.5.
    assert stats[f"{0:016x}"] == {
        "prompt_id": f"{0:016x}",
        "n_groups": 2,
        "n_completions": 8,
        "n_correct": 3,
        "pass_rate": 0.375,
        "recent_pass_rate": 0.375,
        "last_iteration": 0,
    }
    assert stats[f"{4:016x}"]["recent_pass_rate"] == 1.0


def test_groups_beyond_the_target_are_surplus(run: Run, tmp_path: Path) -> None:
    stats = path_of("next_prompt_stats").read_bytes()
    edit("selection", lambda frame: frame.with_columns(prompt_id=pl.col("prompt_id").reverse()))
    write_params(tmp_path, {"filter.target_groups": 1})
    assert ", 4 completions (1 all_correct, 1 all_wrong, 2 mixed, 1 unscorable), 1 surplus (" in run("filter").out
    groups = read_table(path_of("groups"), GROUPS)
    assert groups["kept"].to_list() == [False, False, True, False, False]  # the third comes before the first
    assert groups["reason"][0] == "surplus: 1 kept before it"
    assert read_table(path_of("training_set"), TRAINING_SET)["group_id"].unique().to_list() == [f"0000/{2:016x}"]
    assert path_of("next_prompt_stats").read_bytes() == stats
    found = metrics("filter")
    assert {key: found[key] for key in ("n_groups", "n_kept", "n_surplus", "target_groups", "n_missing")} == {
        "n_groups": 5,
        "n_kept": 1,
        "n_surplus": 1,
        "target_groups": 1,
        "n_missing": 0,
    }
    assert found["signal_fraction"] == 0.4  # (1 + 1) / 5
    assert found["dropped_reasons"]["surplus: 1 kept before it"] == 1


def test_fewer_groups_than_wanted_go_on_and_are_counted(run: Run, tmp_path: Path) -> None:
    write_params(tmp_path, {"filter.target_groups": 3})
    assert ", 1 unscorable), 1 fewer than wanted (" in run("filter").out
    assert (metrics("filter")["n_kept"], metrics("filter")["n_missing"]) == (2, 1)


def test_a_selection_of_other_prompts_is_refused(run: Run) -> None:
    before = outputs("filter")
    edit("selection", lambda frame: frame.filter(pl.col("prompt_id") != f"{3:016x}"))
    ended = run("filter")
    assert (ended.code, ended.record["kind"]) == (1, "bad_input")
    problem = f"it lacks prompt_id '{3:016x}', which data/rollouts.parquet has"
    assert ended.record["message"].startswith(f"data/selection.parquet: {problem}. Run `dvc repro`")
    assert outputs("filter") == before


def test_an_iteration_in_which_no_group_is_kept_goes_on(run: Run, tmp_path: Path) -> None:
    write_inputs(tmp_path, ["all_wrong", "all_correct"])
    for stage in WORK:
        assert run(stage).code == 0
    assert read_table(path_of("training_set"), TRAINING_SET).height == 0
    found = metrics("filter")
    assert (found["n_groups"], found["n_kept"], found["n_training_completions"]) == (2, 0, 0)
    assert run("filter").out.startswith("filter: 0 of 2 groups kept, 0 completions (1 all_correct, 1 all_wrong) (")


def test_rewards_without_rows_make_advantages_without_rows(run: Run) -> None:
    write_table(REWARDS.empty(), path_of("rewards"), REWARDS)
    assert run("normalize").code == 0
    assert read_table(path_of("advantages"), ADVANTAGES).height == 0
    assert metrics("normalize")["advantage_abs_mean"] is None


def test_many_batches_are_as_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: pl.read_parquet(path_of(name)) for stage in OUTPUTS for name in OUTPUTS[stage]}
    monkeypatch.setattr("pipeline.table_io.ROWS_PER_ROW_GROUP", 3)
    for stage in WORK:
        assert run(stage).code == 0
    for name, frame in before.items():
        assert pl.read_parquet(path_of(name)).equals(frame)


ANY_ID = f"0000/{2:016x}/1"
DISAGREEMENTS = [
    # the table that is changed, the file that lacks a completion, the file that has it
    ("a rollout without a reward", "rewards", False, "rewards", "rollouts"),
    ("a rollout without an advantage", "advantages", False, "advantages", "rollouts"),
    ("a reward without a rollout", "rewards", True, "rollouts", "rewards"),
    ("an advantage without a rollout", "advantages", True, "rollouts", "advantages"),
]


@pytest.mark.parametrize(
    ("changed", "is_added", "lacking", "having"),
    [case[1:] for case in DISAGREEMENTS],
    ids=[c[0] for c in DISAGREEMENTS],
)
def test_tables_that_disagree_are_named(changed: str, is_added: bool, lacking: str, having: str, run: Run) -> None:
    before = outputs("filter")
    other = pl.lit(ANY_ID + "1").alias("completion_id")
    one = pl.col("completion_id") == ANY_ID

    def change(frame: pl.DataFrame) -> pl.DataFrame:
        if not is_added:
            return frame.filter(~one)
        return pl.concat([frame, frame.filter(one).with_columns(other)]).sort("completion_id")

    edit(changed, change)
    ended = run("filter")
    assert (ended.code, ended.record["kind"]) == (1, "bad_input")
    completion = ANY_ID + "1" if is_added else ANY_ID
    problem = f"it lacks completion_id '{completion}', which data/{having}.parquet has"
    assert ended.record["message"].startswith(f"data/{lacking}.parquet: {problem}. Run `dvc repro`")
    assert outputs("filter") == before


def set_nan(frame: pl.DataFrame) -> pl.DataFrame:
    """NaN in the last row of the first column of numbers that has a place for it."""
    if "sampling_logprobs" in frame.columns:
        n_tokens = len(frame["sampling_logprobs"][-1])
        return with_value(frame, frame.height - 1, "sampling_logprobs", [float("nan")] * n_tokens)
    name = next(name for name in ("advantage", "reward", "pass_rate") if name in frame.columns)
    return with_value(frame, frame.height - 1, name, float("nan"))


def without_key(frame: pl.DataFrame) -> pl.DataFrame:
    return with_value(frame, 0, "completion_id" if "completion_id" in frame.columns else "prompt_id", None)


WRONG: list[tuple[str, Callable[[pl.DataFrame], pl.DataFrame], str]] = [
    ("a number that is none", set_nan, "not finite"),
    ("a row twice", lambda frame: pl.concat([frame, frame[-1]]), "is the same in two rows, and it is the key"),
    ("no key", without_key, "_id is null: (None,)"),
    ("a type", lambda frame: frame.with_columns(pl.col("prompt_id").cast(pl.Categorical)), "is Categorical"),
    ("a column less", lambda frame: frame.drop("prompt_id"), "column 'prompt_id' is missing; "),
    ("a column more", lambda frame: frame.with_columns(note=pl.lit("x")), "column 'note' is not a column of "),
]
CASES = [(stage, name) for stage, names in INPUTS.items() for name in names]


@pytest.mark.parametrize(("change", "problem"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
@pytest.mark.parametrize(("stage", "name"), CASES)
def test_a_table_that_breaks_a_rule_is_named(
    stage: str, name: str, change: Callable[[pl.DataFrame], pl.DataFrame], problem: str, run: Run
) -> None:
    before = outputs(stage)
    edit(name, change)
    ended = run(stage)
    assert (ended.code, ended.record["kind"]) == (1, "bad_input")
    assert ended.record["message"].startswith(f"data/{name}.parquet: ")
    assert problem in ended.record["message"]
    assert "Traceback" not in ended.err
    assert outputs(stage) == before


@pytest.mark.parametrize(("stage", "name"), [*CASES, ("filter", "selection")])
def test_a_missing_or_damaged_table_is_named(stage: str, name: str, run: Run) -> None:
    before = outputs(stage)
    content = path_of(name).read_bytes()
    for damaged, problem in (
        (None, f"there is no such file, and it holds the table {name}"),
        (b"", "it can't be read as Parquet"),
        (content[: len(content) // 2], "it can't be read as Parquet"),
        (b"completion_id,reward\nx,1\n", "it can't be read as Parquet"),
    ):
        path_of(name).unlink(missing_ok=True)
        if damaged is not None:
            path_of(name).write_bytes(damaged)
        ended = run(stage)
        assert (ended.code, ended.record["kind"]) == (1, "bad_input")
        assert ended.record["message"].startswith(f"data/{name}.parquet: {problem}")
        assert outputs(stage) == before


def test_rollouts_without_rows_are_refused(run: Run) -> None:
    before = outputs("filter")
    edit("rollouts", lambda frame: frame.clear())
    ended = run("filter")
    assert ended.record["message"].startswith(
        "data/rollouts.parquet: it has no rows, and rollouts needs at least one. "
    )
    assert outputs("filter") == before


def test_rollouts_out_of_order_are_refused(run: Run) -> None:
    edit("rollouts", lambda frame: frame.reverse())
    ended = run("filter")
    assert (ended.code, ended.record["kind"]) == (1, "bad_input")
    assert "data/rollouts.parquet: row 0: completion_id is out of place" in ended.record["message"]
