"""Iterations through real `dvc` and `git`, on a tiny random model."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import polars as pl
import pytest

from pipeline.table_io import read_table
from pipeline.tables import TABLES, Table
from tests.end_to_end.checkout import Checkout, make_model
from tests.test_docs import code_blocks, section

pytestmark = pytest.mark.slow

STAGES = [
    "prompts",
    "base",
    "start",
    "select",
    "rollout",
    "score",
    "normalize",
    "filter",
    "update",
    "evaluate",
    "report",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def first(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout in which iteration 0 was run and committed."""
    checkout = Checkout(tmp_path_factory.mktemp("first"), model)
    out = checkout.dvc("repro")
    for stage in STAGES:
        assert f"Running stage '{stage}'" in out
    checkout.commit("iteration 0")
    return checkout


def read(checkout: Checkout, name: str, table: Table | None = None) -> pl.DataFrame:
    return read_table(checkout.folder / "data" / f"{name}.parquet", table or TABLES[name])


def test_every_table_obeys_its_schema_and_no_completion_is_lost(first: Checkout) -> None:
    tables = {name: read(first, name) for name in TABLES}
    completions = set(tables["rollouts"]["completion_id"])
    assert len(completions) == 4 * 4
    assert set(tables["rewards"]["completion_id"]) == completions
    assert set(tables["advantages"]["completion_id"]) == completions
    assert tables["groups"].height == 4
    assert tables["groups"]["outcome"].to_list() == ["unverified"] * 4
    kept = tables["groups"].filter("kept")
    assert kept.height > 0
    assert tables["training_set"].height == 4 * kept.height
    assert set(tables["token_logprobs"]["completion_id"]) == set(tables["training_set"]["completion_id"])
    assert tables["train_steps"].height == min(2, kept.height)
    assert read(first, "next_prompt_stats", TABLES["prompt_stats"])["n_groups"].to_list() == [1] * 4


def test_no_stage_leaves_a_number_out(first: Checkout) -> None:
    """The default of `report.on_health` stops training where one does."""
    health = json.loads((first.folder / "data" / "health.json").read_text(encoding="utf-8"))
    (finding,) = [each for each in health["findings"] if each["rule"] == "numbers_finite"]
    assert finding["level"] == "ok", finding["message"]


def test_a_second_repro_does_nothing_and_leaves_git_clean(first: Checkout) -> None:
    out = first.dvc("repro")
    assert "Running stage" not in out
    assert "up to date" in out
    assert first.git("status", "--porcelain") == ""


def test_compiled_code_makes_no_stage_look_changed(first: Checkout, tmp_path: Path) -> None:
    for checkout in (first, first.clone(tmp_path / "clone")):
        assert checkout.compile("pipeline.rewards.scoring")
        assert "up to date" in checkout.dvc("status")


def test_the_policy_loads_as_the_readme_says(first: Checkout) -> None:
    (lines,) = code_blocks(section("## Load the policy"), "python")
    assert "What is 3 + 4?" in first.python(lines)


def test_dvc_reads_well(first: Checkout) -> None:
    shown = first.dvc("metrics", "show").splitlines()
    assert "reward_mean" in shown[0]
    assert [line.split()[0] for line in shown[1:]] == ["data/metrics/report.json"]
    assert "normalize" in first.dvc("dag", "filter")
    assert "file://" in first.dvc("plots", "show", "--out", ".rollbook/plots")


def test_its_rollouts_can_be_replayed(first: Checkout, tmp_path: Path) -> None:
    """From a clone, where nothing is laid out but what the cache has, and the code is that of the commit."""
    clone = first.clone(tmp_path / "clone")
    clone.git("tag", "demo/0000")
    replay = "from pipeline.cli import app; app(['replay', 'demo/0000', '--sample', '3', '--json'])"
    found = json.loads(clone.python(replay))
    assert (found["n_identical"], found["n_completions"], found["n_rolled_out_along"]) == (3, 3, 13)
    assert (found["is_promised"], found["changes"], found["logprob_max_difference"]) == (True, [], 0.0)
    assert clone.git("status", "--porcelain") == ""
    check = "from pipeline.cli import app; app(['logprob-check', 'demo/0000', '--json'])"
    n_tokens = read(first, "token_logprobs")["old_logprobs"].list.len().sum()
    assert json.loads(clone.python(check))["n_tokens"] == n_tokens


