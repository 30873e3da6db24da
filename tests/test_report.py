from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from markupsafe import Markup

from pipeline.errors import BadInput
from pipeline.health import diagnose
from pipeline.history_rows import history_row
from pipeline.params import ReportParams
from pipeline.report import ReportInput, charts, render_report
from pipeline.report.groups import MAX_COMPLETIONS, view_outcomes
from pipeline.report.text import HEADING_CHARACTERS, MAX_CHARACTERS, heading, inert, is_long, preview
from tests.iteration_sample import lazy_tables, no_group_kept, sample_frames, sample_metrics, write_iteration

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
BROWSER_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

# BEACON stands for the address of a server that counts requests.
HOSTILE = [
    "<script>document.title='ran'</script>",
    "</pre></details></article></section></main><h1 id=broken>out</h1>",
    "<img src=BEACON/img onerror=\"document.title='ran'\">",
    "<svg onload=\"document.title='ran'\"></svg><iframe src=BEACON/frame></iframe>",
    "--></style></title><script src=BEACON/script></script>",
    "<meta http-equiv=refresh content='0;url=BEACON/refresh'><base href=BEACON/>",
    "<link rel=stylesheet href=BEACON/style><style>@import 'BEACON/import'; body{display:none}</style>",
    "{{ 7 * 7 }} {% raw %}{% endraw %} {# gone #} ${7 * 7}",
    "' onmouseover='document.title=1' \" autofocus onfocus=\"document.title='ran'",
    "&lt;script&gt; &amp;nbsp; &#x3c;b&#x3e;",
    "\u202edetrever\u202c \u2066isolated\u2069 \u200bhidden\u200b \ufeff",
    "\x00nul \x07bell \x1b[31mred\r \x7f \x85",
    "<![CDATA[ ]]> <!-- comment <?php echo 1 ?>",
    "javascript:document.title='ran'",
    "</textarea></noscript></template><plaintext>",
    "a" + "\u0301" * 2_000,
    "<b>" * 400_000,
    "\U000e0041\U000e0042 tags",
]


def render(frames: dict[str, pl.DataFrame] | None = None, **changes: Any) -> str:
    metrics = changes.pop("metrics", None) or sample_metrics()
    history = changes.pop("history", None) or [history_row(0, metrics)]
    given: dict[str, Any] = {
        "iteration": 0,
        "parent": None,
        "metrics": metrics,
        "history": history,
        "findings": diagnose(changes.get("iteration", 0), metrics, history, ReportParams()),
        "tables": lazy_tables(sample_frames() if frames is None else frames),
        "groups_per_outcome": 4,
    }
    return render_report(ReportInput(**{**given, **changes}))


@dataclass
class Page(HTMLParser):
    """A parsed page: its elements, ids, links and text."""

    html: str
    elements: Counter[str] = field(default_factory=Counter)
    ids: list[str] = field(default_factory=list)
    attributes: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href") and value]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def test_page_says_the_numbers() -> None:
    text = Page(render()).text
    for words in (
        "Healthy: no rule warns",
        "Pass rate 31.2% of the completions with a verdict",
        "Groups kept 6 of 16",
        "Held-out pass@1 after 23.4% 95% interval 17.0% to 31.5%, 128 prompts",
        "7 dropped: all wrong: nothing to learn from",
        "rollout 14.2 1,402 231.4",
        "3 completions without a reward are not in it.",
        # Of the ten held-out prompts 2 and 3 are right only after the update, 0 only before it.
        "Of 10 prompts, 2 are answered correctly more often after the update than before, 1 less often.",
    ):
        assert words in text


def test_page_is_self_contained_and_its_ids_are_unique() -> None:
    history = [history_row(k, sample_metrics()) for k in range(3)]
    html = render(history=history, iteration=2)
    page = Page(html)
    assert page.elements["script"] == 0
    assert page.elements["svg"] == 11  # nine curves and two distributions
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "url(" not in html
    assert not [name for name in page.attributes if name.startswith("on")]
    assert [name for name, n in Counter(page.ids).items() if n > 1] == []
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert "completion=0000/0000000000000000/3" in page.ids


def test_the_same_iteration_gives_the_same_page() -> None:
    assert render() == render()


def test_warnings_come_first_with_their_advice() -> None:
    text = Page(render(metrics=sample_metrics(update={"kl": 0.5}))).text
    verdict = text.index("1 of 5 rules warn")
    assert verdict < text.index("KL to the reference is 0.5, above 0.3. Lower training.learning_rate")
    assert text.index("kl_bounded") < text.index("group_kept")


