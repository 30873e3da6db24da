"""Runs with the real stages on a tiny random model: clones, rebuilding, what-ifs, state that is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ruamel.yaml import YAML

from pipeline.comparison import compare
from pipeline.errors import BadInput
from pipeline.history import scan
from pipeline.integrity.verify import verify_checkout, verify_run
from pipeline.params_edit import edit_params
from pipeline.versioning.branching import new_run
from pipeline.versioning.disk import prune
from pipeline.versioning.iterations import advance, commit_iteration, push_artifacts
from pipeline.versioning.repository import Repository
from tests.end_to_end.checkout import Checkout, make_model

pytestmark = pytest.mark.slow

N_ITERATIONS = 3


class Trained:
    """A repository with the run `demo` of three iterations, pushed to a remote."""

    def __init__(self, checkout: Checkout, worktree: Checkout) -> None:
        self.checkout = checkout
        self.worktree = worktree
        self.repository = Repository(checkout.folder)

    def fork(self, name: str, start: str, settings: dict[str, Any] | None = None) -> Checkout:
        """A new run's worktree."""
        return self.worktree.at(new_run(self.repository, name, start, settings or {}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("runs")
    checkout = Checkout(folder / "main", make_model(folder / "model"))
    for key, value in (("user.name", "test"), ("user.email", "test@example.org")):
        checkout.git("config", key, value)
    checkout.dvc("remote", "add", "--quiet", "--default", "store", str(folder / "remote"))
    checkout.commit("a remote")
    worktree = checkout.at(new_run(Repository(checkout.folder), "demo"))
    for number in range(N_ITERATIONS):
        if number:
            advance(worktree.folder)
        worktree.dvc("repro", "--quiet")
        commit_iteration(worktree.folder)
        push_artifacts(worktree.folder)
    return Trained(checkout, worktree)


def hashes(checkout: Checkout, revision: str) -> dict[str, str]:
    """Path -> md5 of the tables, weights and states that dvc.lock has in `revision`."""
    lock = YAML(typ="safe", pure=True).load(checkout.git("show", f"{revision}:dvc.lock"))
    outputs = [output for stage in lock["stages"].values() for output in stage["outs"]]
    return {one["path"]: one["md5"] for one in outputs if one["path"].endswith(("parquet", "policy", "state"))}


def test_history_has_every_row_of_every_iteration(trained: Trained) -> None:
    rewards = scan("rewards", ["demo"], repo=trained.repository).group_by("iteration").len().sort("iteration").collect()
    assert rewards.rows() == [(0, 16), (1, 16), (2, 16)]
    stats = scan("eval", ["demo"], repo=trained.repository).group_by("commit", "policy").len().collect()
    assert stats.height == N_ITERATIONS + 1  # the first is evaluated before and after


def test_what_real_stages_make_is_sound(trained: Trained) -> None:
    verified = {one.name: problems for one, problems in verify_run(trained.repository, "demo")}
    assert verified == {"demo/0000": [], "demo/0001": [], "demo/0002": []}
    assert verify_checkout(trained.worktree.folder) == []


def test_a_clone_with_the_remote_has_nothing_to_do(trained: Trained, tmp_path: Path) -> None:
    trained.checkout.git(
        "clone", "--quiet", "--branch", "runs/demo", str(trained.checkout.folder), str(tmp_path / "clone")
    )
    clone = trained.checkout.at(tmp_path / "clone")
    clone.dvc("pull", "--quiet")
    assert "Running stage" not in clone.dvc("repro")
    assert clone.git("status", "--porcelain") == ""


def test_without_the_remote_an_older_iteration_is_made_again_to_the_same_bytes(
    trained: Trained, tmp_path: Path
) -> None:
    trained.checkout.git("clone", "--quiet", str(trained.checkout.folder), str(tmp_path / "clone"))
    clone = trained.checkout.at(tmp_path / "clone")
    clone.dvc("remote", "modify", "--local", "store", "url", str(tmp_path / "nowhere"))
    clone.git("checkout", "--quiet", "demo/0001")
    with pytest.raises(AssertionError, match=r"start: error: .*rollbook fetch demo/0000"):
        clone.dvc("repro")
    for number in (0, 1):
        clone.git("checkout", "--quiet", "--force", f"demo/{number:04d}")
        clone.dvc("repro", "--quiet")
        made = YAML(typ="safe", pure=True).load((clone.folder / "dvc.lock").read_text())
        outputs = {one["path"]: one["md5"] for stage in made["stages"].values() for one in stage["outs"]}
        expected = hashes(trained.checkout, f"demo/{number:04d}")
        assert len(expected) > 15
        assert {path: outputs[path] for path in expected} == expected


def test_a_what_if_scores_the_same_rollouts_again(trained: Trained) -> None:
    strict = trained.fork("strict", "demo/2")
    file = strict.folder / "params.yaml"
    text = edit_params(file.read_text(encoding="utf-8"), {"score.terms.checksum.weight": 0.25})
    file.write_text(text, encoding="utf-8")
    out = strict.dvc("repro")
    assert "Running stage 'score'" in out
    assert "Running stage 'rollout'" not in out
    assert commit_iteration(strict.folder).name == "strict/0002"
    theirs, ours = hashes(trained.checkout, "demo/0002"), hashes(trained.checkout, "strict/0002")
    assert theirs["data/rollouts.parquet"] == ours["data/rollouts.parquet"]
    comparison = compare(trained.repository, "demo", "strict")
    assert comparison.params == {"score.terms.checksum.weight": (1.0, 0.25)}
    before, after = comparison.numbers["reward_mean"]
    assert after == pytest.approx(before / 4)
    joined = (
        scan("rewards", ["demo/2"], repo=trained.repository)
        .join(scan("rewards", ["strict/2"], repo=trained.repository), on="completion_id")
        .select((pl.col("reward_right") / pl.col("reward")).alias("ratio").drop_nans().unique())
        .collect()
    )
    assert joined["ratio"].to_list() == [0.25]


def test_a_run_goes_on_with_a_fresh_optimizer_where_the_state_is_gone(trained: Trained) -> None:
    trained.fork("other", "demo/2")
    assert prune(trained.repository, keep_state=1, runs=["demo"])
    with pytest.raises(BadInput, match=r"demo/0000 is not in DVC's cache.*rollbook fetch demo/0000.*--fresh-optimizer"):
        new_run(trained.repository, "again", "demo/0")
    assert trained.checkout.git("branch", "--list", "runs/again") == ""
    again = trained.checkout.at(new_run(trained.repository, "again", "demo/0", fresh_optimizer=True))
    out = again.dvc("repro")
    assert "with a fresh optimizer" in out
    steps = pl.read_parquet(again.folder / "data/train_steps.parquet")["step"].to_list()
    assert steps == [2, 3]  # two steps in iteration 0
    assert commit_iteration(again.folder).name == "again/0001"
