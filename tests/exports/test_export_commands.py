from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.versioning.lockfile import parse_lock
from pipeline.versioning.objects import object_path
from tests.sample_run import SampleRun
from tests.stage_runs import ROOT


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SampleRun:
    return SampleRun(tmp_path_factory.mktemp("exports") / "project")


@pytest.fixture(autouse=True)
def _in_the_repository(run: SampleRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.root)
    monkeypatch.setattr("sys.argv", ["rollbook", "export", "..."])


def export(*arguments: str | Path, exit_code: int = 0) -> str:
    done = CliRunner().invoke(app, ["export", *map(str, arguments)])
    assert done.exit_code == exit_code, done.output
    return done.output


def test_pairs_of_a_run_with_their_provenance(run: SampleRun, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    # Each of three iterations has six mixed groups.
    assert "18 pairs of demo/0000 to demo/0002" in export("pairs", "demo", "--output", file)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 18
    assert rows[0]["prompt"][0]["role"] == "user"
    assert rows[0]["chosen"] == [{"role": "assistant", "content": "The answer to the problem is 5."}]
    assert (rows[0]["chosen_id"], rows[0]["rejected_id"]) == ("0000/0000000000000000/0", "0000/0000000000000000/1")
    beside = json.loads((tmp_path / "pairs.jsonl.provenance.json").read_text(encoding="utf-8"))
    assert [source["commit"] for source in beside["sources"]] == run.commits
    assert beside["n_rows"] == 18
    assert beside["files"] == {"pairs.jsonl": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert set(beside["sources"][0]["md5"]) == {"prompts", "rollouts", "rewards", "advantages", "groups"}


def test_the_same_export_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.jsonl", "other.jsonl"):
        export("sft", "demo", "--output", tmp_path / name)
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "other.jsonl").read_bytes()


def test_a_filter_names_any_column(tmp_path: Path) -> None:
    file = tmp_path / "best.parquet"
    export("sft", "demo/0001", "--output", file, "--best", "4", "--where", "n_tokens < 5 and outcome = 'mixed'")
    rows = pl.read_parquet(file)
    # Completion 0 of group g has 2 + g tokens and is correct, completion 3 has 11 + g: of the mixed groups 0, 1, 2.
    assert rows["completion_id"].to_list() == [f"0001/{group:016x}/0" for group in range(3)]


def test_a_folder_that_datasets_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import load_dataset

    folder = tmp_path / "rollouts"
    export("dataset", "demo/0001..0002", "--output", folder)
    loaded = load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.num_rows == 128
    assert loaded[0]["completion_id"] == "0001/0000000000000000/0"
    assert loaded[0]["prompt"][0]["role"] == "user"
    card = (folder / "README.md").read_text(encoding="utf-8")
    for column in loaded.column_names:
        assert f"| {column} | " in card
    assert "from 2 iterations: demo/0001 to demo/0002" in card
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    assert set(provenance["files"]) == {"data/train-00000-of-00001.parquet"}


def test_damaged_tables_are_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SampleRun(tmp_path / "project")
    lock = parse_lock(subprocess.check_output(["git", "show", "demo/0001:dvc.lock"], cwd=run.root, text=True))
    file = object_path(run.repository.cache_dir, lock["data/rollouts.parquet"].md5)
    content = bytearray(file.read_bytes())
    content[300] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)
    monkeypatch.chdir(run.root)
    assert "it is damaged. Remove it, then" in export("pairs", "demo", "--output", tmp_path / "x.jsonl", exit_code=1)
    export("pairs", "demo/0002", "--output", tmp_path / "x.jsonl")


@pytest.mark.parametrize(("command", "name"), [("sft", "x.jsonl"), ("sft", "x.parquet"), ("dataset", "folder")])
def test_a_full_disk_is_an_error_of_one_line(run: SampleRun, tmp_path: Path, command: str, name: str) -> None:
    rollbook = [sys.executable, "-m", "pipeline.cli", "export", command, "demo", "--output", str(tmp_path / name)]
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", *rollbook]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(limited, cwd=run.root, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("rollbook: error: ")
    assert "ree some space" in line
    assert list(tmp_path.iterdir()) == []


def test_the_iteration_in_data_is_exported_as_one_of_a_run(run: SampleRun, tmp_path: Path) -> None:
    run.lay_out(1)
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    assert "pairs of iteration 1 in data/; here.parquet" in export("pairs", "--output", here)
    export("pairs", "demo/0001", "--output", there)
    rows, others = (pl.read_parquet(file) for file in (here, there))
    assert rows.drop("run", "commit").equals(others.drop("run", "commit"))
    assert (set(rows["run"]), set(rows["commit"])) == ({"data"}, {None})
    sources = [json.loads(Path(f"{file}.provenance.json").read_text("utf-8"))["sources"] for file in (here, there)]
    assert sources[0][0]["md5"] == sources[1][0]["md5"]  # the same files
    assert sources[0][0]["commit"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pairs", "demo", "--output", "pairs.csv"], "its name ends in neither .jsonl nor .parquet"),
        (["sft", "demo", "--output", "x.jsonl", "--where", "nope > 1"], 'unable to find column "nope"'),
        (["sft", "demo", "--output", "x.jsonl", "--where", "nope >"], "it can't be read"),
        (["pairs", "nobody", "--output", "x.jsonl"], "there is no branch runs/nobody"),
        (["dataset", "demo", "--output", "."], "it exists"),
        (["pairs", "demo", "--output", ".git/HEAD/x.jsonl"], "Free some space, or write somewhere else"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(run: SampleRun, arguments: list[str], said: str) -> None:
    before = set(run.root.iterdir())
    assert said in export(*arguments, exit_code=1)
    assert set(run.root.iterdir()) == before
