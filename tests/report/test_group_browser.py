"""The page in headless Chromium: clicked through, and fed with what models might write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.report.against import compare_with
from pipeline.report.choice import choose_groups
from pipeline.report.embedding import embed_groups
from pipeline.report.template import make_browser, render
from tests.browser import Tab, needs_browser, opened_browser
from tests.iteration_sample import lazy_tables, sample_frames
from tests.report.hostile import HOSTILE
from tests.report.test_page import render as render_iteration

pytestmark = needs_browser

OWN_ELEMENTS = {
    *("a", "article", "b", "bdi", "dd", "details", "div", "dl", "dt", "mark", "p", "pre", "span", "summary")
}
"""What the script builds groups of."""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with opened_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the page of the made-up iteration: 16 groups of four."""
    return saved(render_iteration(), tmp_path_factory.mktemp("ordinary"))


def saved(html: str, folder: Path) -> str:
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    return file.as_uri()


def status(tab: Tab) -> str:
    return str(tab.run("document.getElementById('status').textContent"))


def shown(tab: Tab, selector: str = "article:not(.dim)") -> list[str]:
    """The ids of the completions or groups that are shown."""
    found = tab.run(f"[...document.querySelectorAll('{selector}')].map((one) => one.id)")
    return [name.partition("=")[2] for name in found]


def fill(tab: Tab, **values: str) -> None:
    """Set fields of the form as a person does, one after another."""
    for name, value in values.items():
        field = f"document.getElementById('browse').elements.{name}"
        tab.run(f"{field}.value = {value!r}; {field}.dispatchEvent(new Event('input', {{bubbles: true}}))")
        tab.run(f"{field}.dispatchEvent(new Event('change', {{bubbles: true}}))")


def click(tab: Tab, selector: str) -> None:
    tab.run(f"document.querySelector('{selector}').click()")


def add_filter(tab: Tab, column: str, operator: str, value: str = "") -> None:
    fill(tab, column=column, operator=operator, value=value)
    click(tab, "#browse button[type=submit]")


def follow(tab: Tab, completion: str) -> None:
    """Go to a completion by its link."""
    tab.run(f"location.hash = '#completion={completion}'; new Promise((done) => setTimeout(done, 20))")


def test_all_groups_are_there_ten_at_a_time(tab: Tab, ordinary: str) -> None:
    tab.open(ordinary)
    assert status(tab) == "All 64 completions on this page, in 16 groups; 10 shown"
    assert len(shown(tab, "details.group")) == 10
    assert tab.run("document.getElementById('more').textContent") == "Show 6 more of 6 groups"
    click(tab, "#more")
    assert len(shown(tab, "details.group")) == 16
    assert tab.run("document.getElementById('more').hidden")
    assert tab.errors == []


def test_completions_are_best_first_with_all_that_is_known_of_them(tab: Tab, ordinary: str) -> None:
    tab.open(ordinary)
    # Rewards 1, 0, 0, 1: the best first, equals by their place in the group.
    assert [name[-1] for name in shown(tab)[:4]] == ["0", "3", "1", "2"]
    first = str(tab.run("document.querySelector('article').innerText")).split()
    for words in ("correct", "reward 1", "advantage +0.500", "terms correct 1 · format 0", "extracted 10"):
        assert words in " ".join(first)
    assert "answer 10" in " ".join(str(tab.run("document.querySelector('.prompt').innerText")).split())


@pytest.mark.parametrize(
    ("column", "operator", "value", "n"),
    [
        # 6 mixed groups have two correct, 2 all correct ones four.
        ("is_correct", "=", "true", 20),
        ("reward", "≥", "0.5", 20),
        ("reward", "<", "0.5", 41),
        ("reward", "is empty", "", 3),
        ("outcome", "≠", "mixed", 40),
        ("kept", "=", "true", 24),
        ("score_error", "contains", "exceeded", 3),
        ("score_error", "is not empty", "", 3),
        ("reward_format", "=", "1.0", 31),  # two of each group, and one of those that can't be scored has none
        ("group_id", "=", "0000/0000000000000003", 4),
        ("completion_index", "=", "", 0),
        ("prompt", "contains", ": 3 + 5", 4),
    ],
)
def test_any_column_filters(tab: Tab, ordinary: str, column: str, operator: str, value: str, n: int) -> None:
    tab.open(ordinary)
    add_filter(tab, column, operator, value)
    assert status(tab).startswith(f"{n} of 64 completions on this page match, in ")


