"""What `start` and `update` refuse before they work, in this process, without a model of any size."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.errors import BadInput
from pipeline.params import Params, TrainingParams, load_params
from pipeline.training import checks
from pipeline.training.batching import TrainingRow
from pipeline.training.state import TrainerState, load_state
from stages import paths, start
from tests.stage_runs import write_params


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a commit that holds the params of iteration 0; the current directory is its repository."""
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path, {})
    for command in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "0"],
    ):
        subprocess.run(["git", *command], check=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def params_of(changes: dict[str, Any]) -> Params:
    write_params(Path(), changes)
    return load_params()


def test_a_parent_that_fits_is_taken(parent: str) -> None:
    start._check_parent(params_of({"iteration": 1, "parent": parent}), parent)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iteration": 7}, r"params\.yaml: iteration: 7, but the parent .* holds iteration 0\. Set it to 1"),
        ({"training.method": "full"}, r"params\.yaml: training\.method: it is 'full', .* made with 'lora'"),
        ({"training.lora": {"rank": 8}}, r"params\.yaml: training\.lora: it is .*rank=8"),
        ({"base_model": {"path": "elsewhere"}}, r"params\.yaml: base_model: it is .*elsewhere"),
    ],
)
def test_a_parent_that_params_contradict_is_refused(parent: str, changes: dict[str, Any], message: str) -> None:
    params = params_of({"iteration": 1, "parent": parent, **changes})
    with pytest.raises(BadInput, match=message):
        start._check_parent(params, parent)


def model_of(n_tokens: int, n_numbers: int) -> Any:
    weight = torch.nn.Parameter(torch.zeros(n_numbers))
    return SimpleNamespace(
        get_input_embeddings=lambda: torch.nn.Embedding(n_tokens, 1), named_parameters=lambda: [("weight", weight)]
    )


@pytest.mark.parametrize(("prompt", "completion", "bad"), [([3], [10], 10), ([-1], [3], -1)])
def test_a_token_beyond_the_vocabulary_is_named(prompt: list[int], completion: list[int], bad: int) -> None:
    rows = [TrainingRow("0000/p/0", "0000/p", prompt, completion, [-1.0], 1.0)]
    with pytest.raises(BadInput, match=rf"0000/p/0 has the token id {bad}, and the policy knows 0 to 9"):
        checks.check_tokens(rows, model_of(10, 1), "the policy")
    checks.check_tokens([TrainingRow("c", "g", [0], [9], [-1.0], 1.0)], model_of(10, 1), "the policy")


def test_a_disk_too_small_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    # 1,000 numbers of 2 + 3 x 4 bytes, in data/ and in the cache: 28,000 bytes; and two checkpoints of 3 x 4: 24,000.
    for minutes, needed in ((None, 28_000), (5.0, 52_000)):
        training = TrainingParams(learning_rate=1.0, checkpoint_minutes=minutes)
        monkeypatch.setattr(shutil, "disk_usage", lambda _path, free=needed - 1: SimpleNamespace(free=free))
        with pytest.raises(BadInput, match=r"it needs 0\.0 GB for the next policy and state"):
            checks.check_disk(model_of(10, 1_000), training, paths.DATA)
        monkeypatch.setattr(shutil, "disk_usage", lambda _path, free=needed: SimpleNamespace(free=free))
        checks.check_disk(model_of(10, 1_000), training, paths.DATA)


def test_full_fine_tuning_says_what_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    checks.check_disk(model_of(10, 100_000_000), TrainingParams(method="full", learning_rate=1.0), paths.DATA)
    assert "full fine-tuning writes 5.2 GB in this iteration" in capsys.readouterr().out


def test_a_next_policy_that_is_not_finite_is_refused() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, 3.4e38]))  # beyond the largest bfloat16, 3.39e38
    model: Any = SimpleNamespace(named_parameters=lambda: [("lora_B", weight)])
    with pytest.raises(BadInput, match=r"data/next_policy: lora_B of the next policy is not finite"):
        checks.check_finite(model)
    weight.data = torch.tensor([1.0, 3.3e38])
    checks.check_finite(model)


def test_a_fresh_optimizer_keeps_the_parents_count_of_steps(parent: str) -> None:
    history = Path("data/history.csv")
    history.parent.mkdir()
    history.write_text("iteration,n_steps\n0,3\n1,\n2,4\n")
    commit = ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "1"]
    for command in (["add", "--all"], commit):
        subprocess.run(["git", *command], check=True)
    start._begin_state_afresh(params_of({}), "HEAD")
    assert load_state(paths.TRAINER_STATE) == TrainerState(step=7, method="lora", tensors={}, optimizer_step=0)