def test_an_iteration_without_a_kept_group_says_so() -> None:
    metrics = sample_metrics(**no_group_kept())
    text = Page(render(sample_frames(outcomes=["all_wrong"] * 5), metrics=metrics)).text
    assert "no group is kept, so no optimizer step was taken; the policy is unchanged." in text
    assert "4 of 5 all_wrong groups: the first by group id" in text
    assert "mixed group" not in text


def test_off_schedule_the_evaluation_is_explained() -> None:
    frames = sample_frames()
    frames["eval"] = frames["eval"].clear()
    metrics = sample_metrics(evaluate={"is_scheduled": False, "before": None, "after": None})
    text = Page(render(frames, metrics=metrics)).text
    assert "after the update no evaluation is due at this iteration (evaluate.every)" in text


def test_before_is_what_the_parent_measured_after() -> None:
    history = [history_row(0, sample_metrics())]
    metrics = sample_metrics(evaluate={"before": None})
    history.append(history_row(1, metrics, history[0]))
    text = Page(render(metrics=metrics, history=history, iteration=1, parent="ab" * 20)).text
    assert "before the update 23.4% after iteration 0, measured there" in text
    assert "Held-out pass@1 before 23.4% measured after the update of the parent" in text
    assert "from commit ababababab" in text


def test_without_a_reward_no_distribution_is_drawn() -> None:
    frames = sample_frames(outcomes=["unscorable"])
    frames["rewards"] = frames["rewards"].with_columns(reward=pl.lit(None, pl.Float64))
    assert "No completion has a reward" in Page(render(frames)).text


def test_many_steps_are_cut_with_a_note() -> None:
    frames = sample_frames()
    steps = pl.concat([frames["train_steps"]] * 60).with_columns(step=pl.int_range(60, dtype=pl.UInt32))
    assert "The first 40 of 60 steps" in Page(render({**frames, "train_steps": steps})).text


def test_groups_are_the_first_by_id_and_completions_best_first() -> None:
    views = view_outcomes(lazy_tables(sample_frames()), groups_per_outcome=2)
    assert [(view.outcome, view.note, len(view.groups)) for view in views] == [
        ("mixed", "2 of 6 mixed groups: the first by group id", 2),
        ("all_correct", "all 2 all_correct groups", 2),
        ("all_wrong", "2 of 7 all_wrong groups: the first by group id", 2),
        ("unscorable", "the only unscorable group", 1),
    ]
    mixed = views[0].groups[0]
    assert mixed.group["group_id"] == "0000/0000000000000000"
    # Rewards 1, 0, 0, 1: the best first, equals by their place in the group.
    assert [completion["completion_index"] for completion in mixed.completions] == [0, 3, 1, 2]
    assert mixed.completions[1]["terms"] == {"correct": 1.0, "format": 1.0}
    assert mixed.completions[1]["advantage"] == 0.5
    # Unscorable completions come last.
    assert [completion["reward"] for completion in views[3].groups[0].completions] == [0.0, None, None, None]


def test_a_huge_group_is_cut_with_a_note() -> None:
    frames = sample_frames(outcomes=["mixed"])
    n = MAX_COMPLETIONS + 36
    for name in ("rollouts", "rewards", "advantages"):
        one = pl.concat([frames[name].head(1)] * n).with_columns(completion_id=pl.format("c{}", pl.int_range(n)))
        frames[name] = one
    group = view_outcomes(lazy_tables(frames), 1)[0].groups[0]
    assert group.note == "64 of 100 completions: the first by reward"
    assert len(group.completions) == 64


def test_a_group_without_its_prompt_is_named() -> None:
    frames = sample_frames()
    frames["prompts"] = frames["prompts"].tail(-1)
    with pytest.raises(BadInput, match="no prompt 0000000000000000, and group 0000/0000000000000000"):
        view_outcomes(lazy_tables(frames), 1)


def test_the_queries_give_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_iteration(tmp_path)
    monkeypatch.chdir(tmp_path)
    view = view_outcomes(lazy_tables(sample_frames()), 1)[0]
    groups = eval(view.query, {"pl": pl})
    assert (groups.height, groups["outcome"].unique().to_list()) == (6, ["mixed"])
    completions = eval(view.groups[0].query, {"pl": pl})
    assert completions.height == 4
    assert {"completion_text", "reward", "extracted_answer"} <= set(completions.columns)


