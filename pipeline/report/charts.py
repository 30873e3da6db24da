"""Charts as SVG: drawn here with Vega-Altair, so that the page needs neither a script nor a network.

Colours are CSS variables of the page, which has a light and a dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt
import polars as pl
import vl_convert
from markupsafe import Markup

from pipeline.history_rows import HistoryRow

MAX_DISTINCT_VALUES = 12
MAX_BINS = 30
MAX_TICKS = 10
MAX_POINTS = 60
"""A longer curve is drawn without a dot per iteration."""


def reward_chart(rewards: pl.LazyFrame) -> Markup | None:
    """How many completions got which reward, by verdict; None where no completion has a reward.

    `rewards` has `reward` and `is_correct`.
    """
    verdict = (
        pl.when(pl.col("is_correct").is_null())
        .then(pl.lit("no verdict"))
        .when("is_correct")
        .then(pl.lit("correct"))
        .otherwise(pl.lit("wrong"))
    )
    counts = (
        rewards.filter(pl.col("reward").is_not_null())
        .group_by(value="reward", part=verdict)
        .agg(n=pl.len())
        .sort("value", "part")
        .collect()
    )
    if counts.height == 0:
        return None
    colors = {"correct": "var(--good)", "wrong": "var(--bad)", "no verdict": "var(--faint)"}
    if counts["value"].n_unique() <= MAX_DISTINCT_VALUES:
        return _bars(counts, "reward", colors)
    low, high = _extent(counts)
    return _binned(counts, low, (high - low) / MAX_BINS, "reward", colors)


def length_chart(rollouts: pl.LazyFrame) -> Markup:
    """How many completions have which number of tokens, by finish reason.

    `rollouts` has `n_tokens` and `finish_reason`.
    """
    part = pl.when(pl.col("finish_reason") == "length").then(pl.lit("cut off")).otherwise(pl.lit("ended"))
    counts = rollouts.group_by(value="n_tokens", part=part).agg(n=pl.len()).sort("value", "part").collect()
    low, high = _extent(counts)
    width = math.ceil((high - low + 1) / MAX_BINS)
    # Half a token to the left, so that a bar one token wide stands over its number.
    return _binned(counts, low - 0.5, width, "completion tokens", {"ended": "var(--accent)", "cut off": "var(--bad)"})


def curve_chart(
    history: list[HistoryRow],
    columns: dict[str, str],
    band: tuple[str, str] | None = None,
    colors: Sequence[str] = ("var(--accent)", "var(--second)"),
) -> Markup | None:
    """`columns` (name in the history -> name in the legend) over the iterations; None where all are null.

    `band` names the columns of an interval, drawn as an area.
    """
    frame = pl.DataFrame(history, infer_schema_length=None).select("iteration", *columns, *(band or ()))
    long = frame.unpivot(list(columns), index="iteration", variable_name="part").drop_nulls("value")
    if long.height == 0:
        return None
    long = long.with_columns(pl.col("part").replace_strict(columns))
    has_legend = len(columns) > 1
    height = 130 if has_legend else 154  # as high as the others with their legend
    color = _color(dict(zip(columns.values(), colors, strict=False)), long["part"], has_legend)
    x, y = _iteration_axis(frame["iteration"]), _value_axis(frame.drop("iteration"))
    line = alt.Chart(long).mark_line(point=len(history) <= MAX_POINTS).encode(x, y, color)
    if band is None or frame.drop_nulls(band).height == 0:
        return _svg(line, width=300, height=height)
    low, high = (f"{name}:Q" for name in band)
    area = alt.Chart(frame.drop_nulls(band)).mark_area(opacity=0.18, color="var(--second)").encode(x, y=low, y2=high)
    return _svg(area + line, width=300, height=height)


def _iteration_axis(iterations: pl.Series) -> alt.X:
    # Not more ticks than iterations, so that each is at a whole number.
    axis = alt.Axis(tickCount=min(iterations[-1] - iterations[0], MAX_TICKS), format="d")
    return alt.X("iteration:Q", title="iteration", axis=axis, scale=alt.Scale(zero=False, nice=False))


def _value_axis(values: pl.DataFrame) -> alt.Y:
    """An axis over the extent of all `values`; where they are all equal, it reaches from 0 to them, or to 1."""
    found = [value for column in values for value in column.drop_nulls()]
    flat = alt.Scale(domain=sorted((0, found[0] or 1)))
    scale = flat if min(found) == max(found) else alt.Scale(zero=False)
    return alt.Y("value:Q", title=None, scale=scale, axis=alt.Axis(tickCount=4))


def _extent(counts: pl.DataFrame) -> tuple[float, float]:
    low, high = counts.select(pl.min("value"), high=pl.max("value")).row(0)
    return float(low), float(high)


def _bars(counts: pl.DataFrame, title: str, colors: dict[str, str]) -> Markup:
    """A bar per value, with the number of completions above it."""
    x = alt.X("value:O", title=title, axis=alt.Axis(labelAngle=0, format=".4~g"))
    bars = alt.Chart(counts).mark_bar(size=36).encode(x, _n_axis(), _color(colors, counts["part"]))
    totals = alt.Chart(counts.group_by("value", maintain_order=True).agg(pl.sum("n")))
    labels = totals.mark_text(dy=-7, color="var(--ink)").encode(x, alt.Y("n:Q"), alt.Text("n:Q", format=","))
    return _svg(bars + labels)


def _binned(counts: pl.DataFrame, start: float, width: float, title: str, colors: dict[str, str]) -> Markup:
    """Bars of equal `width` from `start` on."""
    last = MAX_BINS - 1  # the highest value belongs to the last bin, not to one of its own
    index = ((pl.col("value") - start) / width).floor().clip(0, last)
    bins = (
        counts.group_by("part", low=start + index * width)
        .agg(pl.sum("n"))
        .with_columns(high=pl.col("low") + width)
        .sort("low", "part")
    )
    axis = alt.Axis(tickMinStep=1 if width >= 1 else 0)
    x = alt.X("low:Q", title=title, axis=axis, scale=alt.Scale(zero=False))
    # A bar with two x and one y would be drawn lying: say that it stands.
    bars = alt.Chart(bins).mark_bar(orient="vertical", binSpacing=1)
    return _svg(bars.encode(x, alt.X2("high:Q"), _n_axis(), _color(colors, counts["part"])))


def _n_axis() -> alt.Y:
    return alt.Y("n:Q", title="completions", stack="zero", axis=alt.Axis(tickCount=4, tickMinStep=1))


def _color(colors: dict[str, str], parts: pl.Series, has_legend: bool = True) -> alt.Color:
    """The colour of each part; the legend lists those that occur in `parts`."""
    occurring = [part for part in colors if part in parts]
    scale = alt.Scale(domain=occurring, range=[colors[part] for part in occurring])
    return alt.Color("part:N", scale=scale, legend=alt.Legend(title=None, orient="top") if has_legend else None)


def _svg(chart: alt.Chart | alt.LayerChart, width: int = 420, height: int = 180) -> Markup:
    axis = {
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "gridColor": "var(--line)",
        "tickColor": "var(--line)",
        "domainColor": "var(--line)",
        "titleFontWeight": "normal",
    }
    styled = (
        chart.properties(width=width, height=height, background="transparent")
        .configure_view(stroke=None)
        .configure_axis(**axis)
        .configure_axisX(grid=False)
        .configure_legend(labelColor="var(--soft)")
    )
    return Markup(vl_convert.vegalite_to_svg(styled.to_dict(), allowed_base_urls=[]))
