"""`rollbook logprob-check` on numbers worked by hand, on an iteration in data/ and on one of a run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from pipeline.audit.question import Unanswerable
from pipeline.audit.tables import frame_tables
from pipeline.cli import app
from pipeline.errors import BadInput
from pipeline.logprob_check import check_logprobs, with_logprobs
from pipeline.params import HealthParams, load_params
from pipeline.table_io import write_table
from pipeline.tables import TABLES
from pipeline.token_text import read_decoder
from pipeline.training.recomputing import recompute_logprobs
from tests.audit.planted import Frames, plant
from tests.stage_runs import ROOT, write_params
from tests.tiny_model import build_tiny_model
from tests.versioning.fabricated import add_folder, add_table, import_run, init, lock_text

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def decode(ids: Any) -> str:
    return "".join(LETTERS[each] for each in ids)


# Differences old - sampling: 0, 0.125, -0.0625 and 0.25, 0. Powers of two, which float32 holds.
COMPLETIONS = [
    {
        "prompt": "a",
        "completion_token_ids": [2, 3, 4],
        "sampling_logprobs": [-1.0, -1.0, -1.0],
        "old_logprobs": [-1.0, -0.875, -1.0625],
        "steps": [0],
    },
    {
        "prompt": "b",
        "completion_token_ids": [5, 6],
        "sampling_logprobs": [-2.0, -2.0],
        "old_logprobs": [-1.75, -2.0],
        "steps": [0],
    },
    {"prompt": "b", "completion_token_ids": [7]},  # not trained on
]


@pytest.fixture
def frames() -> Frames:
    return plant(COMPLETIONS)


def test_numbers_by_hand(frames: Frames) -> None:
    found = check_logprobs(frame_tables(frames), decode, HealthParams(), n_worst=3)
    # Sizes 0, 0, 1/16, 1/8, 1/4. Their mean is (1 + 2 + 4) / 16 / 5 = 0.0875. Quantiles are between the sorted ones:
    # 0.9 of the way over 4 steps is 3.6, so 1/8 + 0.6 / 8 = 0.2; 0.99 is 3.96: 1/8 + 0.96 / 8 = 0.245; 0.999: 0.2495.
    # Ratios are 1, 1, exp(-1/16) = 0.939, exp(1/8) = 1.133, exp(1/4) = 1.284: two of five are outside.
    assert found.agreement == {
        "n_completions": 2,
        "n_tokens": 5,
        "disagreement_mean": pytest.approx(0.0875),
        "outside_fraction": 0.4,
        "disagreement_p50": 0.0625,
        "disagreement_p90": pytest.approx(0.2),
        "disagreement_p99": pytest.approx(0.245),
        "disagreement_p999": pytest.approx(0.2495),
        "disagreement_max": 0.25,
    }
    assert found.n_without == 1
    ratio, effective = found.findings
    # exp of the sizes: 1, 1, 1.06449, 1.13315, 1.28403, together 5.48167; over 5 it is 1.09633.
    assert (ratio.rule, ratio.level) == ("logprobs_agree", "warn")
    assert ratio.value == pytest.approx((2 + math.exp(1 / 16) + math.exp(1 / 8) + math.exp(1 / 4)) / 5)
    assert (effective.rule, effective.level) == ("weights_effective", "ok")


def test_the_worst_tokens_stand_in_their_text(frames: Frames) -> None:
    worst = check_logprobs(frame_tables(frames), decode, HealthParams(), n_worst=2).worst
    shown = ["completion_id", "position", "token_id", "sampling_logprob", "old_logprob", "disagreement", "context"]
    # The prompt is the tokens 1 and 2, "bc".
    assert worst.select(shown).rows() == [
        ("0000/b/0", 0, 5, -2.0, -1.75, 0.25, "bc⟦f⟧g"),
        ("0000/a/0", 1, 3, -1.0, -0.875, 0.125, "bcc⟦d⟧e"),
    ]
    assert check_logprobs(frame_tables(frames), decode, HealthParams(), n_worst=0).worst.height == 0


@pytest.mark.parametrize(
    ("difference", "outside"),
    [(0.0953, 0.0), (0.0954, 1.0), (-0.1053, 0.0), (-0.1054, 1.0)],  # ln 1.1 = 0.09531, ln 0.9 = -0.10536
)
def test_the_bounds_of_the_ratio(difference: float, outside: float) -> None:
    given = {"prompt": "a", "completion_token_ids": [2], "sampling_logprobs": [-1.0], "steps": [0]}
    frames = plant([{**given, "old_logprobs": [-1.0 + difference]}])
    agreement = check_logprobs(frame_tables(frames), decode, HealthParams(), n_worst=0).agreement
    assert agreement["outside_fraction"] == outside


def test_without_a_trained_completion_there_is_nothing_to_compare(frames: Frames) -> None:
    frames["token_logprobs"] = frames["token_logprobs"].clear()
    with pytest.raises(Unanswerable, match="nothing was trained on"):
        check_logprobs(frame_tables(frames), decode, HealthParams(), n_worst=3)


def test_other_log_probabilities_take_the_place_of_those_on_record(frames: Frames) -> None:
    own = frames["token_logprobs"].with_columns(
        old_logprobs=pl.Series([[-1.5] * 3, [-2.0] * 2], dtype=pl.List(pl.Float32))
    )
    found = check_logprobs(with_logprobs(frame_tables(frames), own), decode, HealthParams(), n_worst=1)
    assert (found.agreement["disagreement_max"], found.agreement["disagreement_p50"]) == (0.5, 0.5)


def test_without_a_tokenizer_ids_stand_for_their_text(tmp_path: Path) -> None:
    assert read_decoder(tmp_path / "tokenizer.json")([7, 12]) == "<7><12>"
    build_tiny_model(tmp_path)
    assert read_decoder(tmp_path / "tokenizer.json")([1, 3, 3]) == "<|im_start|>  "
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match=r"tokenizer\.json: it can't be read as a tokenizer"):
        read_decoder(tmp_path / "tokenizer.json")


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, frames: Frames, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the iteration in data/, and as the run `demo`, both with a base model."""
    init(tmp_path)
    write_params(tmp_path, {"training.method": "full", "training.device": "cpu"})
    for name in ("base", "policy"):
        build_tiny_model(tmp_path / "data" / name)
    for name, frame in frames.items():
        write_table(frame, tmp_path / f"data/{name}.parquet", TABLES[name])
    cache = tmp_path / ".dvc/cache"
    base = {file.name: file.read_bytes() for file in (tmp_path / "data/base").iterdir()}
    outputs = [
        add_table(cache, f"data/{name}.parquet", frames[name], TABLES[name], tmp_path)
        for name in ("prompts", "rollouts", "token_logprobs", "training_set")
    ]
    folders = [add_folder(cache, f"data/{name}", base) for name in ("base", "policy")]
    state = add_folder(cache, "data/trainer_state", {"state.json": STATE.encode()})
    params = (tmp_path / "params.yaml").read_text()
    import_run(tmp_path, "demo", [lock_text([*outputs, *folders, state])], texts=[{"params.yaml": params}])
    monkeypatch.chdir(tmp_path)
    return tmp_path