def test_another_checkout_gives_the_same_bytes(first: Checkout, model: Path, tmp_path: Path) -> None:
    other = Checkout(tmp_path, model)
    other.dvc("repro")
    assert other.digests() == first.digests()
    assert other.weights() == first.weights()


def test_a_reward_edit_scores_again_and_rolls_out_nothing(first: Checkout) -> None:
    first.set_params({"score.terms": {"checksum": {"weight": 2.0}}})
    assert "score.terms.checksum.weight" in first.dvc("params", "diff")
    out = first.dvc("repro")
    ran = [stage for stage in STAGES if f"Running stage '{stage}'" in out]
    assert ran[0] == "score"
    assert "rollout" not in ran
    first.set_params({"score.terms": {"checksum": {"weight": 1.0}}})
    again = first.dvc("repro")
    assert "Running stage 'score'" not in again, "DVC's cache has the rewards of the old weight"
    assert "Running stage 'update'" not in again
    first.git("checkout", "--quiet", "--force", "HEAD")
    first.dvc("checkout")
    assert "Running stage" not in first.dvc("repro"), "what the commit holds is there again"


def test_the_next_iteration_goes_on_from_its_parent(first: Checkout) -> None:
    parent = first.git("rev-parse", "HEAD").strip()
    before, shown = first.weights(), set(read(first, "selection")["prompt_id"])
    n_steps = read(first, "train_steps").height
    first.set_params({"parent": parent, "iteration": 1})
    first.dvc("repro")
    try:
        data = first.folder / "data"
        inherited = (data / "policy/adapter_model.safetensors").read_bytes()
        assert _digest(inherited) == before["data/next_policy/adapter_model.safetensors"]
        assert shown.isdisjoint(read(first, "selection")["prompt_id"])
        assert read(first, "train_steps")["step"].min() == n_steps
        assert read(first, "eval")["policy"].unique().to_list() == ["after"]
        history = pl.read_csv(data / "history.csv")
        assert history["iteration"].to_list() == [0, 1]
    finally:
        first.git("checkout", "--quiet", "--force", "HEAD")
        first.set_params({"parent": None, "iteration": 0})
        first.dvc("checkout", "--force")


def test_a_mistake_in_params_costs_nothing_once_it_is_mended(first: Checkout) -> None:
    first.set_params({"sampling.temperature": -1.0})
    with pytest.raises(AssertionError, match=r"sampling\.temperature: -1\.0"):
        first.dvc("repro")
    first.set_params({"sampling.temperature": 1.0})
    assert "Running stage" not in first.dvc("repro")
    assert first.git("status", "--porcelain") == ""


def test_a_parent_that_does_not_exist_is_named(first: Checkout) -> None:
    first.set_params({"parent": "0" * 40, "iteration": 1})
    try:
        with pytest.raises(AssertionError, match="commit 0000"):
            first.dvc("repro", "start")
        record = json.loads((first.folder / ".rollbook/exit/start.json").read_text())
        assert (record["code"], record["kind"]) == (1, "bad_input")
    finally:
        first.set_params({"parent": None, "iteration": 0})
        first.dvc("checkout", "--force")


def test_a_killed_repro_goes_on_to_the_same_result(first: Checkout, model: Path, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, model)
    draw = random.Random(0)
    for stage in sorted(draw.sample(STAGES[:-1], 3), key=STAGES.index):  # after the last there is little to kill
        process = checkout.start_repro()
        _wait_for(f"Running stage '{stage}'", process)
        time.sleep(draw.uniform(0, 1))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        _remove_dead_locks(checkout.folder)
    checkout.dvc("repro")
    assert checkout.digests() == first.digests()
    assert checkout.weights() == first.weights()
    assert not list((checkout.folder / "data").glob(".tmp-*"))


def _wait_for(words: str, process: subprocess.Popen[str]) -> None:
    """Read what the process prints, up to the line with `words`."""
    assert process.stdout
    assert any(words in line for line in process.stdout), f"it ended without {words!r}"


def _remove_dead_locks(folder: Path) -> None:
    """What a person does after a kill: the locks of DVC outlive it."""
    for name in ("rwlock", "rwlock.lock", "lock"):
        (folder / ".dvc/tmp" / name).unlink(missing_ok=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
