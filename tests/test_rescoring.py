"""Stored rollouts scored anew: what flips, what is shown of it, and that nothing stored is touched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from pipeline import rescore_command
from pipeline.cli import app
from pipeline.params import ScoreParams
from pipeline.rescoring import rescore
from pipeline.tables import PROMPTS, REWARDS, ROLLOUTS
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import select_iterations
from tests.rewards.frames import CORRECT
from tests.stage_runs import write_params
from tests.versioning.fabricated import add_table, import_run, init, lock_text

# Of two prompts, whose answer is 7: text, and the verdict that is stored.
COMPLETIONS = [
    ("it is 7", False),  # the last number is right
    (r"\boxed{8} or 7", True),
    ("7", True),
    ("8", None),
]


def rows_of(iteration: int, table: Any, values: dict[str, list[Any]]) -> pl.DataFrame:
    prompt_ids = [f"{i // 2:016x}" for i in range(4)]
    keys = {
        "iteration": [iteration] * 4,
        "prompt_id": prompt_ids,
        "group_id": [f"{iteration:04d}/{each}" for each in prompt_ids],
        "completion_id": [f"{iteration:04d}/{each}/{i % 2}" for i, each in enumerate(prompt_ids)],
    }
    return pl.DataFrame({**keys, **values}, schema_overrides=table.schema).select(list(table.schema))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """The run `demo` of two iterations with the same completions, of which the second has all verdicts right."""
    folder = tmp_path_factory.mktemp("rescoring")
    init(folder)
    cache_dir = folder / ".dvc/cache"
    prompts = pl.DataFrame(
        {
            "prompt_id": [f"{i:016x}" for i in range(2)],
            "split": ["train"] * 2,
            "source": ["file"] * 2,
            "messages": [[{"role": "user", "content": f"question {i}"}] for i in range(2)],
            "answer": ["7"] * 2,
            "verifier": ["math"] * 2,
            "metadata": [None] * 2,
        },
        schema=PROMPTS.schema,
    )
    texts = [text for text, _ in COMPLETIONS]
    right: list[bool | None] = [True, True, True, False]
    locks: list[str] = []
    stored_verdicts: list[list[bool | None]] = [[verdict for _, verdict in COMPLETIONS], right]
    for iteration, verdicts in enumerate(stored_verdicts):
        rollouts = rows_of(
            iteration,
            ROLLOUTS,
            {
                "completion_index": [0, 1, 0, 1],
                "seed": [1] * 4,
                "prompt_token_ids": [[1]] * 4,
                "completion_token_ids": [[2]] * 4,
                "completion_text": texts,
                "sampling_logprobs": [[-0.5]] * 4,
                "finish_reason": ["stop"] * 4,
            },
        )
        reward = [None if verdict is None else float(verdict) for verdict in verdicts]
        nothing = dict.fromkeys(("extracted_answer", "score_error"), [None] * 4)
        stored: dict[str, list[Any]] = {"reward": reward, "is_correct": verdicts, **nothing}
        rewards = rows_of(iteration, REWARDS, stored)
        outputs = [
            add_table(cache_dir, f"data/{table.name}.parquet", rows, table, folder)
            for table, rows in ((PROMPTS, prompts), (ROLLOUTS, rollouts), (REWARDS, rewards))
        ]
        locks.append(lock_text(outputs))
    import_run(folder, "demo", locks)
    return Repository(folder)


def params(**sections: Any) -> ScoreParams:
    return ScoreParams.model_validate({"math": {"extract": "last_number"}, "terms": CORRECT, **sections})


def test_what_flips(repository: Repository) -> None:
    objects = {path: path.read_bytes() for path in repository.cache_dir.rglob("*") if path.is_file()}
    first, second = rescore(repository, "demo", select_iterations(repository, "demo"), params(), n_examples=9)
    assert (first.name, second.name) == ("demo/0000", "demo/0001")
    assert first.scores["change"].to_list() == ["became_correct", "same", "same", "got_verdict"]
    assert first.scores["is_correct"].to_list() == [False, True, True, None]
    assert first.scores["is_correct_now"].to_list() == [True, True, True, False]
    assert first.scores["extracted_answer_now"].to_list() == ["7", "7", "7", "8"]
    assert second.scores["change"].to_list() == ["same"] * 4
    assert first.examples["completion_text"].to_list() == ["it is 7", "8"]
    assert first.examples["answer"].to_list() == ["7", "7"]
    assert second.examples.height == 0
    assert {path: path.read_bytes() for path in objects} == objects


def test_another_extraction_and_another_weight(repository: Repository) -> None:
    second = select_iterations(repository, "demo/1")
    (boxed,) = rescore(repository, "demo", second, params(math={"extract": "boxed"}), n_examples=1)
    assert boxed.scores["change"].to_list() == ["became_wrong", "became_wrong", "became_wrong", "same"]
    assert boxed.examples["completion_id"].to_list() == [f"0001/{0:016x}/0"]  # one of three
    (half,) = rescore(repository, "demo", second, params(terms={"correct": {"weight": 0.5}}), n_examples=1)
    assert half.scores["change"].to_list() == ["reward_changed", "reward_changed", "reward_changed", "same"]
    assert half.scores["reward_now"].to_list() == [0.5, 0.5, 0.5, 0.0]


def rollbook(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["rescore", *arguments])
    assert result.exit_code == code, result.output
    return re.sub(r" +", " ", result.output)


def test_the_command_shows_counts_and_examples(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository.root)
    write_params(repository.root, {"score.math": {"extract": "last_number"}})
    said = rollbook("demo", "--iterations", "0..1")
    assert "iteration pass rate mean reward right wrong null null only" in said
    assert "0000 66.7% -> 75.0% 0.667 -> 0.750 1 0 0 1 0 \n" in said  # 2 of 3, 3 of 4
    assert "0001 75.0% -> 75.0% 0.750 -> 0.750 0 0 0 0 0 \n" in said
    example = f"0000/{0:016x}/0: became correct, reward 0 -> 1\n prompt question 0\n answer 7\n extracted – -> 7\n"
    assert example + " completion it is 7\n" in said
    assert said.index("became correct") < said.index("got verdict")
    assert "became" not in rollbook("demo/0001")
    assert "demo/0009: run demo has no such iteration" in rollbook("demo/0009", code=1)
    assert "demo/0000 names iterations already" in rollbook("demo/0000", "--iterations", "1", code=1)


def test_the_code_of_another_checkout_is_refused(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository.root)
    monkeypatch.setattr(rescore_command, "__file__", str(tmp_path / "pipeline/rescore_command.py"))
    (repository.root / "pipeline").mkdir(exist_ok=True)
    said = rollbook("demo", code=1)
    (repository.root / "pipeline").rmdir()
    assert f"the command rollbook is that of {tmp_path}, with its code and its rewards" in said
    assert "Run `python -m pipeline.cli rescore ...` at the root" in said