STATE = json.dumps({"method": "full", "step": 0, "optimizer_step": 0})


def rollbook(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["logprob-check", *arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", [(), ("demo/0000",), ("demo",)])
def test_the_command_says_what_was_found(name: tuple[str, ...]) -> None:
    said = rollbook(*name, "--worst", "1").output
    assert said.startswith(f"{'demo/0000' if name else 'data'}: 5 tokens of 2 completions\n1 more were not trained on")
    assert "|old - sampling| in nats: mean 0.0875, p50 0.0625, p90 0.2, p99 0.245, p999 0.2495, max 0.25\n" in said
    assert "Ratio outside [0.9, 1.1]: 40.0% of the tokens" in said
    assert "warn: ratio of sampler's and trainer's probabilities is 1.096, above 1.05" in said
    assert "⟦" in said
    found = json.loads(rollbook(*name, "--json").stdout)
    assert (found["n_tokens"], found["outside_fraction"], len(found["worst"])) == (5, 0.4, 5)


def test_it_starts_without_torch(here: Path) -> None:
    lines = [
        "import sys",
        "from pipeline.cli import app",
        "try: app()",
        "except SystemExit: sys.exit('torch' in sys.modules)",
    ]
    command = [sys.executable, "-c", "\n".join(lines), "logprob-check"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "5 tokens of 2 completions" in done.stdout


@pytest.mark.parametrize("name", [".", "demo/0000"])
def test_what_was_not_trained_on_is_computed(name: str, here: Path) -> None:
    rollouts = pl.read_parquet(here / "data/rollouts.parquet")
    base = here / "data/base"
    params = load_params()
    table = recompute_logprobs(rollouts, base, base, None, params.training, params.sampling, lambda *_: None)
    assert table["completion_id"].to_list() == ["0000/a/0", "0000/b/0", "0000/b/1"]
    assert table["old_logprobs"].list.len().to_list() == [3, 2, 1]
    result = rollbook(name, "--recompute", "--json")
    assert ("its trainer state is gone" in result.stderr) is (name == ".")
    found = json.loads(result.stdout)
    assert (found["n_completions"], found["n_tokens"], found["n_without"]) == (3, 6, 0)
    old = {row["completion_id"]: row["old_logprobs"] for row in table.to_dicts()}
    for row in found["worst"]:
        assert row["old_logprob"] == pytest.approx(old[row["completion_id"]][row["position"]])