def test_control_and_directional_characters_are_shown_by_number() -> None:
    shown = inert("a\x00\x00b\u202e<\u200d\n\t")
    assert shown == Markup(
        'a<span class="sign" title="NULL">U+0000 ×2</span>b'
        '<span class="sign" title="RIGHT-TO-LEFT OVERRIDE">U+202E</span>&lt;\u200d\n\t'
    )


def test_long_text_is_cut_with_the_number_left_out() -> None:
    text = "<" * 1_000_000
    assert is_long(text)
    assert not is_long("short")
    assert inert(text).count("&lt;") == MAX_CHARACTERS == 20_000
    assert "980,000 of 1,000,000 characters are left out here" in inert(text)
    assert "1,000,000 characters, the first 20,000 of them on this page" in preview(text)
    assert "left out" not in inert("<" * MAX_CHARACTERS)


def test_headings_of_prompts_that_begin_alike_differ() -> None:
    assert heading("3 + 5 =\nAnswer with <one> number.") == Markup("3 + 5 = Answer with &lt;one&gt; number.")
    prompts = [f"{'Read this first. ' * 50} {number} + 5 =" for number in (3, 4)]
    first, second = map(heading, prompts)
    assert first.startswith("Read this first.")
    assert (first[-9:], second[-9:]) == (". 3 + 5 =", ". 4 + 5 =")
    assert len(first) == HEADING_CHARACTERS + len(" … ")


def test_a_group_says_its_answer_terms_and_advantages() -> None:
    frames = sample_frames(outcomes=["mixed"])
    frames["advantages"] = frames["advantages"].with_columns(advantage=pl.Series([0.5, 0.0, -0.5, None]))
    text = Page(render(frames)).text
    assert "answer 5 verifier reasoning_gym" in text
    assert "terms correct 1 · format 0" in text
    # Best first: of the rewards 1, 0, 0, 1 the first, the last, the second and the third.
    assert re.findall(r"advantage (\S+)", text) == ["+0.500", "–", "0", "-0.500"]


def test_every_completion_of_a_shown_group_is_there_whole() -> None:
    texts = [f"{i} {'word ' * 500}end{i}" for i in range(4)]
    text = Page(render(sample_frames(outcomes=["mixed"], texts=texts))).text
    assert all(f"end{i}" in text for i in range(4))


def bars(chart: Markup | None) -> list[tuple[float, str, int]]:
    """Value (or lower edge), part and count of each bar, out of the labels that a chart has for screen readers."""
    labels = re.findall(r'aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="bar"', chart or "")
    pattern = re.compile(r"[a-z ]+: (?P<value>[−.0-9]+); completions: (?P<n>\d+).*; part: (?P<part>[a-z ]+)")
    found = [match for match in map(pattern.fullmatch, labels) if match]
    return sorted((float(match["value"].replace("−", "-")), match["part"], int(match["n"])) for match in found)


def test_reward_chart_counts_by_value_and_verdict() -> None:
    rewards = pl.LazyFrame(
        {"reward": [0.0, 1.0, 1.0, 0.0, 0.0, None], "is_correct": [False, True, True, True, None, None]}
    )
    assert bars(charts.reward_chart(rewards)) == [
        (0.0, "correct", 1),
        (0.0, "no verdict", 1),
        (0.0, "wrong", 1),
        (1.0, "correct", 2),
    ]


@pytest.mark.parametrize(
    ("verdicts", "listed"),
    [([True, False], ["correct", "wrong"]), ([False, False], ["wrong"]), ([None, None], ["no verdict"])],
)
def test_the_legend_lists_the_verdicts_that_occur(verdicts: list[bool | None], listed: list[str]) -> None:
    columns = {"reward": pl.Float64, "is_correct": pl.Boolean}
    chart = charts.reward_chart(pl.LazyFrame({"reward": [1.0, 0.0], "is_correct": verdicts}, schema=columns))
    words = re.findall(r"<text[^>]*>([^<]*)</text>", chart or "")
    assert [word for word in words if word in ("correct", "wrong", "no verdict")] == listed


def test_many_rewards_are_binned_and_none_is_lost() -> None:
    rewards = pl.LazyFrame({"reward": [i / 100 for i in range(101)], "is_correct": [True] * 101})
    found = bars(charts.reward_chart(rewards))
    assert len(found) == charts.MAX_BINS
    assert sum(n for _, _, n in found) == 101


def test_length_chart_counts_by_length_and_finish_reason() -> None:
    lengths = pl.LazyFrame({"n_tokens": [3, 3, 16, 5], "finish_reason": ["stop", "stop", "length", "stop"]})
    assert bars(charts.length_chart(lengths)) == [(2.5, "ended", 2), (4.5, "ended", 1), (15.5, "cut off", 1)]