def test_filters_add_up_and_go_one_by_one(tab: Tab, ordinary: str) -> None:
    tab.open(ordinary)
    add_filter(tab, "is_correct", "=", "true")
    add_filter(tab, "outcome", "=", "mixed")
    assert status(tab).startswith("12 of 64")
    assert len(shown(tab, "article.dim")) == 12  # the others of these six groups stay beside them
    click(tab, "#chips button")
    assert status(tab).startswith("24 of 64")
    click(tab, "#browse [name=clear]")
    assert status(tab).startswith("All 64")


def test_a_regex_searches_the_texts_and_marks_what_it_finds(tab: Tab, ordinary: str) -> None:
    tab.open(ordinary)
    fill(tab, search=r"the ANSWER .* \d+\.$")
    assert status(tab).startswith("32 of 64")  # those at even places
    assert tab.run("document.querySelector('mark').textContent").startswith("The answer")
    tab.run("document.getElementById('browse').elements.cased.click()")
    assert status(tab).startswith("0 of 64")
    fill(tab, search=r"^\d+$")
    assert status(tab).startswith("32 of 64")


def test_a_regex_that_is_none_is_said_and_changes_nothing(tab: Tab, ordinary: str) -> None:
    tab.open(ordinary)
    fill(tab, search="answer")
    fill(tab, search="answer(")
    assert status(tab).startswith("32 of 64")
    assert "Unterminated group" in tab.run("document.getElementById('search').validationMessage")


def test_groups_and_their_completions_are_sorted(tab: Tab, ordinary: str) -> None:
    tab.open(ordinary)
    fill(tab, sort="n_tokens")
    lengths = tab.run("[...document.querySelectorAll('article .line .soft')].map((one) => parseInt(one.textContent))")
    per_group = [lengths[place : place + 4] for place in range(0, 40, 4)]
    assert all(four == sorted(four, reverse=True) for four in per_group)
    assert [four[0] for four in per_group] == sorted((four[0] for four in per_group), reverse=True)
    fill(tab, direction="ascending")
    assert tab.run("document.querySelector('article .line .soft').textContent") == "2 tokens"


def test_a_link_opens_its_completion_wherever_it_is(tab: Tab, ordinary: str) -> None:
    last = "0000/000000000000000f/2"
    tab.open(f"{ordinary}#completion={last}")
    assert shown(tab, ".target") == [last]
    assert tab.run("document.querySelector('.target').getBoundingClientRect().top < innerHeight")
    # A filter that leaves it out gives way to the link.
    tab.open(ordinary)
    add_filter(tab, "outcome", "=", "mixed")
    follow(tab, last)
    assert shown(tab, ".target") == [last]
    assert status(tab).startswith("All 64")


def test_a_linked_group_comes_first_until_something_else_is_asked(tab: Tab, ordinary: str) -> None:
    tab.open(f"{ordinary}#group=0000/000000000000000f")
    assert shown(tab, "details.group")[0] == "0000/000000000000000f"
    fill(tab, sort="group_id")
    fill(tab, direction="ascending")
    assert shown(tab, "details.group")[0] == "0000/0000000000000000"


def test_an_address_that_was_cut_short_breaks_nothing(tab: Tab, ordinary: str) -> None:
    tab.open(f"{ordinary}#completion=0000%2")
    assert "There is no completion 0000%2" in tab.run("document.getElementById('missing').textContent")
    assert tab.errors == []


def test_links_to_groups_and_prompts_work_too(tab: Tab, ordinary: str) -> None:
    for link in ("group=0000/000000000000000e", "prompt=000000000000000e"):
        tab.open(f"{ordinary}#{link}")
        assert shown(tab, ".target") == ["0000/000000000000000e"]


