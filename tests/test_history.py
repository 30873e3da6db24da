from __future__ import annotations

import shutil
from collections.abc import Sequence
from copy import copy
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

from pipeline.errors import BadInput
from pipeline.history import scan
from pipeline.tables import EVAL, PROMPTS, REWARDS, TABLES
from pipeline.versioning.lockfile import Output
from pipeline.versioning.objects import object_path
from pipeline.versioning.repository import Repository
from tests.example_tables import example
from tests.versioning.fabricated import REWARDS_PATH, add_file, add_table, import_run, init, lock_text

PROMPTS_PATH, EVAL_PATH = "data/prompts.parquet", "data/eval.parquet"
INDEX = ["run", "iteration", "commit"]


def rewards_of(iteration: int, **terms: float) -> pl.DataFrame:
    """Two completions, whose rewards tell the iteration."""
    return pl.DataFrame(
        {
            "iteration": [iteration] * 2,
            "completion_id": [f"{iteration:04d}/p/0", f"{iteration:04d}/p/1"],
            "group_id": [f"{iteration:04d}/p"] * 2,
            "prompt_id": ["p", "p"],
            "reward": [float(iteration), iteration + 0.5],
            "is_correct": [True, None],
            "extracted_answer": ["3", None],
            **{f"reward_{name}": [value] * 2 for name, value in terms.items()},
            "score_error": [None, None],
        },
        schema={
            **dict(list(REWARDS.schema.items())[:-1]),
            **{f"reward_{name}": pl.Float64 for name in terms},
            "score_error": pl.String,
        },
    )


PROMPT_ROWS = pl.DataFrame(
    [("p", "train", "file", [{"role": "user", "content": "1 + 2"}], "3", "math", None)],
    schema=PROMPTS.schema,
    orient="row",
)
EVERY_REWARD = [(f"{number:04d}/p/{index}", number + index / 2) for number in range(3) for index in range(2)]


class History:
    """A repository in `folder`: `demo` has iterations 0 to 2, and `strict` leaves it at 1, with its own 2 and 3."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        init(folder)
        shared = (
            add_table(self.cache_dir, PROMPTS_PATH, PROMPT_ROWS, PROMPTS, folder),
            add_table(self.cache_dir, EVAL_PATH, EVAL.empty(), EVAL, folder),
        )
        terms = [{}, {"length": 0.25}, {"correct": 1.0}]
        self.rewards = [self.add_rewards(rewards_of(number, **terms[number])) for number in range(3)]
        self.commits = import_run(folder, "demo", [lock_text([output, *shared]) for output in self.rewards])
        strict = [self.add_rewards(rewards_of(number).with_columns(pl.col("reward") + 10)) for number in (2, 3)]
        locks = [lock_text([output, *shared]) for output in strict]
        self.commits_of_strict = import_run(folder, "strict", locks, start="demo/0001", first=2)

    @property
    def cache_dir(self) -> Path:
        return self.folder / ".dvc/cache"

    def copy(self, folder: Path) -> History:
        """One to be changed, in `folder`."""
        copied = copy(self)
        copied.folder = Path(shutil.copytree(self.folder, folder))
        return copied

    def add_rewards(self, rows: pl.DataFrame) -> Output:
        return add_table(self.cache_dir, REWARDS_PATH, rows, REWARDS, self.folder)

    def scan(
        self, table: str, runs: Sequence[str] = ("demo",), iterations: tuple[int, int] | None = None
    ) -> pl.LazyFrame:
        return scan(table, runs, repo=Repository(self.folder), iterations=iterations)

    def object(self, number: int) -> Path:
        return object_path(self.cache_dir, self.rewards[number].md5)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """One that no test changes."""
    return History(tmp_path_factory.mktemp("history") / "a [strange] *folder?")


@pytest.fixture
def own(history: History, tmp_path: Path) -> History:
    """One of the test's own."""
    return history.copy(tmp_path / "own")


def test_the_rows_of_every_iteration_say_where_they_are_from(history: History) -> None:
    rows = history.scan("rewards").collect()
    assert rows.columns[:3] == INDEX
    assert rows.schema["iteration"] == pl.UInt32
    assert rows.select("completion_id", "reward").rows() == EVERY_REWARD
    assert rows.select(INDEX).unique(maintain_order=True).rows() == [
        ("demo", number, commit) for number, commit in enumerate(history.commits)
    ]


def test_a_term_that_an_iteration_lacks_is_null(history: History) -> None:
    rows = history.scan("rewards").collect()
    assert rows.columns[-3:] == ["reward_correct", "reward_length", "score_error"]
    assert rows["reward_correct"].to_list() == [None, None, None, None, 1.0, 1.0]
    assert rows["reward_length"].to_list() == [None, None, 0.25, 0.25, None, None]


def test_an_object_that_iterations_share_counts_for_each(history: History) -> None:
    prompts = history.scan("prompts").collect()
    assert prompts["iteration"].to_list() == [0, 1, 2]
    assert_frame_equal(prompts.drop(INDEX), pl.concat([PROMPT_ROWS] * 3))
    both = history.scan("prompts", ["demo", "strict"]).collect()
    assert both.select("run", "iteration").rows() == [
        *(("demo", number) for number in range(3)),
        *(("strict", number) for number in range(4)),
    ]


def test_a_table_without_rows_keeps_its_columns(history: History) -> None:
    rows = history.scan("eval").collect()
    assert rows.height == 0
    assert rows.schema == {name: {**EVAL.schema, "run": pl.String, "commit": pl.String}[name] for name in rows.columns}
    assert rows.columns == [*INDEX, *(name for name in EVAL.schema if name != "iteration")]
    nothing = history.scan("eval", iterations=(7, 9)).collect()
    assert nothing.schema == rows.schema


