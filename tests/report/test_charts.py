from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl
import pytest
from markupsafe import Markup

from pipeline.history_rows import history_row
from pipeline.report import charts
from tests.iteration_sample import no_group_kept, sample_metrics


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
