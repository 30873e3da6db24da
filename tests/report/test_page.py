from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import polars as pl
import pytest

from pipeline.audit.registry import QUESTIONS
from pipeline.health import Evidence, diagnose
from pipeline.history_rows import history_row
from pipeline.params import HealthParams, ReportParams
from pipeline.report import ReportInput, render_report
from pipeline.report.page import draw_curves
from tests.iteration_sample import lazy_tables, no_group_kept, sample_frames, sample_metrics

PARAMS = ReportParams(health=HealthParams(max_no_signal_fraction=0.7))
"""The sample drops 10 of 16 groups."""


def render(frames: dict[str, pl.DataFrame] | None = None, **changes: Any) -> str:
    metrics = changes.pop("metrics", None) or sample_metrics()
    history = changes.pop("history", None) or [history_row(0, metrics)]
    tables = lazy_tables(sample_frames() if frames is None else frames)
    iteration = changes.get("iteration", 0)
    given: dict[str, Any] = {
        "iteration": 0,
        "parent": None,
        "metrics": metrics,
        "history": history,
        "findings": diagnose(Evidence(iteration, metrics, history[:-1], tables), PARAMS),
        "tables": tables,
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
    assert page.elements["script"] == 2  # the data, which is no script, and the browser of groups
    assert page.elements["svg"] == 11  # nine curves and two distributions
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "url(" not in html
    assert not [name for name in page.attributes if name.startswith("on")]
    assert [name for name, n in Counter(page.ids).items() if n > 1] == []
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_the_same_iteration_gives_the_same_page() -> None:
    assert render() == render()


def test_warnings_come_first_with_their_advice() -> None:
    text = Page(render(metrics=sample_metrics(update={"kl": 0.5}))).text
    verdict = text.index("1 of 19 rules warns")
    assert verdict < text.index("KL to the reference is 0.5, above 0.3. Lower training.learning_rate")
    assert text.index("kl_bounded") < text.index("18 rules hold") < text.index("group_kept")


def test_an_iteration_without_a_kept_group_says_so() -> None:
    metrics = sample_metrics(**no_group_kept())
    text = Page(render(sample_frames(outcomes=["all_wrong"] * 5), metrics=metrics)).text
    assert "no group is kept, so no optimizer step was taken; the policy is unchanged." in text


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


def test_surplus_groups_have_a_curve_where_there_are_any() -> None:
    rows = [history_row(k, sample_metrics(filter={"n_surplus": k})) for k in range(2)]
    assert ">surplus</text>" in draw_curves(rows)["Groups"]
    assert ">surplus</text>" not in draw_curves(rows[:1] * 2)["Groups"]


def test_without_a_reward_no_distribution_is_drawn() -> None:
    frames = sample_frames(outcomes=["unscorable"])
    frames["rewards"] = frames["rewards"].with_columns(reward=pl.lit(None, pl.Float64))
    assert "No completion has a reward" in Page(render(frames)).text


def test_many_steps_are_cut_with_a_note() -> None:
    frames = sample_frames()
    steps = pl.concat([frames["train_steps"]] * 60).with_columns(step=pl.int_range(60, dtype=pl.UInt32))
    assert "The first 40 of 60 steps" in Page(render({**frames, "train_steps": steps})).text


def test_rows_behind_a_finding_are_linked_with_the_query_that_lists_them() -> None:
    frames = sample_frames()
    rollouts = frames["rollouts"].with_columns(completion_text=pl.lit(""))
    html = render({**frames, "rollouts": rollouts})
    assert 'href="#completion=0000/0000000000000000/0"' in html
    query = "select completion_id, completion_text from rollouts where iteration = 0 and trim(completion_text) = ''"
    assert f'rollbook sql "{query} order by completion_id"' in Page(html).text


def test_every_question_is_there_with_its_command() -> None:
    text = Page(render()).text
    for question in QUESTIONS.values():
        assert f"rollbook audit {question.name} " in text


def test_the_page_holds_its_groups_as_data() -> None:
    html = render()
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', html, re.DOTALL)
    groups = json.loads(data)["groups"]
    assert [group["outcome"] for group in groups] == (
        ["mixed"] * 6 + ["all_correct"] * 2 + ["all_wrong"] * 7 + ["unscorable"]
    )
    assert "All 16 groups, 64 completions" in Page(html).text


def test_the_script_is_admitted_by_its_hash_alone() -> None:
    html = render()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert re.fullmatch(
        r"default-src 'none'; script-src 'sha256-[A-Za-z0-9+/]{43}='; style-src 'unsafe-inline'; "
        r"base-uri 'none'; form-action 'none'",
        policy.replace("&#39;", "'"),
    )


def test_what_is_watched_is_no_warning() -> None:
    text = Page(render(metrics=sample_metrics(update={"sampling_kl": 0.05}))).text
    assert "Healthy: no rule warns, 1 to watch" in text
    assert text.index("KL of sampler to trainer is 0.05, above 0.01") < text.index("18 rules hold")


@pytest.mark.parametrize(
    ("levels", "said"),
    [((), "Healthy: no rule warns"), (("kl",), "1 of 19 rules warns"), (("kl", "entropy"), "2 of 19 rules warn")],
)
def test_the_verdict_counts(levels: tuple[str, ...], said: str) -> None:
    update: dict[str, Any] = {"kl": 0.5} if "kl" in levels else {}
    update |= {"entropy": None} if "entropy" in levels else {}
    assert said in Page(render(metrics=sample_metrics(update=update))).text