def test_a_run_has_what_it_took_over_and_then_its_own(history: History) -> None:
    rows = history.scan("rewards", ["strict"]).collect()
    assert rows["run"].unique().to_list() == ["strict"]
    assert rows["reward"].to_list() == [0.0, 0.5, 1.0, 1.5, 12.0, 12.5, 13.0, 13.5]
    expected = [*history.commits[:2], *history.commits_of_strict]
    assert rows["commit"].unique(maintain_order=True).to_list() == expected


@pytest.mark.parametrize(
    ("runs", "iterations", "expected"),
    [
        (["demo"], (1, 1), [("demo", 1)]),
        (["demo"], (1, 9), [("demo", 1), ("demo", 2)]),
        (["demo/0002", "demo/0"], None, [("demo", 2), ("demo", 0)]),
        (["demo/2", "demo"], None, [("demo", 2), ("demo", 0), ("demo", 1)]),
        (["strict/2..3", "demo/0001..0009"], None, [("strict", 2), ("strict", 3), ("demo", 1), ("demo", 2)]),
        (["strict/0003", "demo/0001"], None, [("strict", 3), ("demo", 1)]),
        ([], None, []),
    ],
)
def test_iterations_are_chosen(
    history: History, runs: list[str], iterations: tuple[int, int] | None, expected: list[tuple[str, int]]
) -> None:
    rows = history.scan("rewards", runs, iterations).select("run", "iteration").unique(maintain_order=True).collect()
    assert rows.rows() == expected


def test_predicates_and_projections_reach_the_scan(history: History) -> None:
    query = history.scan("rewards").filter(pl.col("reward") > 1).group_by("iteration").agg(pl.col("reward").mean())
    plan = query.explain()
    scanned = plan[plan.index("Parquet SCAN") :].splitlines()[:3]
    assert scanned[1].strip().startswith("PROJECT 1/")
    assert 'SELECTION: col("reward") > 1.0' in scanned[2]
    assert dict(query.collect().iter_rows()) == {1: 1.5, 2: 2.25}
    assert history.scan("rewards").select(pl.len()).collect().item() == 6


def test_nothing_is_checked_out_or_copied(history: History) -> None:
    before = sorted(history.folder.rglob("*"))
    history.scan("rewards", ["demo", "strict"]).collect()
    assert sorted(history.folder.rglob("*")) == before


@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_scanned(own: History, name: str) -> None:
    written = example(TABLES[name])
    output = add_table(own.cache_dir, f"data/{name}.parquet", written, TABLES[name], own.folder)
    pipeline = f"stages: {{one: {{cmd: one, outs: [{output.path}]}}}}"
    import_run(own.folder, "one", [lock_text([output], pipeline)], pipeline=pipeline)
    rows = own.scan(name, ["one"]).collect()
    assert_frame_equal(rows.drop(INDEX), written.drop("iteration", strict=False))


@pytest.mark.parametrize(
    ("table", "runs", "message"),
    [
        ("reward", ["demo"], r"table reward: there is no such table\. Did you mean rewards"),
        ("xyz", ["demo"], r"The tables are prompts, prompt_stats, .*eval"),
        ("rewards", ["dmeo"], r"run dmeo: there is no branch runs/dmeo; runs here: demo, strict"),
        ("rewards", ["demo/0007"], r"demo/0007: run demo has no such iteration; it has 0 to 2"),
        ("rewards", ["demo/last"], r"demo/last: it is no run or iterations of one"),
        ("rollouts", ["demo"], r"rollouts of demo/0000: its dvc\.lock has no data/rollouts\.parquet"),
    ],
)
def test_what_there_is_not_is_named(history: History, table: str, runs: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        history.scan(table, runs)


def test_a_missing_object_is_named_with_what_brings_it(own: History) -> None:
    own.object(1).unlink()
    with pytest.raises(BadInput) as refused:
        own.scan("rewards", ["strict"])
    md5 = own.rewards[1].md5
    assert str(refused.value) == (
        f"rewards of strict/0001: DVC's cache lacks its object {md5}. Get it with `rollbook fetch strict/0001`."
    )
    assert own.scan("rewards", ["demo"], (2, 2)).collect().height == 2


def test_a_file_cut_short_or_damaged_is_named(own: History) -> None:
    file = own.object(1)
    content = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(content[:-9])
    with pytest.raises(BadInput, match=r"rewards of demo/0001: .* has 2,\d+ bytes in place of 2,\d+: it is damaged"):
        own.scan("rewards")
    file.write_bytes(b"\0" * len(content))
    with pytest.raises(BadInput, match=r"rewards of demo/0001 \(.*\): it can't be read as Parquet .*rollbook fetch"):
        own.scan("rewards")


def test_a_file_of_another_schema_is_named(own: History) -> None:
    table = pq.read_table(own.object(0))
    for changed, message in (
        (
            table.replace_schema_metadata({"schema_version": "7"}),
            r"its schema_version is '7', and this release reads 1",
        ),
        (table.drop_columns(["is_correct"]), r"column 'is_correct' is missing"),
    ):
        file = own.folder / "other.parquet"
        pq.write_table(changed, file)
        name = f"run{len(message)}"
        import_run(own.folder, name, [lock_text([add_file(own.cache_dir, REWARDS_PATH, file.read_bytes())])])
        with pytest.raises(BadInput, match=rf"rewards of {name}/0000 \(.*\): {message}"):
            own.scan("rewards", [name])
