"""The stage `select`: what it writes, and that bad input leaves what it wrote before alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.table_io import read_table, write_table
from pipeline.tables import PROMPT_STATS, PROMPTS, SELECTION
from stages import paths
from stages.select import select
from tests.stage_runs import run_here, run_process, torch_that_breaks, write_params


def write_prompts(n_train: int = 30, n_eval: int = 5) -> None:
    n_prompts = n_train + n_eval
    frame = pl.DataFrame(
        {
            "prompt_id": [f"{i:016x}" for i in range(n_prompts)],
            "split": ["train"] * n_train + ["eval"] * n_eval,
            "source": ["made up"] * n_prompts,
            "messages": [[{"role": "user", "content": str(i)}] for i in range(n_prompts)],
            "answer": ["1"] * n_prompts,
            "verifier": ["math"] * n_prompts,
            "metadata": [None] * n_prompts,
        },
        schema=PROMPTS.schema,
    )
    write_table(frame, paths.PROMPTS, PROMPTS)


def write_stats(n_groups: list[int]) -> None:
    rows = {
        "prompt_id": [f"{i:016x}" for i in range(len(n_groups))],
        "n_groups": n_groups,
        "n_completions": [8 * n for n in n_groups],
        "n_correct": [4 * n for n in n_groups],
        "pass_rate": [0.5] * len(n_groups),
        "recent_pass_rate": [0.5] * len(n_groups),
        "last_iteration": [0] * len(n_groups),
    }
    write_table(pl.DataFrame(rows, schema=PROMPT_STATS.schema), paths.PROMPT_STATS, PROMPT_STATS)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_prompts()
    write_stats([])
    write_params(tmp_path, {})


def test_process_draws_train_prompts_without_torch(tmp_path: Path) -> None:
    ended = run_process("select", tmp_path, first_on_path=torch_that_breaks(tmp_path))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("select: 16 prompts, epoch 0 (")
    selection = read_table(paths.SELECTION, SELECTION)
    assert selection["prompt_id"].n_unique() == 16
    assert selection["prompt_id"].max() < f"{30:016x}"  # type: ignore[operator]
    metrics = json.loads((paths.METRICS / "select.json").read_text())
    assert (metrics["n_prompts"], metrics["epoch_min"], metrics["epoch_max"]) == (16, 0, 0)
    before = paths.SELECTION.read_bytes()
    assert run_process("select", tmp_path, PYTHONHASHSEED="7").code == 0
    assert paths.SELECTION.read_bytes() == before


def test_draw_goes_over_the_end_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_stats([1] * 20)
    write_params(tmp_path, {"iteration": 3, "parent": "0" * 40})
    ended = run_here("select", select, monkeypatch, capsys)
    assert ended.out.startswith("select: 16 prompts, epochs 0 to 1 (")
    selection = read_table(paths.SELECTION, SELECTION)
    assert set(selection["iteration"]) == {3}
    assert selection["reason"].to_list() == ["epoch 0"] * 10 + ["epoch 1"] * 6
    metrics = json.loads((paths.METRICS / "select.json").read_text())
    assert (metrics["epoch_min"], metrics["epoch_max"]) == (0, 1)


def test_difficulty_counts_its_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_stats([1] * 20)
    changes = {"select.strategy": "difficulty", "rollout.oversample": 1.25, "iteration": 3, "parent": "0" * 40}
    write_params(tmp_path, changes)
    assert run_here("select", select, monkeypatch, capsys).code == 0
    selection = read_table(paths.SELECTION, SELECTION)
    assert selection["reason"].to_list() == ["unseen"] * 10 + ["signal p=0.50"] * 10  # 1.25 x 16 = 20
    metrics = json.loads((paths.METRICS / "select.json").read_text())
    assert metrics["n_by_rule"] == {"unseen": 10, "signal": 10}
    assert (metrics["strategy"], metrics["n_prompts"], metrics["epoch_min"], metrics["epoch_max"]) == (
        "difficulty",
        20,
        0,
        1,
    )


def nothing() -> None:
    pass


def damaged() -> None:
    content = bytearray(paths.PROMPTS.read_bytes())
    paths.PROMPTS.write_bytes(content[: len(content) // 2])


def another_type() -> None:
    frame = pl.read_parquet(paths.PROMPT_STATS).with_columns(pl.col("n_groups").cast(pl.Int64))
    frame.write_parquet(paths.PROMPT_STATS)


def twins() -> None:
    frame = pl.read_parquet(paths.PROMPTS)
    pl.concat([frame, frame.head(1)]).write_parquet(paths.PROMPTS)


BAD_INPUT: dict[str, tuple[Callable[[], object], dict[str, Any], str]] = {
    "too few train prompts for oversampling": (
        nothing,
        {"rollout.oversample": 2.0},
        "params.yaml: select.n_prompts: 32 prompts are needed, and the train split has 30. Lower it or rollout.",
    ),
    "too few train prompts": (
        nothing,
        {"select.n_prompts": 31},
        "params.yaml: select.n_prompts: 31 prompts are needed, and the train split has 30. Lower it or rollout.",
    ),
    "no prompts": (
        paths.PROMPTS.unlink,
        {},
        "data/prompts.parquet: there is no such file, and it holds the table prompts",
    ),
    "no statistics": (paths.PROMPT_STATS.unlink, {}, "data/prompt_stats.parquet: there is no such file"),
    "damaged prompts": (damaged, {}, "data/prompts.parquet: it can't be read as Parquet"),
    "statistics of another type": (
        another_type,
        {},
        "data/prompt_stats.parquet: column 'n_groups' is Int64, not UInt32",
    ),
    "a prompt twice": (twins, {}, "data/prompts.parquet: row 0: prompt_id is the same in two rows"),
    "unknown key": (
        nothing,
        {"select.n_prompt": 3},
        "params.yaml: select.n_prompt: unknown key. The nearest known key is",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_leaves_the_selection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run_here("select", select, monkeypatch, capsys).code == 0
    before = paths.SELECTION.read_bytes()
    break_it, changes, message = BAD_INPUT[name]
    break_it()
    write_params(tmp_path, changes)
    ended = run_here("select", select, monkeypatch, capsys)
    assert ended.code == 1
    assert message in ended.err
    assert "Traceback" not in ended.err
    assert (ended.record["code"], ended.record["kind"]) == (1, "bad_input")
    assert paths.SELECTION.read_bytes() == before
