"""The stage `score`: what it writes, and that bad input leaves what it wrote before alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.params import load_params
from pipeline.rewards.judging import judgements
from pipeline.rewards.scoring import score_batch
from pipeline.table_io import read_table, write_table
from pipeline.tables import JUDGEMENTS, PROMPTS, REWARDS, ROLLOUTS
from stages import paths
from stages.score import score, score_metrics, shards_folder
from tests.rewards import user_terms
from tests.rewards.judge_server import says, serve_judge
from tests.stage_runs import run_here, run_process, torch_that_breaks, write_params
from tests.versioning.fabricated import add_table, init, lock_text

# Three prompts of two completions: both right, one right, none right.
TEXTS = [["3", "3"], ["3", "13"], ["4", "none"]]


def write_prompts(verifier: str = "reasoning_gym") -> None:
    n = len(TEXTS) + 1
    entry = {"question": "1 + 2 = ?", "answer": "3", "metadata": {}}
    frame = pl.DataFrame(
        {
            "prompt_id": [f"{i:016x}" for i in range(n)],
            "split": ["train"] * n,
            "source": ["reasoning_gym/chain_sum"] * n,
            "messages": [[{"role": "user", "content": f"{i}: 1 + 2 = ?"}] for i in range(n)],
            "answer": ["3"] * n,
            "verifier": [verifier] * n,
            "metadata": [json.dumps({"task": "chain_sum", "config": {}, "entry": entry})] * n,
        },
        schema=PROMPTS.schema,
    )
    write_table(frame, paths.PROMPTS, PROMPTS)


def write_rollouts() -> None:
    rows = [
        {
            "iteration": 0,
            "prompt_id": f"{i:016x}",
            "group_id": f"0000/{i:016x}",
            "completion_id": f"0000/{i:016x}/{k}",
            "completion_index": k,
            "seed": 1,
            "prompt_token_ids": [1, 2],
            "completion_token_ids": [3, 4],
            "completion_text": text,
            "sampling_logprobs": [-0.1, -0.2],
            "finish_reason": "stop",
        }
        for i, texts in enumerate(TEXTS)
        for k, text in enumerate(texts)
    ]
    write_table(pl.DataFrame(rows, schema=ROLLOUTS.schema), paths.ROLLOUTS, ROLLOUTS)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_prompts()
    write_rollouts()
    write_params(tmp_path, {"score.reasoning_gym.extract": "last_number"})


def test_process_scores_without_torch(tmp_path: Path) -> None:
    ended = run_process("score", tmp_path, first_on_path=torch_that_breaks(tmp_path))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("score: 6 of 6 completions scored; mean reward 0.500, pass rate 0.500 (")
    rewards = read_table(paths.REWARDS, REWARDS)
    assert rewards["completion_id"].to_list() == pl.read_parquet(paths.ROLLOUTS)["completion_id"].to_list()
    assert rewards["reward"].to_list() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert rewards["extracted_answer"].to_list() == ["3", "3", "3", "13", "4", None]
    metrics = json.loads((paths.METRICS / "score.json").read_text())
    assert (metrics["n_completions"], metrics["n_scored"], metrics["n_errors"]) == (6, 6, 0)
    assert (metrics["reward_mean"], metrics["pass_rate"], metrics["term_means"]) == (0.5, 0.5, {"correct": 0.5})
    assert metrics["code_isolation"] is None
    before = paths.REWARDS.read_bytes()
    assert run_process("score", tmp_path, PYTHONHASHSEED="7").code == 0
    assert paths.REWARDS.read_bytes() == before


def test_running_code_without_bubblewrap_goes_on_record(tmp_path: Path) -> None:
    write_prompts("code")
    write_params(tmp_path, {"score.code": {"isolation": "outer_container_is_the_sandbox"}})
    metrics = score(load_params()).metrics
    assert metrics["code_isolation"] == "outer_container_is_the_sandbox"
    assert metrics["n_errors"] == 6  # the prompts have no hidden tests


def test_metrics_of_completions_that_cannot_be_scored_are_null() -> None:
    rewards = pl.DataFrame(
        {"reward": [None, None], "is_correct": [None, None], "reward_correct": [None, None], "score_error": ["a", "b"]},
        schema={"reward": pl.Float64, "is_correct": pl.Boolean, "reward_correct": pl.Float64, "score_error": pl.String},
    )
    assert score_metrics(rewards) == {
        "n_completions": 2,
        "n_scored": 0,
        "n_errors": 2,
        "reward_mean": None,
        "pass_rate": None,
        "term_means": {"correct": None},
        "shadows": {},
    }


def test_a_stage_that_was_killed_goes_on_from_its_finished_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.score.BATCH_COMPLETIONS", 2)
    params = load_params(tmp_path / "params.yaml")
    scored: list[list[str]] = []

    def score_some(batch: pl.DataFrame, *rest: Any) -> pl.DataFrame:
        scored.append(batch["completion_text"].to_list())
        if len(scored) == 3:
            raise KeyboardInterrupt
        return score_batch(batch, *rest)

    monkeypatch.setattr("stages.score.score_batch", score_some)
    with pytest.raises(KeyboardInterrupt):
        score(params)
    assert not paths.REWARDS.exists()
    result = score(params)
    assert scored == [*TEXTS, TEXTS[2]]
    resumed = paths.REWARDS.read_bytes()
    assert not paths.SCORES.exists()
    assert score(params) == result  # anew, all of it
    assert paths.REWARDS.read_bytes() == resumed


def test_batches_of_other_rollouts_params_or_code_are_not_taken(tmp_path: Path) -> None:
    params = load_params(tmp_path / "params.yaml").score
    first = shards_folder(params)
    assert shards_folder(params) == first
    first.mkdir(parents=True)
    other = shards_folder(params.model_copy(update={"clip": [0.0, 1.0]}))
    assert other != first
    assert not first.exists()
    pl.read_parquet(paths.ROLLOUTS).head(4).pipe(write_table, paths.ROLLOUTS, ROLLOUTS)
    assert shards_folder(params) != first


def test_batches_made_with_another_file_of_a_term_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.score.CODE", tmp_path)
    params, words = load_params(tmp_path / "params.yaml").score, tmp_path / "words.txt"
    words.write_text("please")
    first = shards_folder(params)
    words.write_text("thanks")
    assert shards_folder(params) != first


def test_a_term_of_the_whole_iteration_sees_all_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.rewards.registry.user", user_terms)
    monkeypatch.setattr("stages.score.BATCH_COMPLETIONS", 2)
    write_params(tmp_path, {"score.terms": {"rank": {"weight": 1.0}}, "score.shadow_verifiers": ["math"]})
    result = score(load_params(tmp_path / "params.yaml"))
    # each text has two tokens, so none is shorter than another
    assert read_table(paths.REWARDS, REWARDS)["reward"].to_list() == [0.0] * 6
    # a box is what math looks for: it calls all six wrong, three of which are correct
    assert result.metrics["shadows"] == {"math": {"n_verdicts": 6, "n_contradictions": 3}}
    assert result.line.endswith("pass rate 0.500, math contradicts 3")


def test_what_a_judge_said_is_kept_and_needs_no_network_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(tmp_path)
    monkeypatch.setattr(judgements, "KEPT", judgements.Judgements(Path(".rollbook/judgements")))
    with serve_judge(lambda _, number: says(json.dumps({"score": number}))) as server:
        settings: dict[str, Any] = {"address": server.address, "model": "m", "rubric": "Is it right?"}
        write_params(tmp_path, {"score.terms": {"judge": {"weight": 1.0, "params": settings}}})
        score(load_params(tmp_path / "params.yaml"))
        # In each of three groups there are two texts, of which one group's are equal.
        assert len(server.requests) == 5
    rewards = read_table(paths.REWARDS, REWARDS)
    made = read_table(paths.JUDGEMENTS, JUDGEMENTS)
    assert made.height == 5
    # As in a clone: the table is an object of DVC's cache that dvc.lock names, and the folder .rollbook is not there.
    output = add_table(tmp_path / ".dvc/cache", "data/judgements.parquet", made, JUDGEMENTS, tmp_path)
    (tmp_path / "dvc.lock").write_text(lock_text([output]))
    paths.JUDGEMENTS.unlink()
    shutil.rmtree(tmp_path / ".rollbook")
    monkeypatch.setattr(judgements, "KEPT", judgements.Judgements(Path(".rollbook/judgements")))
    write_params(tmp_path, {"score.terms": {"judge": {"weight": 0.5, "params": settings}}})
    score(load_params(tmp_path / "params.yaml"))
    assert read_table(paths.REWARDS, REWARDS)["reward"].to_list() == [each / 2 for each in rewards["reward"]]
    assert read_table(paths.JUDGEMENTS, JUDGEMENTS).equals(made)


def nothing() -> None:
    pass


def drop_a_prompt() -> None:
    frame = pl.read_parquet(paths.PROMPTS)
    write_table(frame.tail(-1), paths.PROMPTS, PROMPTS)


def drop_a_column() -> None:
    pl.read_parquet(paths.ROLLOUTS).drop("completion_text").write_parquet(paths.ROLLOUTS)


def no_rollouts() -> None:
    pl.read_parquet(paths.ROLLOUTS).clear().write_parquet(paths.ROLLOUTS)


def unverified() -> None:
    write_prompts("none")


BAD_INPUT: dict[str, tuple[Callable[[], object], dict[str, Any], str]] = {
    "no rollouts file": (paths.ROLLOUTS.unlink, {}, "data/rollouts.parquet: there is no such file"),
    "no rollouts": (no_rollouts, {}, "data/rollouts.parquet: it has no rows"),
    "no text": (drop_a_column, {}, "data/rollouts.parquet: column 'completion_text' is missing"),
    "a prompt is missing": (
        drop_a_prompt,
        {},
        "data/rollouts.parquet: row 0: prompt_id '0000000000000000' is not in data/prompts.parquet",
    ),
    "no verifier": (
        unverified,
        {},
        "params.yaml: score.terms.correct: it needs a verdict, and prompt 0000000000000000",
    ),
    "unknown kind": (
        nothing,
        {"score.terms": {"brief": {"weight": 1.0}}},
        "params.yaml: score.terms.brief: there is no kind of term 'brief'. Built in are correct, ",
    ),
    "unknown param": (
        nothing,
        {"score.terms": {"correct": {"weight": 1.0, "params": {"partial": True}}}},
        "params.yaml: score.terms.correct.params.partial: the term doesn't take this key",
    ),
    "unknown extraction": (nothing, {"score.math": {"extract": "box"}}, "params.yaml: score.math.extract: 'box'"),
    "no terms": (nothing, {"score.terms": {}}, "params.yaml: score.terms: "),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_leaves_the_rewards_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write_table(REWARDS.empty(), paths.REWARDS, REWARDS)
    before = paths.REWARDS.read_bytes()
    break_it, changes, message = BAD_INPUT[name]
    break_it()
    write_params(tmp_path, changes)
    ended = run_here("score", score, monkeypatch, capsys)
    assert ended.code == 1
    assert message in ended.err
    assert "Traceback" not in ended.err
    assert (ended.record["code"], ended.record["kind"]) == (1, "bad_input")
    assert paths.REWARDS.read_bytes() == before