def test_a_link_to_what_is_elsewhere_says_how_to_see_it(tab: Tab, ordinary: str) -> None:
    tab.open(f"{ordinary}#completion=0009/abc/1")
    said = tab.run("document.getElementById('missing').textContent")
    assert said == "There is no completion 0009/abc/1 on this page. See it with: rollbook show 0009/abc/1"
    assert not tab.run("document.getElementById('missing').hidden")


def test_two_commits_stand_side_by_side_with_flips_marked(tab: Tab, tmp_path: Path) -> None:
    frames = sample_frames(outcomes=["mixed", "all_wrong"])
    place = pl.col("completion_id")
    edited = frames["rewards"].with_columns(
        # The first was wrong there, the second right, the third had half a point.
        is_correct=pl.col("is_correct") ^ place.is_in(["0000/0000000000000000/0", "0000/0000000000000000/1"]),
        reward=pl.when(place == "0000/0000000000000000/2").then(0.5).otherwise("reward"),
    )
    mine = lazy_tables(frames)
    against = compare_with(mine, lazy_tables({**frames, "rewards": edited}), "strict/0000")
    tables = {**mine, "against": against.table}
    choice = choose_groups(tables, 4, {"with the most flips": against.groups_by_flips})
    browser = make_browser(
        choice, embed_groups(tables, choice.group_ids), "", "rollbook show --run demo", "strict/0000", against.note
    )
    bare = {"curves": {}, "rows": [], "rules": [], "level": "ok", "verdict": "", "n_cells": 0, "columns": {}}
    given = {"name": "demo/0000", "against_name": "strict/0000", "iterations": [{"number": 0, "commit": "ab"}]}
    html = render("run.html.j2", browser, {**bare, "given": given})
    tab.open(saved(html, tmp_path))
    marks = tab.run(
        "[...document.querySelectorAll('.flip')].map((one) => [one.closest('article').id.at(-1), one.textContent])"
    )
    assert sorted(marks) == [["0", "gained"], ["1", "lost"], ["2", "reward"]]
    text = " ".join(str(tab.run("document.querySelector('article').innerText")).split())
    assert "in strict/0000 verdict wrong reward 1" in text
    assert tab.run("document.querySelectorAll('p.against').length") == 5
    add_filter(tab, "flip", "≠", "same")
    assert status(tab).startswith("3 of 8")
    follow(tab, "0009/abc/1")
    missing = str(tab.run("document.getElementById('missing').textContent"))
    assert missing.endswith("See it with: rollbook show --run demo 0009/abc/1")


def test_a_search_unfolds_texts_that_have_it_far_behind(tab: Tab, tmp_path: Path) -> None:
    texts = ["word " * 200 + "needle", "needle " + "word " * 200, "a needle", "nothing"]
    tab.open(saved(render_iteration(sample_frames(outcomes=["mixed"], texts=texts)), tmp_path))
    fill(tab, search="needle")
    tab.run("new Promise((done) => setTimeout(done, 50))")
    assert shown(tab, "article:has(details[open])") == ["0000/0000000000000000/0"]
    assert tab.run("document.querySelectorAll('mark').length") == 3


def test_verdicts_of_shadows_are_beside_the_own(tab: Tab, tmp_path: Path) -> None:
    frames = sample_frames(outcomes=["mixed"])
    frames["rewards"] = frames["rewards"].with_columns(is_correct_math=pl.lit(False))
    tab.open(saved(render_iteration(frames), tmp_path))
    assert "shadows math wrong" in " ".join(str(tab.run("document.querySelector('article').innerText")).split())