def test_a_curve_without_a_number_is_not_drawn() -> None:
    rows = [history_row(k, sample_metrics(**no_group_kept())) for k in range(2)]
    assert charts.curve_chart(rows, {"kl": "nats"}) is None
    assert charts.curve_chart(rows, {"reward_mean": "mean"}) is not None


def tick_labels(chart: Markup | None, axis: str) -> list[float]:
    """The numbers at the ticks of the `axis` ("X" or "Y")."""
    group = re.search(rf'aria-label="{axis}-axis.*?class="mark-text role-axis-label".*?</g>', chart or "", re.DOTALL)
    assert group is not None
    return [float(label.replace("−", "-")) for label in re.findall(r">([^<]+)</text>", group[0])]


@pytest.mark.parametrize(
    ("iterations", "labels"),
    [
        ([0, 1], [0, 1]),
        ([0, 1, 2], [0, 1, 2]),
        (range(8), range(8)),
        (range(3, 6), [3, 4, 5]),
        (range(41), range(0, 41, 5)),
    ],
)
def test_ticks_of_a_curve_are_iterations(iterations: Sequence[int], labels: Sequence[int]) -> None:
    rows = [history_row(k, sample_metrics(score={"reward_mean": k / 10})) for k in iterations]
    assert tick_labels(charts.curve_chart(rows, {"reward_mean": "mean"}), "X") == list(labels)


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0, 1), (0.5, 0, 0.5), (-2.0, -2, 0)])
def test_a_flat_curve_has_an_axis(value: float, low: float, high: float) -> None:
    rows = [history_row(k, sample_metrics(update={"clip_fraction": value})) for k in range(3)]
    labels = tick_labels(charts.curve_chart(rows, {"clip_fraction": "fraction"}), "Y")
    assert len(labels) > 2
    assert (min(labels), max(labels)) == (low, high)


def test_an_interval_is_within_the_axis() -> None:
    rows = [history_row(k, sample_metrics()) for k in range(2)]
    band = ("eval_pass_at_1_low", "eval_pass_at_1_high")
    labels = tick_labels(charts.curve_chart(rows, {"eval_pass_at_1": "held-out"}, band), "Y")
    # The interval is 0.1695 to 0.3147 around a pass@1 that stays.
    assert min(labels) <= 0.2
    assert max(labels) >= 0.3


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


def loaded(html: str, folder: Path) -> str:
    """The document after a browser opened `html` from disk and ran what it found."""
    assert BROWSER is not None
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    command = [BROWSER, *BROWSER_FLAGS, f"--user-data-dir={folder / 'profile'}"]
    command += ["--virtual-time-budget=2000", "--dump-dom", file.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH: apt-get install chromium")
def test_hostile_completions_are_inert_in_a_browser(tmp_path: Path, beacon: tuple[str, list[str]]) -> None:
    address, asked = beacon
    texts = [text.replace("BEACON", address) for text in HOSTILE]
    frames = sample_frames(outcomes=["mixed"] * 5, texts=texts)
    prompts = [{"role": "user", "content": texts[i]} for i in range(5)]
    frames["prompts"] = frames["prompts"].with_columns(
        messages=pl.Series([[prompt] for prompt in prompts]), answer=pl.lit(texts[0])
    )
    frames["rewards"] = frames["rewards"].with_columns(
        extracted_answer=pl.lit(texts[2]), score_error=pl.lit(texts[3]), is_correct=pl.lit(None, pl.Boolean)
    )
    frames["groups"] = frames["groups"].with_columns(reason=pl.lit(texts[4]))
    document = loaded(render(frames, groups_per_outcome=5), tmp_path)
    page = Page(document)
    assert "<title>Iteration 0 · Rollbook</title>" in document
    for tag in ("script", "img", "iframe", "base", "link", "plaintext"):
        assert page.elements[tag] == 0, tag
    assert "broken" not in page.ids
    assert page.elements["article"] == 20
    assert "{{ 7 * 7 }} {% raw %}{% endraw %} {# gone #} ${7 * 7}" in page.text
    assert asked == []


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH: apt-get install chromium")
def test_the_browser_would_have_run_them(tmp_path: Path, beacon: tuple[str, list[str]]) -> None:
    address, asked = beacon
    document = loaded(f"<title>quiet</title>{HOSTILE[0]}{HOSTILE[2].replace('BEACON', address)}", tmp_path)
    assert "<title>ran</title>" in document
    assert asked == ["/img"]
