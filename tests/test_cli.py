from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.metrics import read_metrics
from pipeline.table_io import write_json
from tests.iteration_sample import no_group_kept, sample_metrics
from tests.stage_runs import write_params

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def write(n_warnings: int = 0, **changes: dict[str, Any]) -> None:
    report = {"iteration": 3, "n_warnings": n_warnings, "seconds": 1.2, "peak_memory_mb": 290}
    for stage, values in {**sample_metrics(**changes), "report": report}.items():
        write_json(values, Path("data/metrics") / f"{stage}.json")


def summary() -> str:
    result = CliRunner().invoke(app, ["summary"])
    assert result.exit_code == 0, result.output
    return re.sub(r" +", " ", result.output)


def test_summary_says_what_happened() -> None:
    write()
    output = summary()
    for line in (
        "Iteration 3",
        "Prompts 16 of 2,000 to train on",
        "Completions 64 8.75 tokens on average, 6.2% cut off",
        "Pass rate 31.2%",
        "Groups kept 6 of 16 7 dropped (all wrong: nothing to learn from), 2 dropped (all correct",
        "KL 0.0251",
        "Clip fraction 0.0% a single step: every ratio is 1",
        "Held-out pass@1 before 17.2% 95% interval 11.6% to 24.7%, 128 prompts",
        "Held-out pass@1 after 23.4% 95% interval 17.0% to 31.5%, 128 prompts",
        "│ update │ 21.9 │ 2,210 │",
        "│ all │ 49.3 │ 2,210 │",  # 8 stages of 1.5 s, 14.2, 21.9 and 1.2
        "Health: ok",
        "Report: data/report.html",
        "Tables: data/*.parquet",
    ):
        assert line in output


def test_summary_says_why_numbers_are_missing() -> None:
    write(1, **no_group_kept(), evaluate={"is_scheduled": False, "before": None, "after": None})
    output = summary()
    assert "Groups kept 0 of 16 16 dropped (all wrong: nothing to learn from)" in output
    assert "KL – no group is kept, so no optimizer step was taken" in output
    assert "Held-out pass@1 after – no evaluation is due at this iteration" in output
    assert "Health: 1 warned" in output


def test_summary_says_what_the_parent_measured() -> None:
    write(evaluate={"before": None})
    assert "Held-out pass@1 before – the iteration that it starts from has none" in summary()
    report = read_metrics(Path("data/metrics"))["report"]
    write_json({**report, "eval_pass_at_1_before": 0.25}, Path("data/metrics/report.json"))
    assert "Held-out pass@1 before 25.0% measured after the update of the parent" in summary()


def test_text_in_brackets_is_shown_as_it_is() -> None:
    write(filter={"dropped_reasons": {"[red]odd[/red]": 1}})
    assert "1 dropped ([red]odd[/red])" in summary()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "data/metrics/score.json: there is no such file, and it holds the numbers of score"),
        ("{", "data/metrics/score.json: it is not valid JSON"),
        ("[]", "data/metrics/score.json: it holds list, not an object"),
        ("{}", "data/metrics/score.json: n_completions: it is missing"),
    ],
)
def test_bad_metrics_are_named(content: str | None, message: str) -> None:
    write()
    file = Path("data/metrics/score.json")
    file.unlink() if content is None else file.write_text(content)
    result = CliRunner().invoke(app, ["summary"])
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Run `dvc repro score`" in result.stderr
    assert "Traceback" not in result.output


def test_usage_errors_exit_with_2() -> None:
    assert CliRunner().invoke(app, ["sumary"]).exit_code == 2
    assert CliRunner().invoke(app, ["summary", "extra"]).exit_code == 2


def test_metrics_of_some_stages_can_be_read_alone() -> None:
    write()
    assert list(read_metrics(Path("data/metrics"), ["score", "filter"])) == ["score", "filter"]


def test_the_command_starts_without_heavy_imports() -> None:
    heavy = {"torch", "transformers", "datasets", "altair", "dvc", "prefect"}
    code = f"import sys, pipeline.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_check_says_which_method_comes_out() -> None:
    write_params(Path(), {"preset": "rloo", "training.kl_coefficient": 0.1})
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "params.yaml is in order; reward: correct",
        "Method: preset rloo, loss grpo, baseline mean, scale group, clip 0.2/0.2, KL 0.1 (k1 in the reward); departs "
        "in normalize.baseline (leave_one_out), normalize.scale (none), training.loss (dr_grpo), "
        "training.kl_coefficient (0.05)",
    ]


def test_threads_of_openmp_sleep_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    CliRunner().invoke(app, ["check"])
    assert (os.environ.pop("OMP_WAIT_POLICY"), os.environ["GOMP_SPINCOUNT"]) == ("PASSIVE", "7")
