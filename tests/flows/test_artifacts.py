from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.history_rows import COLUMNS, HistoryRow
from pipeline.report.groups import view_outcomes
from prefect_flows.artifacts import (
    CHARACTERS_SHOWN,
    COMPLETIONS_PER_GROUP,
    ROWS_SHOWN,
    artifact_key,
    code,
    groups_page,
    metrics_table,
    tables_of_groups,
)
from tests.iteration_sample import sample_frames, write_iteration


def row(iteration: int, **values: float | None) -> HistoryRow:
    return {**dict.fromkeys(COLUMNS), "iteration": iteration, **values}


def test_the_table_shows_the_latest_iterations_first() -> None:
    history = [row(iteration, pass_rate=iteration / 100) for iteration in range(60)]
    table = metrics_table(history)
    assert len(table) == ROWS_SHOWN == 50
    assert [shown["iteration"] for shown in table][:2] == ["59", "58"]
    assert table[-1]["iteration"] == "10"
    assert (table[0]["pass rate"], table[0]["KL"]) == ("0.59", "–")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("iteration")
    frames = sample_frames(texts=["a | b\n`c`", "<script>alert(1)</script>"])
    write_iteration(root, frames)
    return groups_page("demo/0003", view_outcomes(tables_of_groups(root / "data"), 2))


def test_each_outcome_has_some_groups(page: str) -> None:
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings == [
        "## mixed: 2 of 6 mixed groups: the first by group id",
        "## all correct: all 2 all_correct groups",
        "## all wrong: 2 of 7 all_wrong groups: the first by group id",
        "## unscorable: the only unscorable group",
    ]
    assert page.count("| reward | advantage | completion |") == 7


def test_what_a_model_wrote_is_shown_as_it_is(page: str) -> None:
    assert "`` a \\| b `c` ``" in page
    assert "`<script>alert(1)</script>`" in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "`plain`"),
        ("", "` `"),
        (" \n ", "` `"),
        ("`", "`` ` ``"),
        ("``x`", "``` ``x` ```"),
        ("a||b", "`a\\|\\|b`"),
        ("x" * 400, "`" + "x" * CHARACTERS_SHOWN + " …`"),
    ],
)
def test_text_stays_on_one_line_in_a_code_span(text: str, shown: str) -> None:
    assert code(text) == shown


def test_a_large_group_is_cut(tmp_path: Path) -> None:
    write_iteration(tmp_path)
    (outcome, *_) = view_outcomes(tables_of_groups(tmp_path / "data"), 1)
    view = outcome.groups[0]
    view.completions.extend(view.completions[:1] * COMPLETIONS_PER_GROUP)  # 4 + 8
    assert "| | | and 4 more |" in groups_page("demo/0000", [outcome])


@pytest.mark.parametrize("run", ["demo", "demo_2.1", "a-b", "v1.0-"])
def test_keys_are_what_prefect_takes(run: str) -> None:
    key = artifact_key(run, "groups")
    assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not key.startswith("-")