@pytest.fixture
def beacon() -> Iterator[tuple[str, list[str]]]:
    """The address of a local server, and the paths that were asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def hostile_frames(address: str) -> dict[str, pl.DataFrame]:
    """Every text that a page shows is hostile, each of `HOSTILE` as a completion, a prompt and an answer."""
    texts = [text.replace("BEACON", address) for text in HOSTILE]
    n_groups = -(-len(texts) // 4)
    frames = sample_frames(outcomes=["mixed"] * n_groups, texts=texts)
    short = [text[:5_000] for text in texts]
    prompts: list[list[dict[str, Any]]] = [[{"role": short[k], "content": texts[4 * k]}] for k in range(n_groups)]
    frames["prompts"] = frames["prompts"].with_columns(
        messages=pl.Series(prompts), answer=pl.Series(short[:n_groups]), source=pl.Series(short[-n_groups:])
    )
    n = frames["rewards"].height
    cycled = pl.Series((short * 2)[:n])
    frames["rewards"] = frames["rewards"].with_columns(extracted_answer=cycled, score_error=cycled.reverse())
    frames["groups"] = frames["groups"].with_columns(reason=pl.Series(short[:n_groups]))
    return frames


def test_hostile_texts_are_shown_and_do_nothing(tab: Tab, tmp_path: Path, beacon: tuple[str, list[str]]) -> None:
    assert len(HOSTILE) >= 30
    address, asked = beacon
    tab.open(saved(render_iteration(hostile_frames(address), groups_per_outcome=20), tmp_path))
    assert status(tab).startswith(f"All {-(-len(HOSTILE) // 4) * 4} completions")
    tab.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    tab.run("document.querySelectorAll('article, article *').forEach((one) => one.dispatchEvent(new Event('click')))")
    fill(tab, search="script")
    assert tab.run("document.querySelectorAll('mark').length") > 3
    fill(tab, search="")
    assert tab.run("[typeof window.ran, typeof ({}).polluted]") == ["undefined", "undefined"]
    names = tab.run("[...document.querySelectorAll('#list *')].map((one) => one.localName)")
    assert set(names) <= OWN_ELEMENTS
    forbidden = "img, iframe, object, embed, base, link, plaintext, x, math, textarea, meta[http-equiv=refresh]"
    assert tab.run(f"document.querySelectorAll('{forbidden}').length") == 0
    assert tab.run("document.querySelectorAll('script').length") == 2
    assert tab.run("document.title") == "Iteration 0 · Rollbook"
    attributes = tab.run("[...document.querySelectorAll('#list *')].flatMap((one) => one.getAttributeNames())")
    assert set(attributes) <= {"class", "dir", "href", "id", "open", "title"}
    assert asked == []
    assert tab.errors == []


def test_hostile_texts_are_shown_as_they_are(tab: Tab, tmp_path: Path, beacon: tuple[str, list[str]]) -> None:
    address, _ = beacon
    tab.open(saved(render_iteration(hostile_frames(address), groups_per_outcome=20), tmp_path))
    for place, text in enumerate(HOSTILE):
        if len(text) > 400 or not text.isprintable():
            continue
        name = f"0000/{place // 4:016x}/{place % 4}"
        follow(tab, name)
        assert tab.run("document.querySelector('.target pre').textContent") == text.replace("BEACON", address)
    tab.open(f"{tab.run('location.href.split(`#`)[0]')}#completion=0000/{12 // 4:016x}/0")
    assert "U+202E" in tab.run("document.querySelector('.target').textContent")
    name = tab.run("document.querySelector('.target .sign').title")
    assert name == "RIGHT-TO-LEFT OVERRIDE"


def test_a_megabyte_is_folded_up_and_cut_with_a_note(tab: Tab, tmp_path: Path) -> None:
    place = HOSTILE.index("<b>" * 350_000)
    tab.open(saved(render_iteration(hostile_frames("")), tmp_path))
    tab.run(
        f"location.hash = '#completion=0000/{place // 4:016x}/{place % 4}'; new Promise((done) => setTimeout(done, 5))"
    )
    assert "… 1,050,000 characters" in tab.run("document.querySelector('.target summary').textContent")
    tab.run("document.querySelector('.target details').open = true; new Promise((done) => setTimeout(done, 50))")
    assert "; 1 text is cut" in tab.run("document.getElementById('groups').textContent")
    text = tab.run("document.querySelector('.target details > pre').textContent")
    assert text.startswith("<b>" * 6_000)
    assert "1,030,000 of 1,050,000 characters are not on this page: rollbook show 0000/" in text


def test_the_browser_would_have_run_them(tab: Tab, tmp_path: Path, beacon: tuple[str, list[str]]) -> None:
    address, asked = beacon
    tab.open(saved(f"<title>quiet</title>{HOSTILE[0]}{HOSTILE[4].replace('BEACON', address)}", tmp_path))
    assert tab.run("window.ran") == 1
    assert asked == ["/img"]
