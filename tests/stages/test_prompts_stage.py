"""The stage `prompts`: what it writes, and that bad input leaves what it wrote before alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ruamel.yaml import YAML

from pipeline.table_io import read_table
from pipeline.tables import PROMPTS
from stages import paths
from stages.prompts import make_prompts
from tests.stage_runs import ROOT, run_here, run_process, torch_that_breaks, write_params

SMALL = {"prompts.source.size": 400, "prompts.train_size": 60, "prompts.eval_size": 20, "evaluate.n_prompts": 20}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def outputs() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (paths.PROMPTS, paths.METRICS / "prompts.json")}


def file_source(name: str, **keys: str) -> dict[str, Any]:
    return {
        **SMALL,
        "prompts.source": {"file": f"data/sources/{name}", "prompt": "question", "answer": "answer", **keys},
    }


def test_process_writes_the_same_table_each_time_without_torch(tmp_path: Path) -> None:
    # The items of this task follow the order of a set of strings.
    write_params(tmp_path, {**SMALL, "prompts.source.reasoning_gym": [{"task": "isomorphic_strings"}]})
    ended = run_process("prompts", tmp_path, first_on_path=torch_that_breaks(tmp_path))
    assert (ended.code, ended.err) == (0, "")
    assert "prompts: 60 train and 20 eval prompts of 399 distinct ones, 1 duplicates dropped" in ended.out
    table = read_table(paths.PROMPTS, PROMPTS)
    assert table["split"].value_counts().sort("split").rows() == [("train", 60), ("eval", 20)]
    metrics = json.loads((paths.METRICS / "prompts.json").read_text())
    assert (metrics["n_rows"], metrics["n_train"], metrics["n_eval"]) == (400, 60, 20)
    assert metrics["n_unused"] == 400 - metrics["n_duplicates"] - 80
    before = paths.PROMPTS.read_bytes()
    paths.PROMPTS.unlink()
    assert run_process("prompts", tmp_path, PYTHONHASHSEED="7").code == 0
    assert paths.PROMPTS.read_bytes() == before


def test_example_of_the_readme_works_when_it_is_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (ROOT / "data/sources/README.md").read_text(encoding="utf-8")
    pasted = YAML(typ="safe", pure=True).load(readme.split("```yaml\n")[1].split("```")[0])
    write_params(tmp_path, pasted)
    shutil.copytree(ROOT / "data/sources", tmp_path / "data/sources")
    ended = run_here("prompts", make_prompts, monkeypatch, capsys)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("prompts: 48 train and 16 eval prompts of 64 distinct ones, 0 duplicates dropped")
    table = read_table(paths.PROMPTS, PROMPTS)
    assert set(table["verifier"]) == {"math"}
    (maya,) = [row for row in table.to_dicts() if row["messages"][0]["content"].startswith("Maya has 7 apples")]
    assert maya["answer"] == "12"
    assert maya["messages"][0]["content"].endswith("\nThink briefly, and end with the answer as a number.")


BAD_INPUT: dict[str, tuple[dict[str, Any], str]] = {
    "unknown task": (
        {"prompts.source.reasoning_gym": [{"task": "chian_sum"}]},
        "prompts.source.reasoning_gym.0.task: reasoning-gym has no task 'chian_sum' of its own. The nearest",
    ),
    "unknown key of a task": (
        {"prompts.source.reasoning_gym": [{"task": "chain_sum", "config": {"max_digit": 1}}]},
        "prompts.source.reasoning_gym.0.config.max_digit: unknown key of chain_sum. The nearest are 'max_digits', ",
    ),
    "too few distinct prompts": (
        {"prompts.train_size": 2000},
        "params.yaml: prompts: train_size 2000 and eval_size 20 need 2020 distinct prompts, and the source gives ",
    ),
    "file elsewhere": (
        file_source("../elsewhere.jsonl"),
        "prompts.source.file: 'data/sources/../elsewhere.jsonl' is not under data/sources/",
    ),
    "no such file": (
        file_source("god.jsonl"),
        "there is no file 'data/sources/god.jsonl'. The nearest are 'good.jsonl', ",
    ),
    "row without an answer": (
        file_source("bad.jsonl"),
        "data/sources/bad.jsonl: line 2: answer: it is null, and the verifier math needs an answer. Give one",
    ),
    "two answers": (
        file_source("two.jsonl"),
        "two.jsonl: line 2: its prompt is that of data/sources/two.jsonl: line 1, but its answer is '2', not '1'",
    ),
    "too few rows": (
        file_source("good.jsonl"),
        "params.yaml: prompts: train_size 60 and eval_size 20 need 80 distinct prompts, and the source gives 1 "
        "(of 1 rows). Add rows to the source, or lower train_size or eval_size.",
    ),
    "unknown column": (
        file_source("good.jsonl", prompt="questoin"),
        "it has no column 'questoin' (prompts.source.prompt), only ['question', 'answer']. The nearest is 'question'",
    ),
    "sizes of the split": (
        {"prompts.eval_size": 0},
        "params.yaml: prompts.eval_size: 0: Input should be greater than 0",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_leaves_the_table_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    sources = tmp_path / "data/sources"
    sources.mkdir(parents=True)
    (sources / "good.jsonl").write_text('{"question": "a", "answer": 1}\n')
    (sources / "bad.jsonl").write_text('{"question": "a", "answer": 1}\n{"question": "b", "answer": null}\n')
    (sources / "two.jsonl").write_text('{"question": "a", "answer": 1}\n{"question": "a", "answer": 2}\n')
    write_params(tmp_path, SMALL)
    assert run_here("prompts", make_prompts, monkeypatch, capsys).code == 0
    before = outputs()
    changes, message = BAD_INPUT[name]
    write_params(tmp_path, {**SMALL, **changes})
    ended = run_here("prompts", make_prompts, monkeypatch, capsys)
    assert ended.code == 1
    assert ended.err.startswith("prompts: error: ")
    assert message in ended.err
    assert "Traceback" not in ended.err
    assert (ended.record["code"], ended.record["kind"]) == (1, "bad_input")
    assert outputs() == before
    assert sorted(path.name for path in Path("data").iterdir()) == ["metrics", "prompts.parquet", "sources"]


def test_hub_out_of_reach_is_transient(tmp_path: Path) -> None:
    paths.DATA.mkdir()
    paths.PROMPTS.write_bytes(b"earlier")
    source = {"dataset": "someone/sums", "split": "train", "revision": "main", "prompt": "q", "answer": "a"}
    write_params(tmp_path, {**SMALL, "prompts.source": source})
    ended = run_process("prompts", tmp_path, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "cache"))
    assert ended.code == 75
    assert "the hub can't be reached for 'someone/sums'" in ended.err
    assert "Check the network, and try again." in ended.err
    assert (ended.record["code"], ended.record["kind"]) == (75, "transient")
    assert paths.PROMPTS.read_bytes() == b"earlier"


def test_default_params_have_enough_distinct_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_params(tmp_path, {})
    assert run_here("prompts", make_prompts, monkeypatch, capsys).code == 0
    table = read_table(paths.PROMPTS, PROMPTS)
    texts = table.select(pl.col("messages").list.first().struct.field("content")).to_series()
    assert texts.n_unique() == table.height == 2512
    assert texts.str.ends_with("=\nAnswer with just the number.").all()
