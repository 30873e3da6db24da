from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.report.run_page import rule_rows, spread
from pipeline.versioning.runs import Iteration
from tests.report.test_page import Page
from tests.sample_run import SampleRun


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SampleRun:
    return SampleRun(tmp_path_factory.mktemp("run_page") / "project")


@pytest.fixture(autouse=True)
def _in_the_repository(run: SampleRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.root)


def report(*arguments: str | Path, exit_code: int = 0) -> str:
    done = CliRunner().invoke(app, ["report", *map(str, arguments)])
    assert done.exit_code == exit_code, done.output
    return done.output


def data_of(html: str) -> list[dict[str, object]]:
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', html, re.DOTALL)
    groups: list[dict[str, object]] = json.loads(data)["groups"]
    return groups


def test_a_run_has_its_verdicts_curves_iterations_and_groups(run: SampleRun) -> None:
    said = report("demo")
    file = run.root / ".rollbook/reports/demo.html"
    assert said.startswith("demo: .rollbook/reports/demo.html (0.")
    html = file.read_text(encoding="utf-8")
    text = Page(html).text
    # The KL is 0.5 in the last iteration alone; 10 of 16 groups are dropped in each.
    assert "3 iterations: 2 rules have warned" in text
    assert "kl_bounded 1 demo/0002: KL to the reference is 0.5, above 0.3" in text
    assert 'rollbook sql --run demo/0002 "select step, kl from train_steps' in text
    assert "groups_teach 3" in text
    assert "All 48 groups, 192 completions" in text
    assert [group["iteration"] for group in data_of(html)[:18]] == [2] * 6 + [1] * 6 + [0] * 6
    assert html.count("<figure") == 9


def test_one_iteration_is_named_as_such(run: SampleRun, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    report("demo/0001", "--output", file)
    assert "rollbook audit silent --run demo/0001" in file.read_text(encoding="utf-8")
    assert {group["iteration"] for group in data_of(file.read_text(encoding="utf-8"))} == {1}


def test_some_iterations_are_asked_by_their_span(run: SampleRun, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    report("demo/0001..0002", "--output", file)
    html = file.read_text(encoding="utf-8")
    assert "rollbook audit silent --run demo --iterations 1..2" in html
    assert {group["iteration"] for group in data_of(html)} == {1, 2}


def test_two_commits_side_by_side(run: SampleRun, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    report("demo/0002", "--against", "strict/0002", "--output", file)
    html = file.read_text(encoding="utf-8")
    # The first of 6 mixed and 2 all-correct groups were right and are wrong there.
    assert "64 completions are in both, matched by id; 8 gained (correct here, not there), 0 lost" in Page(html).text
    assert "demo/0002 beside strict/0002" in Page(html).text
    flips = [completion["flip"] for group in data_of(html) for completion in group["completions"]]  # type: ignore[attr-defined]
    assert (flips.count("gained"), flips.count("same")) == (8, 56)


def test_of_two_runs_the_iterations_that_differ_are_compared(run: SampleRun, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    report("demo", "--against", "strict", "--output", file)
    html = file.read_text(encoding="utf-8")
    assert {group["iteration"] for group in data_of(html)} == {2}  # 0 and 1 are the same commits
    assert "of 1 of 3 iterations: 2; another one: rollbook report demo/0000" in Page(html).text
    assert "8 gained" in Page(html).text


def test_an_edit_that_is_not_committed_beside_a_run(run: SampleRun, tmp_path: Path) -> None:
    run.lay_out(2)
    file = tmp_path / "a page.html"
    assert report("--against", "strict/0002", "--output", file).startswith("data: ")
    html = file.read_text(encoding="utf-8")
    assert "data beside strict/0002" in Page(html).text
    assert "iteration 2 as it lies in data/" in Page(html).text
    assert "8 gained (correct here, not there), 0 lost" in Page(html).text
    assert "<code>rollbook audit silent</code>" in html
    assert 'rollbook sql "select step, kl from train_steps' in Page(html).text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody"], "there is no branch runs/nobody"),
        (["demo/0009"], "run demo has no such iteration"),
        (["demo", "--against", "nobody/0001"], "there is no branch runs/nobody"),
    ],
)
def test_what_is_not_there_is_named(arguments: list[str], said: str) -> None:
    assert said in report(*arguments, exit_code=1)


def test_iterations_are_spread_over_the_run() -> None:
    iterations = [Iteration("demo", number, "") for number in range(1000)]
    numbers = [one.number for one in spread(iterations)]
    assert (len(numbers), numbers[0], numbers[-1]) == (12, 0, 999)
    assert spread(iterations[:5]) == iterations[:5]


def test_a_rule_has_a_cell_for_each_of_the_last_iterations() -> None:
    iterations = [Iteration("demo", number, "") for number in range(130)]
    words = {"rule": "kl_bounded", "message": "KL is high", "action": "warn"}
    health = [{"findings": [{**words, "level": "warn" if number == 5 else "ok"}]} for number in range(129)]
    (row,) = rule_rows(iterations, [*health, None])
    assert (row.n_broken, row.last_iteration.number, len(row.cells)) == (1, 5, 120)
    assert row.cells[-1] == ("none", "")  # its commit has no diagnosis
    assert row.query == ""  # written before rows had queries
