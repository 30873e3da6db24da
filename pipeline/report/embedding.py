"""Groups as the JSON that the page's script reads.

The JSON stands in a `<script type="application/json">`, which no browser runs; that nothing in it can end that element
or open a comment, its `<`, `>` and `&` are written as escapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl
from markupsafe import Markup

from pipeline.errors import BadInput
from pipeline.report.choice import Tables
from pipeline.report.text import SIGNS, sign_name

MAX_COMPLETIONS_OF_GROUP = 64
"""How many completions of one group a page holds."""

MAX_TEXT_CHARACTERS = 20_000
"""How much of one text a page holds."""

MAX_PAGE_CHARACTERS = 4_000_000
"""How much text a page holds; where that is too little for all texts, the longest are cut."""

_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def as_script(value: Any) -> Markup:
    """`value` as JSON that is inert within a script element.

    >>> as_script({"text": "</script><!--"})
    Markup('{"text":"\\\\u003c/script\\\\u003e\\\\u003c!--"}')
    """
    return Markup(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES))


def embed_groups(tables: Tables, group_ids: Sequence[str]) -> list[dict[str, Any]]:
    """The groups `group_ids`, in this order: their columns, their `prompt`, and their `completions`, best first.

    `tables` has prompts, selection, rollouts (with `n_tokens` in place of the token ids), rewards, advantages and
    groups; only the rows of these groups are collected. A text that is cut has fewer characters than `n_characters`
    of its completion, a group more completions than it shows has them counted as `n_left_out`.

    Raises:
        BadInput: a group's prompt is missing.
    """
    wanted = pl.DataFrame({"group_id": group_ids}, schema={"group_id": pl.String})
    drawn = tables["selection"].select("iteration", "prompt_id", "position", draw="reason")
    groups = wanted.lazy().join(tables["groups"], "group_id", maintain_order="left")
    rows = groups.join(drawn, ["iteration", "prompt_id"], "left", maintain_order="left").collect().rows(named=True)
    ids = list({row["prompt_id"]: None for row in rows})
    prompts = {
        row["prompt_id"]: row
        for row in tables["prompts"].filter(pl.col("prompt_id").is_in(ids)).collect().iter_rows(named=True)
    }
    completions = _completions_of(tables, wanted)
    return [_group(row, prompts, completions[row["group_id"]]) for row in rows]


def _group(
    row: dict[str, Any], prompts: dict[str, dict[str, Any]], completions: list[dict[str, Any]]
) -> dict[str, Any]:
    prompt = prompts.get(row["prompt_id"])
    if prompt is None:
        problem = f"there is no prompt {row['prompt_id']}, and group {row['group_id']} is of that prompt"
        raise BadInput("data/prompts.parquet", problem, "Run `dvc repro`, so that the tables belong together again")
    shown = completions[:MAX_COMPLETIONS_OF_GROUP]
    messages = [
        {"role": message["role"], **_cut(message["content"], MAX_TEXT_CHARACTERS)} for message in prompt["messages"]
    ]
    about = {name: prompt[name] for name in ("answer", "verifier", "source")}
    return {
        **_finite_only({**row, **about}),
        "messages": messages,
        "completions": shown,
        "n_left_out": len(completions) - len(shown),
    }


def _completions_of(tables: Tables, groups: pl.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The completions of each group, joined with their rewards and advantages, best first."""
    rewards = tables["rewards"].drop("iteration", "prompt_id", "group_id")
    advantages = tables["advantages"].select("completion_id", "advantage")
    rollouts = tables["rollouts"].drop("iteration", "prompt_id", strict=False)
    found = (
        rollouts.join(groups.lazy(), "group_id", "semi")
        .with_columns(n_characters=pl.col("completion_text").str.len_chars())
        .join(rewards, "completion_id", "left")
        .join(advantages, "completion_id", "left")
        .pipe(_with_counterparts, tables)
        .sort(["reward", "completion_index"], descending=[True, False], nulls_last=True)
        .collect()
    )
    limit = fair_limit(found["n_characters"].to_list(), MAX_PAGE_CHARACTERS)
    found = found.with_columns(pl.col("^(completion|against)_text$").str.slice(0, limit))
    by_group: dict[str, list[dict[str, Any]]] = {group_id: [] for group_id in groups["group_id"]}
    for row in found.iter_rows(named=True):
        by_group[row.pop("group_id")].append(_finite_only(row))
    return by_group


def _with_counterparts(completions: pl.LazyFrame, tables: Tables) -> pl.LazyFrame:
    return completions.join(tables["against"], "completion_id", "left") if "against" in tables else completions


def fair_limit(lengths: Iterable[int], budget: int, limit: int = MAX_TEXT_CHARACTERS) -> int:
    """The largest length, at most `limit`, to which texts of `lengths` can be cut so that all fit into `budget`.

    >>> fair_limit([10, 100, 100], 110)  # 10 + 50 + 50
    50
    """
    left = budget
    ordered = sorted(lengths)
    for place, length in enumerate(ordered):
        share = left // (len(ordered) - place)
        if min(length, limit) > share:
            return share
        left -= min(length, limit)
    return limit


def _cut(text: str, limit: int) -> dict[str, Any]:
    return {"text": text[:limit], "n_characters": len(text)}


def _finite_only(row: dict[str, Any]) -> dict[str, Any]:
    """`row` without a NaN or infinity, which JSON has not."""
    return {name: None if isinstance(value, float) and value - value != 0 else value for name, value in row.items()}


def sign_names(groups: list[dict[str, Any]]) -> dict[str, str]:
    """The Unicode name of each sign without a picture that a text of `groups` has."""
    texts = [value for group in groups for value in _strings(group)]
    return {sign: sign_name(sign) for text in texts for sign in {run[0][0] for run in SIGNS.finditer(text)}}


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
