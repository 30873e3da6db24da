from __future__ import annotations

import pytest

from pipeline.history_rows import COLUMNS, HistoryRow
from prefect_flows.artifacts import (
    CHARACTERS_SHOWN,
    ROWS_SHOWN,
    artifact_key,
    code,
    metrics_table,
    verdict_page,
)


def row(iteration: int, **values: float | None) -> HistoryRow:
    return {**dict.fromkeys(COLUMNS), "iteration": iteration, **values}


def test_the_table_shows_the_latest_iterations_first() -> None:
    history = [row(iteration, pass_rate=iteration / 100) for iteration in range(60)]
    table = metrics_table(history)
    assert len(table) == ROWS_SHOWN == 50
    assert [shown["iteration"] for shown in table][:2] == ["59", "58"]
    assert table[-1]["iteration"] == "10"
    assert (table[0]["pass rate"], table[0]["KL"]) == ("0.59", "–")


FINDING = {"rule": "kl_bounded", "message": "KL is 0.5, above 0.3", "advice": "Go slower", "action": "warn"}


def test_the_verdict_has_the_headline_and_what_warns_first() -> None:
    rows = {"query": 'rollbook sql "select step, kl from train_steps"', "n": 2, "ids": ["step 3"]}
    findings = [
        {**FINDING, "rule": "groups_teach", "level": "watch"},  # an older diagnosis has no rows
        {**FINDING, "rule": "group_kept", "level": "ok"},
        {**FINDING, "rule": "pass_rate_held", "level": "warn", "action": "ignore"},
        {**FINDING, "level": "warn", "rows": rows},
    ]
    page = verdict_page("demo/0003", row(3, pass_rate=0.5, kl=0.5), {"n_warnings": 1, "findings": findings})
    assert page.splitlines()[:5] == [
        "# demo/0003",
        "",
        "pass rate 0.5 · held-out pass@1 – · reward – · KL 0.5 · entropy – · clip fraction – · groups kept – · "
        "completion tokens – · gradient norm –",
        "",
        "## 1 of 4 rules warns",
    ]
    assert "**kl_bounded** (warn): KL is 0.5, above 0.3. Go slower." in page
    assert '2 rows: `rollbook sql --run demo/0003 "select step, kl from train_steps"`' in page
    assert page.index("kl_bounded") < page.index("groups_teach")
    assert "pass_rate_held" not in page


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


@pytest.mark.parametrize("run", ["demo", "demo_2.1", "a-b", "v1.0-"])
def test_keys_are_what_prefect_takes(run: str) -> None:
    key = artifact_key(run, "verdict")
    assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not key.startswith("-")
